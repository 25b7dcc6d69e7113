"""Options that a reply lists under labels of its own, and which of them it decides for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmrl.llms.reading.latex import untexed
from llmrl.llms.reading.number_parser import ORDINALS, UNITS
from llmrl.llms.reading.reply_cleaning import plain
from llmrl.llms.reading.tables import tables

_KIND = r"(?:option|candidate|plan|choice|alternative|variant|strategy|approach|possibility|idea)"
_NUMBER = r"(?:\d{1,2}|one|two|three|four|five|six)"
_CALLED = re.compile(
    rf"(?:^[ \t>#*_\-\u2022]{{0,12}}|(?<=[.;,:!?])[ \t]+[*_]{{0,2}}|(?<=\band )){_KIND}[ \t]*(?:#|no\.?[ ]?|number )?"
    rf"[ \t]*\(?(?P<label>{_NUMBER}|(?-i:[A-H]))\)?(?![\w'])[ \t*_]*(?P<gloss>\([^()\n]{{1,60}}\))?[ \t*_]*"
    r"(?:[:.)=]|\bis\b(?: to\b|:)?|\bwould be\b(?: to\b)?|[\u2013\u2014-]|\n)[ \t*_]*",
    re.IGNORECASE | re.MULTILINE,
)
_LETTERED = re.compile(
    r"^[ \t>#*_\-\u2022]{0,12}(?:\((?P<inner>[A-Ha-h])\)|(?P<label>[A-H])[ \t*_]{0,3}[).:])[ \t*_]*(?=\S)", re.MULTILINE
)
ROW_LABEL = re.compile(r"\A\(?(?P<label>[A-H]|\d{1,2})[.):][ \t]+(?=\S)")
"""The label of an option in a cell that also says what it is."""
_COUNTED = re.compile(r"(?:^[ \t>#*_]{0,8}|(?<=[:,;])[ \t]+\(?)(?P<label>\d{1,2})[.):][ \t*_]+(?=\S)", re.MULTILINE)
_ONE = rf"(?:{_KIND}|one|proposal|action|move|row|point|vector)"
_DECIDES = (
    r"(?:\bi(?:'ll| will|'m| am| would|'d| have| hereby)?(?: \w+){0,2}? ?(?:choose|chose|chosen|pick|select|"
    r"go(?:ing)? with|take|taking|prefer|submit|submitting|opt(?:ing)? for|use|using|recommend|decide (?:on|for)|"
    r"decided (?:on|for)|"
    r"settle (?:on|for)|adopt|choosing|picking|selecting)|\b(?:choosing|selecting|picking)\b|\b(?:let's|"
    r"let us) (?:go with|take|choose|use|try|pick)|"
    r"\b(?:my|the|our) (?:\w+ )?(?:choice|answer|decision|pick|selection|recommendation)\b(?: is| would be)?|"
    r"\b(?:final|best|chosen|selected|preferred|recommended|winning)(?: \w+){0,2}?(?: is)?"
    r"(?=[\s*_]*[:=]|\s+(?:is\s+)?\S)|"
    r"^[ \t*_#>]*(?:decision|answer|choice|selected|chosen|selection|pick|going with|verdict|conclusion)\b|"
    r"\\boxed\{)"
)
_DECIDED = re.compile(
    rf"{_DECIDES}[\s*_:=>\u2192\"'`$-]*(?:is[\s:*_]+)?(?:to |the |for |with |use |take |go with ){{0,3}}[\s*_\"'`({{]*"
    rf"(?:(?P<kind>{_KIND}|number|no\.|\#)[\s*_]*#?[\s*_(]*(?P<label>{_NUMBER}|(?-i:[A-H]))|"
    r"(?P<bare>\d{1,2}|(?-i:[A-H])|(?<=\()(?-i:[a-h])(?=\))))(?![\w'%.]*[\w%])",
    re.IGNORECASE | re.MULTILINE,
)
_ORDINAL = "|".join(ORDINALS)
_ORDERED = re.compile(
    rf"{_DECIDES}[\s*_:=>\"'`$-]*(?:is[\s:*_]+)?(?:to |for |with |use |take |go with ){{0,3}}the[\s*_]+"
    rf"(?P<order>{_ORDINAL}|last|latter|former)\b[\s*_]*(?:{_ONE}\b|(?=[.,;:!\n*]|\Z|because|since|as\b))",
    re.IGNORECASE | re.MULTILINE,
)
_PREDICATED = re.compile(
    rf"\b{_KIND}[\s*_]*(?P<label>{_NUMBER}|(?-i:[A-H]))[\s*_]+(?:is|seems|looks|it is|wins|it's)\b[\s*_]*"
    r"(?:clearly |therefore |thus |the |my |definitely |probably ){0,2}(?:best|better|optimal|preferable|safest|winner|"
    r"choice|most promising|right one|way to go|superior|what i (?:choose|pick|take)|strongest)",
    re.IGNORECASE,
)
_OPEN = re.compile(
    r"\b(?:if|unless|whether|either|depending|depends|not|n't|never|or|neither|could|might|may|would you|perhaps|maybe|"
    r"reply with|tell me|let me know)\b|n't\b|\?",
    re.IGNORECASE,
)
_SPOKEN_OF = re.compile(rf"\b{_KIND}[\s*_]*(?:{_NUMBER}|(?-i:[A-H]))\b", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """Options under labels.

    Attributes:
        texts: what is said under each label; rows of a table with its head.
        places: where the options stand, labels included.
        labels: theirs.
        counted: the labels are bare numbers, as a question's numbers may be.
        chosen: the one decided for, by its place from 0; None: none.
        decided: where the decision stands; None: nowhere.
        named: the decision calls it an option, or by its place in the list.
        mentions: where labels of options are spoken of.
    """

    texts: list[str]
    places: list[tuple[int, int]]
    labels: list[str]
    counted: bool
    chosen: int | None
    decided: tuple[int, int] | None
    named: bool
    mentions: list[tuple[int, int]]

    @property
    def end(self) -> int:
        return max(b for _, b in self.places)


def own_options(text: str) -> Options | None:
    """The options that a reply lists itself, at least two; None where there are none."""
    even = untexed(plain(text))
    for pattern in _FINDERS:
        found = _in_tables(even) if pattern is None else _labelled(even, pattern)
        if found is None:
            continue
        texts, places, labels = found
        counted = pattern is _COUNTED
        decisions = _decisions(even, labels, places, counted)
        if not decisions and pattern in (_LETTERED, _COUNTED):
            continue  # any list
        mentions = [] if counted else [match.span() for match in _SPOKEN_OF.finditer(even)]
        if len({index for index, *_ in decisions}) != 1:
            return Options(texts, places, labels, counted, None, None, False, mentions)
        index, start, end, named = decisions[-1]
        return Options(texts, places, labels, counted, index, (start, end), named, mentions)
    return None


Found = tuple[list[str], list[tuple[int, int]], list[str]]


def _labelled(text: str, pattern: re.Pattern[str]) -> Found | None:
    matches = list(pattern.finditer(text))[:60]
    labels = [_label(next(x for x in (*match.groupdict().values(),) if x)) for match in matches]
    # The first row of labels that are all different and in order is the list.
    kept: list[int] = []
    for k, label in enumerate(labels):
        if not kept and label not in ("a", "0", "1"):
            continue
        if kept and _rank(label) != _rank(labels[kept[-1]]) + 1:
            if len(kept) >= 2:
                break
            kept = []
            if label not in ("a", "0", "1"):
                continue
        kept.append(k)
    if len(kept) < 2:
        return None
    texts, places = [], []
    for k, after in zip(kept, [*kept[1:], None], strict=True):
        begin = matches[k].end()
        if after is not None:
            end = matches[after].start()
        else:
            end = _end_of_last(text, begin, [matches[j].start() for j in kept])
        texts.append(text[begin:end].strip(" \n*_#|"))
        places.append((matches[k].start(), end))
    return texts, places, [labels[k] for k in kept]


def _end_of_last(text: str, begin: int, starts: Sequence[int]) -> int:
    """Where the last option ends: where a decision begins, or the paragraph or sentence it is made of ends."""
    rest = text[begin:]
    ends = [m.start() for m in (_DECIDED.search(rest), _ORDERED.search(rest), _PREDICATED.search(rest)) if m]
    if "\n" not in text[starts[-2] : starts[-1]]:  # inside of a sentence or a line
        sentence = re.search(r"[.!?](?=\s)|\n", rest)
        ends += [sentence.end()] if sentence else []
    blank = re.search(r"\n[ \t]*\n(?![ \t]*(?:[-*\u2022{\[]|\d{1,2}[.)]))", rest)
    ends += [blank.start()] if blank else []
    return begin + min(ends, default=len(rest))


def _in_tables(text: str) -> Found | None:
    for table in tables(text):
        cells = [row[0] if row else "" for row in table.rows]
        labels = [_label(re.sub(rf"^{_KIND}\s*", "", cell, flags=re.IGNORECASE)) for cell in cells]
        said = len(table.head) > 1 and re.match(rf"{_KIND}|\#|no\.?$|id$|name$|label$|$", table.head[0], re.IGNORECASE)
        if not (said and all(map(_is_label, labels))):
            labels = [_label(match["label"]) for match in map(ROW_LABEL.match, cells) if match]
        if len(labels) == len(cells) > 1 and len(set(labels)) == len(labels):
            return [table.alone(k) for k in range(len(labels))], table.places, labels
    return None


_FINDERS = (_CALLED, None, _LETTERED, _COUNTED)
"""Patterns of labels, in the order in which they are tried; None: rows of tables."""


def _decisions(
    text: str, labels: Sequence[str], places: Sequence[tuple[int, int]], counted: bool
) -> list[tuple[int, int, int, bool]]:
    """Which options are decided for, where, and whether they are called options there."""
    found = []
    for pattern in (_DECIDED, _ORDERED, _PREDICATED):
        for match in pattern.finditer(text):
            if any(a <= match.end() - 1 < b for a, b in places):
                continue
            begin = max(text.rfind("\n", 0, match.start()) + 1, _sentence(text, match.start()))
            end = re.compile(r"[.!?;](?=\s|\Z)|\n|\Z").search(text, match.end())
            assert end is not None
            sentence = text[begin : end.end()]
            if _OPEN.search(re.sub(r"\bno(?:t|w)? only\b", "", sentence)):
                continue
            named = True
            if pattern is _ORDERED:
                order = match["order"].lower()
                last = len(labels) - 1
                if order in ("latter", "former"):
                    index = {"former": 0, "latter": 1}[order] if last == 1 else -1
                else:
                    index = last if order == "last" else ORDINALS.index(order)
            else:
                label = _label(match["label"] or match["bare"])
                named = bool(match["label"]) or not label.isdigit()
                index = labels.index(label) if label in labels else -1
                if counted and not named and re.match(r"\s*(?:\w|%|,\s*\d)", text[match.end() :]):
                    continue  # a number of something
            found.append((index if index < len(labels) else -1, begin, end.end(), named))
    return [each for each in found if each[0] >= 0] if all(each[0] >= 0 for each in found) else []


def _sentence(text: str, at: int) -> int:
    """Where the sentence begins in which `at` is."""
    ends = [match.end() for match in re.finditer(r"[.!?]\s+", text[max(at - 400, 0) : at])]
    return max(at - 400, 0) + (ends[-1] if ends else 0)


def _label(text: str) -> str:
    text = text.strip(" ()*_.:").casefold()
    return str(UNITS.index(text)) if text in UNITS else text


def _is_label(text: str) -> bool:
    return bool(re.fullmatch(r"[a-h]|\d{1,2}", text))


def _rank(label: str) -> int:
    return int(label) if label.isdigit() else ord(label[:1] or "`") - ord("a") + 1000
