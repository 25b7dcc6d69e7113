"""Search of sentences and lines for numbers that they assign to names.

Examples: `pay 2 for cleaning, nothing for eating`, `the first should be 1`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from llmrl.llms.reading.non_answer_text import is_example
from llmrl.llms.reading.number_parser import NUMBER_IN_DIGITS, NUMBER_IN_WORDS, ORDINALS
from llmrl.llms.reading.word_lists import load_pattern
from llmrl.llms.reply_cleaning import blank_spans

_MONEY = r"(?:[$\u20ac\u00a3\u00a5]\s?)?"
_DIGITS = rf"{_MONEY}(?<![\w.])(?:{NUMBER_IN_DIGITS})(?![\w]|\.\d)"
_NUMBER = re.compile(rf"(?P<digits>{_DIGITS})|(?<![\w.-])(?P<words>{NUMBER_IN_WORDS})(?![\w-])", re.IGNORECASE)
_NUM = rf"(?:{_MONEY}(?<![\w.])[+-]?(?:\d{{1,20}}(?:\.\d{{1,20}})?|\.\d{{1,20}})\s?%?)"
# _NUM is part of other patterns; _NUMBER finds numbers in digits and in words.
_PLURAL_NOUNS = r"(?:brackets?|knobs?|levers?|rates?|numbers?|parameters?|params?|values?|weights?|tiers?|bands?|ones?)"
# Numbers that are not assigned to a name: old values, measured values, and numbers of turns and of names.
_IRRELEVANT = re.compile(
    rf"\b(?:generations?|gen|rounds?|iterations?|rows?|steps?|turns?|proposal|context)\b[\s#:*]{{0,3}}(?:number )?"
    rf"\d{{1,6}}(?: (?:and|to|-) \d{{1,6}})?(?![\w.%]*[\w%])|"
    rf"\b(?:payoff|return|score)\b[\s:=]{{0,3}}(?:of |was |is )?{_NUM}(?![\w.]*\w)|"
    rf"\b(?:instead of|rather than|compared (?:to|with)|relative to|up from|down from|(?:which )?(?:was|were)(?: at)?|"
    rf"previously|formerly|before it was|not)\s+{_NUM}(?![\w.]*\w)|"
    rf"\b(?:two|three|four|five|six|all|\d{{1,2}})\s+{_PLURAL_NOUNS}\b|"
    r"\bfrom (?:the )?(?:lowest|bottom|poorest|first|low) (?:\w+ )?to (?:the )?(?:highest|top|richest|last|"
    r"high)(?: \w+)?",
    re.IGNORECASE,
)
_SLASHED = re.compile(rf"{_NUM}(?:/{_NUM}){{2,}}")
_PARENTHESIS = re.compile(r"\((?P<inner>[^()\n]{0,120})\)")
_NUMERIC_ASIDE = re.compile(rf"\s*=?\s*{_NUM}(?: ?[A-Za-z%\u00b0]{{1,8}}|(?:\s*[,/;]\s*{_NUM})+)?\s*")
_FROM_TO = re.compile(
    rf"\bfrom\s+{_NUM}\s*(?:[A-Za-z]+\s)?(?:to|down to|up to|->|\u2192)\s*(?P<final>{_NUM})(?![\w.]*\w)", re.IGNORECASE
)
_CHANGE = re.compile(
    rf"\bby\s+{_NUM}\s*(?:[A-Za-z]+\s)?,?\s*(?:to|so (?:that )?(?:it|this) (?:is|becomes)|giving|which (?:gives|makes)|"
    rf"->|=>|=|\u2192)\s*(?P<final>{_NUM})(?![\w.]*\w)",
    re.IGNORECASE,
)
_PRECISE_RANGE = re.compile(
    rf"\b(?:between|from)\s+{_NUM}\s*(?:and|to|-)\s*{_NUM},?\s*(?:\(\s*)?(?:say|namely|more exactly|precisely|"
    rf"specifically),?"
    rf"\s*(?:at )?(?P<final>{_NUM})(?![\w.]*\w)",
    re.IGNORECASE,
)
_ARROW = re.compile(rf"{_NUM}\s*(?:->|=>|\u2192|\u27f6)\s*(?P<final>{_NUM})(?![\w.]*\w)")
_BOUND = re.compile(
    rf"(?:\b(?:at least|at most|more than|less than|no (?:more|less|lower|higher) than|up to|above|below|over|"
    rf"under|around|"
    rf"about|approximately|roughly|near|close to|nearly|almost|by|between|minimum of|maximum of|or|times|exceed|"
    rf"beyond)|"
    rf"[~<>\u2248\u2264\u2265\u00b1\u00d7])\s*{_NUM}|"
    rf"{_NUM}\s*(?:-|\u2013|\.\.|to|or|\u00b1|~)\s*{_NUM}|{_NUM}\s*(?:or (?:so|more|less|higher|lower)|upwards|"
    rf"downwards|-ish)\b",
    re.IGNORECASE,
)
_PAST = load_pattern("reports_of_numbers")
_INTENTION = load_pattern("intentions")
_HEDGE = load_pattern("hedges")
_NOT = re.compile(r"\b(?:not|never|avoid|without)\b|n't\b", re.IGNORECASE)
_CONJUNCTION = re.compile(r"\b(?:so|therefore|thus|hence|but|and (?:it|they))\b|;", re.IGNORECASE)
_LINK = re.compile(
    r"(?:\A|\b(?:to|is|at|of|be|are|gets?|receives?|pays?|paid|with|as|becomes?|stays?|remains?|earns?|costs?|by|"
    r"(?:set|fix|put|keep|paid|taxed|charged)(?: to| at)?|exactly|only|again|just|it|them|auf|\u4e3a|"
    r"\u8bbe\u4e3a)|[:=\uff1a,(\u2192|-]|->|=>)"
    r"[\s*_`\"'$]*\Z",
    re.IGNORECASE,
)
_FOR = re.compile(
    r"\A[\s*_`\"']*(?:\w+[\s*_`]+){0,3}?(?:for|to|at|on|in|as|per)[\s*_`\"']+(?:(?:the|an?|any|each|every|all|those|agents?|"
    r"players?|lever|payment|price|\w+ing)[\s*_`\"']+){0,3}\Z|\A[\s*_`\"']{1,4}\Z",
    re.IGNORECASE,
)
_ENUMERATION = re.compile(
    r"[\s,;/&+*_`\"'=]*(?:and|as well as|plus|und|et|y)?[\s,*_`\"']*(?:the|for|to|at|on|both)?[\s*_`\"']*",
    re.IGNORECASE,
)
_REST_NAME = r"(?:all )?(?:the )?(?:others|rest|remaining \w+|other \w+)\b|(?:every|any)thing else\b"
_ALL_NAMES = r"\b(?:all|each|every|both)\b(?: (?:of )?(?:them|the|three|two|four|five)\b)?(?: (?:\w+s|one|\w+)\b)?"
_PREPOSITION = re.compile(r"\s+(?:\w+\s+)?(?:for|to|at|in)\b")
_PERCENT = re.compile(r"\s?(?:%|per ?cent\b|percent\b)")
_BOUND_WORD = re.compile(r"(?:between|from|about|around|over|under|by)\s*\Z")
_SENTENCES = re.compile(r"(?<=[.!?\u3002])\s+|\n+|\u3002|;\s")
_PROPOSAL = load_pattern("proposals")
_NOUNS = "number|parameter|param|bracket|value|rate|one|entry|knob|weight|coefficient|tier|band|lever"
_LEVELS = ("lowest|bottom|poorest|low", "middle|mid|medium|central", "highest|top|richest|high")


@dataclass(frozen=True)
class _Token:
    """Name (`positions` are its indices, from 0) or number (`text` is the number, "" for a name) in a sentence."""

    start: int
    end: int
    positions: tuple[int, ...] = ()
    text: str = ""


class AssignmentFinder:
    """Finder of the numbers that sentences assign to names.

    Args:
        names: names of the numbers.
        parse_number: function from a text and the index of a name to a number; None if the text is not a number.
    """

    def __init__(self, names: Sequence[str], parse_number: Callable[[str, int], float | None]) -> None:
        self.d, self.parse_number = len(names), parse_number
        self._all = tuple(range(self.d))
        by_length = sorted(range(self.d), key=lambda i: -len(names[i]))
        alternatives = [f"(?P<n{i}>{_build_name_pattern(names, i)})" for i in by_length]
        if not any(name.casefold() in ("other", "others", "rest") for name in names):
            alternatives.append(f"(?P<rest>{_REST_NAME})")
        self._name_or_rest = re.compile(rf"(?<![\w.])(?:{'|'.join(alternatives)})(?![\w\]])", re.IGNORECASE)
        self._any_name = re.compile(rf"(?<!\w)(?:{'|'.join(map(spelling_pattern, names))})(?!\w)", re.IGNORECASE)

    def find_numbers(self, text: str) -> list[float] | None:
        """Return the `d` numbers that sentences assign; None if one is missing or has different values."""
        numbers: dict[int, float] = {}
        rest_numbers: set[float] = set()
        for sentence in _intention_sentences(text):
            for token, value in self._pair_tokens(sentence):
                for position in token.positions or (-1,):  # -1: "all others"
                    number = self.parse_number(value.text, max(position, 0))
                    if number is None or (position >= 0 and numbers.setdefault(position, number) != number):
                        return None
                    if position < 0:
                        rest_numbers.add(number)
        if len(rest_numbers) == 1 and len(numbers) < self.d:
            numbers = dict.fromkeys(self._all, rest_numbers.pop()) | numbers
        if len(numbers) == self.d:
            return [numbers[i] for i in self._all]
        return None if numbers else self._find_unnamed_list(text)

    def _pair_tokens(self, sentence: str) -> list[tuple[_Token, _Token]]:
        """Return pairs of a name and its number in a sentence; [] if the assignment is not certain."""
        tokens, sentence = self._find_tokens(sentence)
        token_types = "".join("V" if token.text else "N" for token in tokens)  # names and values
        half = len(tokens) // 2
        if len(tokens) > 3 and token_types in ("N" * half + "V" * half, "V" * half + "N" * half):
            names = [token for token in tokens if not token.text]
            values = [token for token in tokens if token.text]
            return list(zip(names, values, strict=True)) if _is_enumeration(sentence, names) else []
        if not re.fullmatch(r"(?:N+V)+|(?:VN+)+", token_types):
            return []
        pairs: list[tuple[_Token, _Token]] = []
        for span in re.finditer("N+V" if token_types[0] == "N" else "VN+", token_types):
            group = tokens[span.start() : span.end()]
            names, [value] = [token for token in group if not token.text], [token for token in group if token.text]
            if token_types[0] == "N":
                is_assigned = _is_link(sentence[names[-1].end : value.start])
            else:
                is_assigned = bool(_FOR.match(sentence[value.end : names[0].start]))
            if not is_assigned or not _is_enumeration(sentence, names):
                return []
            pairs += [(name, value) for name in names]
        return pairs

    def _find_tokens(self, sentence: str) -> tuple[list[_Token], str]:
        """Return names and numbers in order, and the sentence with blanks for names and irrelevant numbers.

        There are no tokens if the sentence contains a range, a change, or a bound.
        """
        names = [
            _Token(
                match.start(), match.end(), () if match.lastgroup == "rest" else (int((match.lastgroup or "n0")[1:]),)
            )
            for match in self._name_or_rest.finditer(sentence)
        ]
        if not names and (match := re.search(_ALL_NAMES, sentence, re.IGNORECASE)):
            names = [_Token(match.start(), match.end(), self._all)]
        statement = _simplify(blank_spans(sentence, [(name.start, name.end) for name in names]))
        if not names or _BOUND.search(statement):
            return [], statement
        values = []
        for match in _NUMBER.finditer(statement):
            before, after = statement[: match.start()], statement[match.end() :]
            is_assigned = match["digits"] or _is_link(before[-60:]) or _PREPOSITION.match(after)
            if is_assigned:
                text, end = match[0].strip().lstrip("$\u20ac\u00a3\u00a5 "), match.end()
                if (unit := _PERCENT.match(after)) and "%" not in text and "cent" not in text:
                    text, end = f"{text} %", end + unit.end()
                values.append(_Token(match.start(), end, text=text))
        return sorted([*names, *values], key=lambda token: token.start) if values else [], statement

    def _find_unnamed_list(self, text: str) -> list[float] | None:
        """Return the only list of `d` numbers without names that sentences propose; else None."""
        if self.d < 2:
            return None
        separator = r"\s*(?:,\s*and\b|,|/|\||\band\b)\s*"
        chain = re.compile(rf"(?<![\w.,/]){_NUM}(?:{separator}{_NUM}){{{self.d - 1}}}(?![\w%]|\.\d|{separator}{_NUM})")
        lists: set[tuple[float | None, ...]] = set()
        for sentence in _intention_sentences(text):
            cue = _PROPOSAL.search(sentence)
            statement = _IRRELEVANT.sub(lambda m: " " * len(m[0]), sentence)
            if cue is None or self._any_name.search(statement):
                continue
            statement = _simplify(statement)
            for match in chain.finditer(statement, cue.start()):
                before = statement[: match.start()]
                if not (_BOUND.search(before[-12:] + "1") and _BOUND_WORD.search(before)):
                    parts = re.split(separator, match[0])
                    lists.add(tuple(self.parse_number(part.strip(), i) for i, part in enumerate(parts)))
        numbers = lists.pop() if len(lists) == 1 else (None,)
        return None if None in numbers else [number for number in numbers if number is not None]


def _intention_sentences(text: str) -> Iterator[str]:
    """Yield all sentences except hedges, examples, very long ones, and reports of the past without an intention."""
    for sentence in _SENTENCES.split(text)[:300]:
        if not (
            len(sentence) > 2000
            or _HEDGE.search(sentence)
            or is_example(sentence[:400])
            or (_PAST.search(_PARENTHESIS.sub(" ", sentence)) and not _INTENTION.search(sentence))
        ):
            yield sentence


def _simplify(sentence: str) -> str:
    """Return a sentence with blanks for remarks in parentheses and irrelevant numbers.

    A range or change with a final number is replaced by this number.
    """
    sentence = _PARENTHESIS.sub(lambda m: m[0] if _NUMERIC_ASIDE.fullmatch(m["inner"]) else " " * len(m[0]), sentence)
    sentence = _SLASHED.sub(lambda m: m[0].replace("/", ";"), sentence)
    for pattern in (_PRECISE_RANGE, _FROM_TO, _CHANGE, _ARROW):
        sentence = pattern.sub(lambda m: f"{' to ':<{m.start('final') - m.start()}}{m['final']}", sentence)
    return _IRRELEVANT.sub(
        lambda m: ("." if re.match("was|were|not", m[0], re.IGNORECASE) else " ") * len(m[0]), sentence
    )


def _is_enumeration(sentence: str, names: Sequence[_Token]) -> bool:
    """Return whether there are only list separators between the names."""
    return all(_ENUMERATION.fullmatch(sentence[first.end : second.start]) for first, second in pairwise(names))


def _is_link(gap: str) -> bool:
    """Return whether `gap`, the text between a name and a number, assigns the number to the name."""
    clause = _CONJUNCTION.split(gap)[-1]
    return (
        len(gap) < 160
        and not _NOT.search(clause)
        and bool(_LINK.search(gap.rstrip(" $\u20ac\u00a3")) or not gap.strip(" *_`\"'"))
    )


def spelling_pattern(name: str) -> str:
    r"""Return a regular expression for all spellings of a name, e.g. `Rate 1`, `rate\_1` and `rate-1` for `rate_1`."""
    return r"[\s_\\\-]{0,3}".join(re.escape(piece) for piece in re.findall(r"[^\W\d_]+|\d+|[^\w\s]", name))


def _build_name_pattern(names: Sequence[str], i: int) -> str:
    """Return a regular expression that matches a name, its -ing form, its ordinal number and its index."""
    name = names[i]
    spelling = spelling_pattern(name)
    if name.casefold() in ("other", "others"):
        patterns = [
            r"(?:any|every)thing else",
            r"(?:all |any )?others?(?: (?:actions?|activit(?:y|ies)|things?|behaviou?rs?))?",
        ]
    elif name.isalpha():
        patterns = [rf"{spelling}(?:ing|s)?"] + ([rf"{re.escape(name[:-1])}ing"] if name.endswith("e") else [])
    else:
        patterns = [spelling, *_ordinal_patterns(names, i)]
    gloss = r"(?:[ \t*_`]*\([^()\n]{1,60}\)(?=[ \t*_`]*[:=\uff1a]))?"
    return f"(?:{'|'.join(patterns)}){gloss}"


def _ordinal_patterns(names: Sequence[str], i: int) -> list[str]:
    """Return patterns for the ordinals and indices of a name that contains a number, e.g. `second rate` for `rate_2`.

    The family of a name consists of all names that are equal except for the number.
    """
    parts = re.match(r"\W*([^\W\d_]*)[\W_]*(\d*)", names[i])
    assert parts is not None
    stem, digits = parts[1], parts[2]
    family = [k for k, name in enumerate(names) if re.match(rf"\W*{re.escape(stem)}[\W_]*\d+\W*\Z", name)]
    if not digits or i not in family:
        return []
    order = family.index(i)
    ordinal = rf"{order + 1}(?:st|nd|rd|th)" + (f"|{ORDINALS[order]}" if order < len(ORDINALS) else "")
    noun = rf"(?:{re.escape(stem)}|{_NOUNS})"
    if len(family) < len(names):
        return [rf"(?:{ordinal})\s+{re.escape(stem)}"]
    patterns = [rf"(?:{ordinal})(?:[\s_]+(?:tax[\s_]+)?{noun})?", rf"{noun}\s+(?:number\s+)?{digits}"]
    if stem.casefold() in ("rate", "tax", "bracket") and len(names) <= 3:
        levels = _LEVELS if len(names) == 3 else (_LEVELS[0], _LEVELS[-1])
        patterns.append(rf"(?:{levels[order]})(?:[\s-]+(?:tax|income|earning)?[\s-]*{noun})?(?: earners)?")
    return patterns
