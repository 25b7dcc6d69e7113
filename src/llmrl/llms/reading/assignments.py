"""Search for numbers that sentences and lines assign to names.

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

_CURRENCY_SIGN = r"(?:[$\u20ac\u00a3\u00a5]\s?)?"
_DIGITS = rf"{_CURRENCY_SIGN}(?<![\w.])(?:{NUMBER_IN_DIGITS})(?![\w]|\.\d)"
_NUMBER = re.compile(rf"(?P<digits>{_DIGITS})|(?<![\w.-])(?P<words>{NUMBER_IN_WORDS})(?![\w-])", re.IGNORECASE)
_DECIMAL = rf"(?:{_CURRENCY_SIGN}(?<![\w.])[+-]?(?:\d{{1,20}}(?:\.\d{{1,20}})?|\.\d{{1,20}})\s?%?)"
# _DECIMAL is a part of other patterns; _NUMBER finds numbers in digits and in words.
_PLURAL_NOUNS = r"(?:brackets?|knobs?|levers?|rates?|numbers?|parameters?|params?|values?|weights?|tiers?|bands?|ones?)"
# Numbers that are not assigned to a name: old values, measured values, and numbers of turns and of names.
_IRRELEVANT_NUMBER = re.compile(
    rf"\b(?:generations?|gen|rounds?|iterations?|rows?|steps?|turns?|proposal|"
    rf"context)\b[\s#:*]{{0,3}}(?:number )?\d{{1,6}}(?: (?:and|to|-) \d{{1,6}})?(?![\w.%]*[\w%])|\b(?:payoff|return|"
    rf"score)\b[\s:=]{{0,3}}(?:of |was |is )?{_DECIMAL}(?![\w.]*\w)|\b(?:instead of|rather than|compared (?:to|with)|"
    rf"relative to|up from|down from|(?:which )?(?:was|were)(?: at)?|previously|formerly|before it was|"
    rf"not)\s+{_DECIMAL}(?![\w.]*\w)|\b(?:two|three|four|five|six|all|\d{{1,2}})\s+{_PLURAL_NOUNS}\b|"
    r"\bfrom (?:the )?(?:lowest|bottom|poorest|first|low) (?:\w+ )?to (?:the )?(?:highest|top|richest|last|"
    r"high)(?: \w+)?",
    re.IGNORECASE,
)
_SLASH_SEPARATED_NUMBERS = re.compile(rf"{_DECIMAL}(?:/{_DECIMAL}){{2,}}")
_PARENTHESIS = re.compile(r"\((?P<inner>[^()\n]{0,120})\)")
_NUMERIC_ASIDE = re.compile(rf"\s*=?\s*{_DECIMAL}(?: ?[A-Za-z%\u00b0]{{1,8}}|(?:\s*[,/;]\s*{_DECIMAL})+)?\s*")
_CHANGE_FROM_TO = re.compile(
    rf"\bfrom\s+{_DECIMAL}\s*(?:[A-Za-z]+\s)?(?:to|down to|up to|->|\u2192)\s*(?P<final>{_DECIMAL})(?![\w.]*\w)",
    re.IGNORECASE,
)
_CHANGE_BY = re.compile(
    rf"\bby\s+{_DECIMAL}\s*(?:[A-Za-z]+\s)?,?\s*(?:to|so (?:that )?(?:it|this) (?:is|becomes)|giving|which (?:gives|"
    rf"makes)|->|=>|=|\u2192)\s*(?P<final>{_DECIMAL})(?![\w.]*\w)",
    re.IGNORECASE,
)
_PRECISE_RANGE = re.compile(
    rf"\b(?:between|from)\s+{_DECIMAL}\s*(?:and|to|-)\s*{_DECIMAL},?\s*(?:\(\s*)?(?:say|namely|more exactly|precisely|"
    rf"specifically),?\s*(?:at )?(?P<final>{_DECIMAL})(?![\w.]*\w)",
    re.IGNORECASE,
)
_CHANGE_ARROW = re.compile(rf"{_DECIMAL}\s*(?:->|=>|\u2192|\u27f6)\s*(?P<final>{_DECIMAL})(?![\w.]*\w)")
_BOUND_OR_RANGE = re.compile(
    rf"(?:\b(?:at least|at most|more than|less than|no (?:more|less|lower|higher) than|up to|above|below|over|under|"
    rf"around|about|approximately|roughly|near|close to|nearly|almost|by|between|minimum of|maximum of|or|times|"
    rf"exceed|beyond)|[~<>\u2248\u2264\u2265\u00b1\u00d7])\s*{_DECIMAL}|{_DECIMAL}\s*(?:-|\u2013|\.\.|to|or|\u00b1|"
    rf"~)\s*{_DECIMAL}|{_DECIMAL}\s*(?:or (?:so|more|less|higher|lower)|upwards|downwards|-ish)\b",
    re.IGNORECASE,
)
_PAST_REPORT = load_pattern("reports_of_numbers")
_INTENTION_PHRASE = load_pattern("intentions")
_HEDGE_PHRASE = load_pattern("hedges")
_NEGATION = re.compile(r"\b(?:not|never|avoid|without)\b|n't\b", re.IGNORECASE)
_CONJUNCTION = re.compile(r"\b(?:so|therefore|thus|hence|but|and (?:it|they))\b|;", re.IGNORECASE)
_LINK_BEFORE_NUMBER = re.compile(
    r"(?:\A|\b(?:to|is|at|of|be|are|gets?|receives?|pays?|paid|with|as|becomes?|stays?|remains?|earns?|costs?|by|"
    r"(?:set|fix|put|keep|paid|taxed|charged)(?: to| at)?|exactly|only|again|just|it|them|auf|\u4e3a|\u8bbe\u4e3a)|"
    r"[:=\uff1a,(\u2192|-]|->|=>)[\s*_`\"'$]*\Z",
    re.IGNORECASE,
)
_LINK_AFTER_NUMBER = re.compile(
    r"\A[\s*_`\"']*(?:\w+[\s*_`]+){0,3}?(?:for|to|at|on|in|as|per)[\s*_`\"']+(?:(?:the|an?|any|each|every|all|those|"
    r"agents?|players?|lever|payment|price|\w+ing)[\s*_`\"']+){0,3}\Z|\A[\s*_`\"']{1,4}\Z",
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
_SENTENCE_BREAK = re.compile(r"(?<=[.!?\u3002])\s+|\n+|\u3002|;\s")
_PROPOSAL_PHRASE = load_pattern("proposals")
_NUMBER_NOUNS = "number|parameter|param|bracket|value|rate|one|entry|knob|weight|coefficient|tier|band|lever"
_LEVEL_WORDS = ("lowest|bottom|poorest|low", "middle|mid|medium|central", "highest|top|richest|high")


@dataclass(frozen=True)
class _Token:
    """Name or number in a sentence; `name_indices` are the indices of a name, () for "all others" and for a number."""

    start: int
    end: int
    name_indices: tuple[int, ...] = ()
    number_text: str = ""  # "" for a name


class AssignmentFinder:
    """Finder of the numbers that sentences assign to names.

    Args:
        names: names of the numbers.
        parse_number: function from a text and the index of a name to a number, or to None if the text is no number.
    """

    def __init__(self, names: Sequence[str], parse_number: Callable[[str, int], float | None]) -> None:
        self.d, self.parse_number = len(names), parse_number
        self._all_indices = tuple(range(self.d))
        by_length = sorted(range(self.d), key=lambda i: -len(names[i]))
        alternatives = [f"(?P<n{i}>{_build_name_pattern(names, i)})" for i in by_length]
        if not any(name.casefold() in ("other", "others", "rest") for name in names):
            alternatives.append(f"(?P<rest>{_REST_NAME})")
        self._name_or_rest = re.compile(rf"(?<![\w.])(?:{'|'.join(alternatives)})(?![\w\]])", re.IGNORECASE)
        self._any_name = re.compile(rf"(?<!\w)(?:{'|'.join(map(build_spelling_pattern, names))})(?!\w)", re.IGNORECASE)

    def find_numbers(self, text: str) -> list[float] | None:
        """Return the numbers that sentences assign to the `d` names; None if one is missing or has different values."""
        numbers: dict[int, float] = {}
        rest_numbers: set[float] = set()
        for sentence in _intention_sentences(text):
            for token, value in self._pair_tokens(sentence):
                for index in token.name_indices or (-1,):  # -1: "all others"
                    number = self.parse_number(value.number_text, max(index, 0))
                    if number is None or (index >= 0 and numbers.setdefault(index, number) != number):
                        return None
                    if index < 0:
                        rest_numbers.add(number)
        if len(rest_numbers) == 1 and len(numbers) < self.d:
            numbers = dict.fromkeys(self._all_indices, rest_numbers.pop()) | numbers
        if len(numbers) == self.d:
            return [numbers[i] for i in self._all_indices]
        return None if numbers else self._find_unnamed_list(text)

    def _pair_tokens(self, sentence: str) -> list[tuple[_Token, _Token]]:
        """Return pairs of a name and its number in a sentence; [] if the assignment is uncertain."""
        tokens, sentence = self._find_tokens(sentence)
        token_types = "".join("V" if token.number_text else "N" for token in tokens)  # names (N), number values (V)
        half = len(tokens) // 2
        if len(tokens) > 3 and token_types in ("N" * half + "V" * half, "V" * half + "N" * half):
            names = [token for token in tokens if not token.number_text]
            values = [token for token in tokens if token.number_text]
            return list(zip(names, values, strict=True)) if _is_enumeration(sentence, names) else []
        if not re.fullmatch(r"(?:N+V)+|(?:VN+)+", token_types):
            return []
        pairs: list[tuple[_Token, _Token]] = []
        for span in re.finditer("N+V" if token_types[0] == "N" else "VN+", token_types):
            group = tokens[span.start() : span.end()]
            names, [value] = [t for t in group if not t.number_text], [t for t in group if t.number_text]
            if token_types[0] == "N":
                is_assigned = _is_assignment_link(sentence[names[-1].end : value.start])
            else:
                is_assigned = bool(_LINK_AFTER_NUMBER.match(sentence[value.end : names[0].start]))
            if not is_assigned or not _is_enumeration(sentence, names):
                return []
            pairs += [(name, value) for name in names]
        return pairs

    def _find_tokens(self, sentence: str) -> tuple[list[_Token], str]:
        """Return names and numbers in order, and the sentence with blanks for names and irrelevant numbers.

        There are no tokens if the sentence contains a range, a bound, or a change without its final number.
        """
        names = [
            _Token(
                match.start(), match.end(), () if match.lastgroup == "rest" else (int((match.lastgroup or "n0")[1:]),)
            )
            for match in self._name_or_rest.finditer(sentence)
        ]
        if not names and (match := re.search(_ALL_NAMES, sentence, re.IGNORECASE)):
            names = [_Token(match.start(), match.end(), self._all_indices)]
        statement = _simplify(blank_spans(sentence, [(name.start, name.end) for name in names]))
        if not names or _BOUND_OR_RANGE.search(statement):
            return [], statement
        values = []
        for match in _NUMBER.finditer(statement):
            before, after = statement[: match.start()], statement[match.end() :]
            if match["digits"] or _is_assignment_link(before[-60:]) or _PREPOSITION.match(after):
                text, end = match[0].strip().lstrip("$\u20ac\u00a3\u00a5 "), match.end()
                if (unit := _PERCENT.match(after)) and "%" not in text and "cent" not in text:
                    text, end = f"{text} %", end + unit.end()
                values.append(_Token(match.start(), end, number_text=text))
        return sorted([*names, *values], key=lambda token: token.start) if values else [], statement

    def _find_unnamed_list(self, text: str) -> list[float] | None:
        """Return the only list of `d` numbers without names that the sentences of a text propose; else None."""
        if self.d < 2:
            return None
        separator = r"\s*(?:,\s*and\b|,|/|\||\band\b)\s*"
        chain = re.compile(
            rf"(?<![\w.,/]){_DECIMAL}(?:{separator}{_DECIMAL}){{{self.d - 1}}}(?![\w%]|\.\d|{separator}{_DECIMAL})"
        )
        lists: set[tuple[float | None, ...]] = set()
        for sentence in _intention_sentences(text):
            proposal_phrase = _PROPOSAL_PHRASE.search(sentence)
            statement = _IRRELEVANT_NUMBER.sub(lambda m: " " * len(m[0]), sentence)
            if proposal_phrase is None or self._any_name.search(statement):
                continue
            statement = _simplify(statement)
            for match in chain.finditer(statement, proposal_phrase.start()):
                before = statement[: match.start()]
                if not (_BOUND_OR_RANGE.search(before[-12:] + "1") and _BOUND_WORD.search(before)):
                    parts = re.split(separator, match[0])
                    lists.add(tuple(self.parse_number(part.strip(), i) for i, part in enumerate(parts)))
        numbers = lists.pop() if len(lists) == 1 else (None,)
        return None if None in numbers else [number for number in numbers if number is not None]


def _intention_sentences(text: str) -> Iterator[str]:
    """Yield all sentences except hedges, examples, very long ones, and reports of the past without an intention."""
    for sentence in _SENTENCE_BREAK.split(text)[:300]:
        if not (
            len(sentence) > 2000
            or _HEDGE_PHRASE.search(sentence)
            or is_example(sentence[:400])
            or (_PAST_REPORT.search(_PARENTHESIS.sub(" ", sentence)) and not _INTENTION_PHRASE.search(sentence))
        ):
            yield sentence


def _simplify(sentence: str) -> str:
    """Return a sentence with blanks for remarks in parentheses and irrelevant numbers.

    A range or change with a final number is replaced by this number.
    """
    sentence = _PARENTHESIS.sub(lambda m: m[0] if _NUMERIC_ASIDE.fullmatch(m["inner"]) else " " * len(m[0]), sentence)
    sentence = _SLASH_SEPARATED_NUMBERS.sub(lambda m: m[0].replace("/", ";"), sentence)
    for pattern in (_PRECISE_RANGE, _CHANGE_FROM_TO, _CHANGE_BY, _CHANGE_ARROW):
        sentence = pattern.sub(lambda m: f"{' to ':<{m.start('final') - m.start()}}{m['final']}", sentence)
    return _IRRELEVANT_NUMBER.sub(
        lambda m: ("." if re.match("was|were|not", m[0], re.IGNORECASE) else " ") * len(m[0]), sentence
    )


def _is_enumeration(sentence: str, names: Sequence[_Token]) -> bool:
    """Return whether there are only list separators between the names."""
    return all(_ENUMERATION.fullmatch(sentence[first.end : second.start]) for first, second in pairwise(names))


def _is_assignment_link(gap: str) -> bool:
    """Return whether `gap`, the text between a name and a number, assigns the number to the name."""
    return (
        len(gap) < 160
        and not _NEGATION.search(_CONJUNCTION.split(gap)[-1])
        and bool(_LINK_BEFORE_NUMBER.search(gap.rstrip(" $\u20ac\u00a3")) or not gap.strip(" *_`\"'"))
    )


def build_spelling_pattern(name: str) -> str:
    r"""Return a regular expression for all spellings of a name, e.g. `Rate 1`, `rate\_1` and `rate-1` for `rate_1`."""
    return r"[\s_\\\-]{0,3}".join(re.escape(piece) for piece in re.findall(r"[^\W\d_]+|\d+|[^\w\s]", name))


def _build_name_pattern(names: Sequence[str], i: int) -> str:
    """Return a regular expression of `names[i]`: other spellings, its -ing form, its ordinal number and its index."""
    name = names[i]
    spelling = build_spelling_pattern(name)
    if name.casefold() in ("other", "others"):
        patterns = [
            r"(?:any|every)thing else",
            r"(?:all |any )?others?(?: (?:actions?|activit(?:y|ies)|things?|behaviou?rs?))?",
        ]
    elif name.isalpha():
        patterns = [rf"{spelling}(?:ing|s)?"] + ([rf"{re.escape(name[:-1])}ing"] if name.endswith("e") else [])
    else:
        patterns = [spelling, *_build_ordinal_patterns(names, i)]
    gloss = r"(?:[ \t*_`]*\([^()\n]{1,60}\)(?=[ \t*_`]*[:=\uff1a]))?"
    return f"(?:{'|'.join(patterns)}){gloss}"


def _build_ordinal_patterns(names: Sequence[str], i: int) -> list[str]:
    """Return patterns of ordinals and indices for a name with a number, e.g. `second rate` for `rate_2`; else [].

    The family of a name consists of all names that are equal except for the number.
    """
    parts = re.match(r"\W*([^\W\d_]*)[\W_]*(\d*)", names[i])
    assert parts is not None
    stem, digits = parts[1], parts[2]
    family = [k for k, name in enumerate(names) if re.match(rf"\W*{re.escape(stem)}[\W_]*\d+\W*\Z", name)]
    if not digits or i not in family:
        return []
    rank = family.index(i)
    ordinal = rf"{rank + 1}(?:st|nd|rd|th)" + (f"|{ORDINALS[rank]}" if rank < len(ORDINALS) else "")
    noun = rf"(?:{re.escape(stem)}|{_NUMBER_NOUNS})"
    if len(family) < len(names):
        return [rf"(?:{ordinal})\s+{re.escape(stem)}"]
    patterns = [rf"(?:{ordinal})(?:[\s_]+(?:tax[\s_]+)?{noun})?", rf"{noun}\s+(?:number\s+)?{digits}"]
    if stem.casefold() in ("rate", "tax", "bracket") and len(names) <= 3:
        levels = _LEVEL_WORDS if len(names) == 3 else (_LEVEL_WORDS[0], _LEVEL_WORDS[-1])
        patterns.append(rf"(?:{levels[rank]})(?:[\s-]+(?:tax|income|earning)?[\s-]*{noun})?(?: earners)?")
    return patterns
