"""Search of a reply for options that the reply itself lists under labels, and for its decision among them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from llmrl.llms.reading.latex import strip_latex
from llmrl.llms.reading.number_parser import ORDINALS, UNITS
from llmrl.llms.reading.tables import tables
from llmrl.llms.reply_cleaning import to_ascii

_KIND = r"(?:option|candidate|plan|choice|alternative|variant|strategy|approach|possibility|idea)"
_NUMBER = r"(?:\d{1,2}|one|two|three|four|five|six)"
_OPTION_LABEL = re.compile(
    rf"(?:^[ \t>#*_\-\u2022]{{0,12}}|(?<=[.;,:!?])[ \t]+[*_]{{0,2}}|(?<=\band )){_KIND}[ \t]*(?:#|no\.?[ ]?|number )?"
    rf"[ \t]*\(?(?P<label>{_NUMBER}|(?-i:[A-H]))\)?(?![\w'])[ \t*_]*(?P<gloss>\([^()\n]{{1,60}}\))?[ \t*_]*"
    r"(?:[:.)=]|\bis\b(?: to\b|:)?|\bwould be\b(?: to\b)?|[\u2013\u2014-]|\n)[ \t*_]*",
    re.IGNORECASE | re.MULTILINE,
)
_LETTERED = re.compile(
    r"^[ \t>#*_\-\u2022]{0,12}(?:\((?P<inner>[A-Ha-h])\)|(?P<label>[A-H])[ \t*_]{0,3}[).:])[ \t*_]*(?=\S)", re.MULTILINE
)
ROW_LABEL = re.compile(r"\A\(?(?P<label>[A-H]|\d{1,2})[.):][ \t]+(?=\S)")
"""Label of an option in a cell that also contains its text."""
_DIGIT_LABEL = re.compile(r"(?:^[ \t>#*_]{0,8}|(?<=[:,;])[ \t]+\(?)(?P<label>\d{1,2})[.):][ \t*_]+(?=\S)", re.MULTILINE)
_OPTION_NOUN = rf"(?:{_KIND}|one|proposal|action|move|row|point|vector)"
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
_DECISION = re.compile(
    rf"{_DECIDES}[\s*_:=>\u2192\"'`$-]*(?:is[\s:*_]+)?(?:to |the |for |with |use |take |go with ){{0,3}}[\s*_\"'`({{]*"
    rf"(?:(?P<kind>{_KIND}|number|no\.|\#)[\s*_]*#?[\s*_(]*(?P<label>{_NUMBER}|(?-i:[A-H]))|"
    r"(?P<bare>\d{1,2}|(?-i:[A-H])|(?<=\()(?-i:[a-h])(?=\))))(?![\w'%.]*[\w%])",
    re.IGNORECASE | re.MULTILINE,
)
_ORDINAL = "|".join(ORDINALS)
_ORDERED = re.compile(
    rf"{_DECIDES}[\s*_:=>\"'`$-]*(?:is[\s:*_]+)?(?:to |for |with |use |take |go with ){{0,3}}the[\s*_]+"
    rf"(?P<order>{_ORDINAL}|last|latter|former)\b[\s*_]*(?:{_OPTION_NOUN}\b|(?=[.,;:!\n*]|\Z|because|since|as\b))",
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
_OPTION_MENTION = re.compile(rf"\b{_KIND}[\s*_]*(?:{_NUMBER}|(?-i:[A-H]))\b", re.IGNORECASE)


@dataclass(frozen=True)
class Options:
    """Options under labels.

    Attributes:
        texts: text of each option; for rows of a table, with the table's head.
        spans: spans of the options, including labels.
        labels: label of each option.
        has_number_labels: whether the labels are bare numbers, which could also be numbers of the question.
        chosen: index of the option that the reply decides for, from 0; None: it decides for none.
        decision_span: span of the decision; None: there is none.
        is_explicit: whether the decision calls it an option, or refers to its position in the list.
        mentions: spans where labels of options are mentioned.
    """

    texts: list[str]
    spans: list[tuple[int, int]]
    labels: list[str]
    has_number_labels: bool
    chosen: int | None
    decision_span: tuple[int, int] | None
    is_explicit: bool
    mentions: list[tuple[int, int]]

    @property
    def end(self) -> int:
        """End of the last option in the text."""
        return max(b for _, b in self.spans)


def find_options(text: str) -> Options | None:
    """Return the options that a reply lists itself, at least two; None if there are none."""
    ascii_text = strip_latex(to_ascii(text))
    for pattern in _FINDERS:
        options = _in_tables(ascii_text) if pattern is None else _find_labels(ascii_text, pattern)
        if options is None:
            continue
        texts, spans, labels = options
        has_digits = pattern is _DIGIT_LABEL
        decisions = _decisions(ascii_text, labels, spans, has_digits)
        if not decisions and pattern in (_LETTERED, _DIGIT_LABEL):
            continue  # an ordinary list
        mentions = [] if has_digits else [match.span() for match in _OPTION_MENTION.finditer(ascii_text)]
        if len({index for index, *_ in decisions}) != 1:
            return Options(texts, spans, labels, has_digits, None, None, False, mentions)
        index, start, end, is_explicit = decisions[-1]
        return Options(texts, spans, labels, has_digits, index, (start, end), is_explicit, mentions)
    return None


LabeledTexts = tuple[list[str], list[tuple[int, int]], list[str]]


def _find_labels(text: str, pattern: re.Pattern[str]) -> LabeledTexts | None:
    """Return the texts, spans and labels of labeled options; None if there are fewer than two."""
    matches = list(pattern.finditer(text))[:60]
    labels = [_normalize_label(next(x for x in (*match.groupdict().values(),) if x)) for match in matches]
    # The first sequence of distinct labels in ascending order is the list of options.
    indices: list[int] = []
    for k, label in enumerate(labels):
        if not indices and label not in ("a", "0", "1"):
            continue
        if indices and _rank(label) != _rank(labels[indices[-1]]) + 1:
            if len(indices) >= 2:
                break
            indices = []
            if label not in ("a", "0", "1"):
                continue
        indices.append(k)
    if len(indices) < 2:
        return None
    texts, spans = [], []
    for k, next_index in zip(indices, [*indices[1:], None], strict=True):
        begin = matches[k].end()
        if next_index is not None:
            end = matches[next_index].start()
        else:
            end = _last_end(text, begin, [matches[j].start() for j in indices])
        texts.append(text[begin:end].strip(" \n*_#|"))
        spans.append((matches[k].start(), end))
    return texts, spans, [labels[k] for k in indices]


def _last_end(text: str, begin: int, starts: Sequence[int]) -> int:
    """Return the end of the last option: the start of a decision, or the end of its paragraph or sentence."""
    rest = text[begin:]
    ends = [m.start() for m in (_DECISION.search(rest), _ORDERED.search(rest), _PREDICATED.search(rest)) if m]
    if "\n" not in text[starts[-2] : starts[-1]]:  # inside of a sentence or a line
        sentence = re.search(r"[.!?](?=\s)|\n", rest)
        ends += [sentence.end()] if sentence else []
    blank = re.search(r"\n[ \t]*\n(?![ \t]*(?:[-*\u2022{\[]|\d{1,2}[.)]))", rest)
    ends += [blank.start()] if blank else []
    return begin + min(ends, default=len(rest))


def _in_tables(text: str) -> LabeledTexts | None:
    """Return the texts, spans and labels of the options in the rows of a table; None if there are none."""
    for table in tables(text):
        cells = [row[0] if row else "" for row in table.rows]
        labels = [_normalize_label(re.sub(rf"^{_KIND}\s*", "", cell, flags=re.IGNORECASE)) for cell in cells]
        has_label_column = len(table.head) > 1 and re.match(
            rf"{_KIND}|\#|no\.?$|id$|name$|label$|$", table.head[0], re.IGNORECASE
        )
        if not (has_label_column and all(map(_is_label, labels))):
            labels = [_normalize_label(match["label"]) for match in map(ROW_LABEL.match, cells) if match]
        if len(labels) == len(cells) > 1 and len(set(labels)) == len(labels):
            return [table.single_row(k) for k in range(len(labels))], table.row_spans, labels
    return None


_FINDERS = (_OPTION_LABEL, None, _LETTERED, _DIGIT_LABEL)
"""Patterns of labels, in the order in which they are tried; None: rows of tables."""


def _decisions(
    text: str, labels: Sequence[str], spans: Sequence[tuple[int, int]], has_digits: bool
) -> list[tuple[int, int, int, bool]]:
    """Return the index of each option that is decided for, the span, and whether the text calls it an option."""
    decisions = []
    for pattern in (_DECISION, _ORDERED, _PREDICATED):
        for match in pattern.finditer(text):
            if any(option_start <= match.end() - 1 < option_end for option_start, option_end in spans):
                continue
            begin = max(text.rfind("\n", 0, match.start()) + 1, _sentence_start(text, match.start()))
            end = re.compile(r"[.!?;](?=\s|\Z)|\n|\Z").search(text, match.end())
            assert end is not None
            sentence = text[begin : end.end()]
            if _OPEN.search(re.sub(r"\bno(?:t|w)? only\b", "", sentence)):
                continue
            is_explicit = True
            if pattern is _ORDERED:
                order = match["order"].lower()
                last = len(labels) - 1
                if order in ("latter", "former"):
                    index = {"former": 0, "latter": 1}[order] if last == 1 else -1
                else:
                    index = last if order == "last" else ORDINALS.index(order)
            else:
                label = _normalize_label(match["label"] or match["bare"])
                is_explicit = bool(match["label"]) or not label.isdigit()
                index = labels.index(label) if label in labels else -1
                if has_digits and not is_explicit and re.match(r"\s*(?:\w|%|,\s*\d)", text[match.end() :]):
                    continue  # a quantity
            decisions.append((index if index < len(labels) else -1, begin, end.end(), is_explicit))
    return (
        [decision for decision in decisions if decision[0] >= 0]
        if all(decision[0] >= 0 for decision in decisions)
        else []
    )


def _sentence_start(text: str, position: int) -> int:
    """Return the start of the sentence that contains a position."""
    ends = [match.end() for match in re.finditer(r"[.!?]\s+", text[max(position - 400, 0) : position])]
    return max(position - 400, 0) + (ends[-1] if ends else 0)


def _normalize_label(text: str) -> str:
    """Return a label in lower case, without punctuation and with a digit for a number word."""
    text = text.strip(" ()*_.:").casefold()
    return str(UNITS.index(text)) if text in UNITS else text


def _is_label(text: str) -> bool:
    """Return whether a text is a letter or number that can label an option."""
    return bool(re.fullmatch(r"[a-h]|\d{1,2}", text))


def _rank(label: str) -> int:
    """Return a number that increases by 1 from one label to the next."""
    return int(label) if label.isdigit() else ord(label[:1] or "`") - ord("a") + 1000
