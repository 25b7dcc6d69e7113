"""Lists of numbers as they are written in texts: beside names, in brackets, in tables, on lines, in sentences."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from llmrl.llms.reading.deciding import Candidate
from llmrl.llms.reading.names import Names, letters
from llmrl.llms.reading.numerals import ORDINALS, SPOKEN, WRITTEN, number_of
from llmrl.llms.reading.said import plain
from llmrl.llms.reading.words import listed

LISTS = listed("lists")
"""What lists of numbers are called."""

_AROUND = r"[ \t*_`\"'$\\]{0,12}"
_VALUE = rf"(?:{SPOKEN}|{WRITTEN})"
_BESIDE = r"(?:[:=|]+|\b(?:to|is|at|of|with)\b|\u8bbe\u4e3a|\u4e3a|->|\u2192)"
_INDEX = r"params?[\s*_`\\]{0,6}[\[(]\s?(\d{1,9})[\s\\]{0,3}[\])]|(?:params?|theta|\u03b8|weights?|w)_?\{?(\d{1,9})\}?"
_RANGE = re.compile(r"\s*(?:to|or|bis|-|\u2013|\.\.)\s*[+-]?\.?\d")
_ARROW = re.compile(rf"{_AROUND}(?:\u2192|->|=>|\u27f6){_AROUND}({WRITTEN})(?!\w)")
MEASURED = re.compile(
    r"[\s;,|*_`\"')\]-]{0,12}(?:f\s*\(\s*params\s*\)[\s*_`\"']*[:=]|->|=>|\u2192)[\s*_`\"'$]{0,6}"
    r"(?:payoff|return|value)?[\s:=]{0,4}[+-]?\.?\d",
    re.IGNORECASE,
)
"""What follows a row of the table that a question shows: the value it had."""
_ANNOUNCED = re.compile(r"\b(?:propos\w+|final|answer|choose|set|suggest|submit|next)\b", re.IGNORECASE)
_FROM_ONE = re.compile(
    r"\b(?:from|starting (?:at|with)|start(?:s|ing)? at|count\w* from) (?:1|one)\b|\b1-based\b|\bone-based\b",
    re.IGNORECASE,
)
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
_TUPLE = re.compile(r"(?:[=:]|\bis|\bare|\bof|\bto)\s?\(([^()\n]{1,2000})\)")
_LIST = re.compile(r"(?<![\w\]])\[([^\[\]]{1,8000})\]")
_ALONE = re.compile(
    r"(?:(?:the |my |final )*(?:action|answer|value|number)[\s*_`]*(?::|=|\bis\b)[\s*_`]*)?"
    rf"(?:\\boxed\{{)?({WRITTEN})(?: ?[A-Za-z]{{1,3}})?\}}?",
    re.IGNORECASE,
)
_EVERY = re.compile(
    r"\b(?:all|each|every|both|alle|toutes?|todos)\b[^.;:\n]{0,60}?(?:\bto\b|\bat\b|=|:|\bbe\b|\bof\b|\bauf\b)"
    rf"\s*({_VALUE})(?![\w.]*\w)",
    re.IGNORECASE,
)
_OTHERS = re.compile(
    rf"({_VALUE})\s+(?:for|to|at|on|in)\s+(?:all\s+)?(?:the\s+)?(?:others?|rest|remaining)\b|"
    rf"\b(?:others?|rest|remaining|(?:every|any)thing else)\b[^.;\n]{{0,30}}?(?:\b(?:to|at|be|gets?)\b|=|"
    rf":)\s*({_VALUE})(?!\w)",
    re.IGNORECASE,
)
_REVISED = re.compile(
    r"\b(?:revise|change|lower|raise|reduce|increase|adjust|set)\b(?:[^.\n]|\.(?=\d)){0,200}\bkeep\b[^.\n]{0,80}"
    r"\b(?:others?|rest|remaining)\b",
    re.IGNORECASE,
)
_PROPOSED = re.compile(r"\b(?:new|propos\w*|next|suggest\w*|choice)\b", re.IGNORECASE)
_ROW = re.compile(r"^[ \t]*\|[^\n]*\|[ \t]*$", re.MULTILINE)
_GAP = (
    r"(?:\W|number|parameter|one|\b(?:the|this|should|be|is|to|at|of|set|bracket|gets?|paid|payment|engine|"
    r"would|force|rate|activities|places|actions)\b|"
    r"\u8bbe\u4e3a|\u4e3a){0,12}?[\s:=*]{0,6}"
)

_FOR = r"(?:\s+(?:as|tax|rate|units?))?\s+(?:for|to|at|on|in)\s+(?:(?:the|other)\s+)?"

_CALLED = re.compile(rf"^(?:the |my |new )*(?:{'|'.join(LISTS)})[\s*_`]*[:=][\s*_`]*(?=[-+.\d])", re.IGNORECASE)

Pair = tuple[int, float, int, int]
"""The place of a name, the number beside it, and where they stand."""
Lists = list[Candidate[np.ndarray]]


class WrittenNumbers:
    """Finds lists [n, d] of numbers in texts.

    Args:
        names: of the `d` numbers; those of the form `params[i]` are counted from 0.
        n: lists that belong together.
        shares: whether per cent are hundredths.
        words: what may stand for the numbers 0, 1, 2, ...; None: nothing.
    """

    def __init__(self, names: Sequence[str], n: int, shares: bool, words: Names | None) -> None:
        self.names, self.n, self.d, self.shares, self.words = list(names), n, len(names), shares, words
        self.place = {letters(name): i for i, name in enumerate(names)}
        self.indexed = all(name == f"params[{i}]" for i, name in enumerate(names))
        self._order = sorted(range(self.d), key=lambda i: len(names[i]), reverse=True)
        self._stems = _stems(names)
        name = _INDEX if self.indexed else "|".join(f"({_spelled(names[i])})" for i in self._order)
        self._pair = re.compile(
            rf"(?<![\w.]){_AROUND}(?:{name})(?![\w\[]){_AROUND}{_BESIDE}[\s*_`\"'$\\]{{0,12}}"
            rf"(?P<number>{WRITTEN})(?![\w%]|\.\d)",
            re.IGNORECASE,
        )

    def number(self, said: Any) -> float | None:
        """The one number that a value means; None where it means none."""
        if isinstance(said, list) and len(said) == 1:
            said = said[0]
        if isinstance(said, str) and self.words is not None and (meant := self.words.exact(said)) is not None:
            return float(meant)
        return number_of(said, self.shares)

    def numbers(self, said: Sequence[Any]) -> list[float] | None:
        """The `d` numbers that so many values mean; None where one means none."""
        found = [self.number(each) for each in said] if len(said) == self.d else [None]
        return None if None in found else [each for each in found if each is not None]

    def split(self, text: str) -> list[float] | None:
        """The numbers of a text that is nothing but numbers, with or without their names."""
        pairs = self._pairs(plain(text), False)
        if pairs:
            named = {i: number for i, number, _, _ in pairs}
            return [named[i] for i in range(self.d)] if len(pairs) == len(named) == self.d else None
        called, _, text = re.sub(r"\\[, ;!]|[\\$]", " ", plain(text)).strip().rpartition("=")
        if called and not any(key in letters(called) for key in (*self.place, *LISTS)):
            return None
        text = text.strip("[](){} \n")
        for separator in (r"\s*[;\n|]\s*", r"\s*,\s+", r"\s*,\s*", r"\s+"):
            words = [word for word in re.split(separator, text) if word]
            if (numbers := self.numbers(words)) is not None:
                return numbers
        return None

    def found(self, text: str, cut: bool) -> Lists:
        """All lists in a text."""
        found = (self._in_table(text) if self.n == 1 else []) or self._beside_names(text, cut)
        if found or self.n > 1:
            return found or self._in_brackets(text)
        return [*self._set_apart(text), *self._in_brackets(text), *self._on_lines(text, cut)]

    def incomplete(self, text: str) -> str:
        """What a text lacks that has some of the numbers beside their names; "" where it has none or all."""
        named = {place for place, *_ in self._pairs(text, False)}
        return self.lacking(named) if named and self.n == 1 and not named >= set(range(self.d)) else ""

    def lacking(self, named: Container[int]) -> str:
        """In words, which numbers are not `named`."""
        missing = [self.names[i] for i in range(self.d) if i not in named]
        return f"there is no number for {', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"

    def spoken(self, text: str) -> list[float] | None:
        """The list that sentences give; None where they give none, or no certain one."""
        named = self._named(text)
        if not named:
            numbers = {number_of(match[1], self.shares) for match in _EVERY.finditer(text)}
            number = numbers.pop() if len(numbers) == 1 else None
            return None if number is None else [number] * self.d
        if (
            len(named) < self.d
            and not {"other", "others", "rest"} & set(self.place)
            and len(others := list(_OTHERS.finditer(text))) == 1
        ):
            number = number_of(others[0][1] or others[0][2], self.shares)
            if number is not None:
                named = dict.fromkeys(range(self.d), number) | named
        return [named[i] for i in range(self.d)] if len(named) == self.d else None

    def _pairs(self, text: str, cut: bool) -> list[Pair]:
        """All names with a number beside them; of an old and a new number, `0.9 -> 0.7`, the new one."""
        found: list[Pair] = []
        for match in self._pair.finditer(text):
            start, end, said = match.start(), match.end(), match["number"]
            if self.indexed:
                place = int(match[1] or match[2])
            else:
                place = self._order[next(k for k in range(self.d) if match[k + 1] is not None)]
            if arrow := _ARROW.match(text, end):
                said, end = arrow[1], arrow.end()
            if _RANGE.match(text, end) or (cut and end >= len(text.rstrip())):
                continue
            if (number := number_of(said, self.shares)) is not None:
                found.append((place, number, start, end))
        return found

    def _beside_names(self, text: str, cut: bool) -> Lists:
        """Whole sets of names with numbers, in order."""
        pairs = self._pairs(text, cut)
        if self.indexed and {place for place, *_ in pairs} == set(range(1, self.d + 1)) and _FROM_ONE.search(text):
            pairs = [(place - 1, number, start, end) for place, number, start, end in pairs]
        pairs = [pair for pair in pairs if pair[0] < self.d]
        sets: Lists = []
        begun: dict[int, float] = {}
        first = 0
        for place, number, start, end in pairs:
            if place in begun and begun[place] != number:
                begun = {}
            first = first if begun else start
            begun[place] = number
            if len(begun) == self.d:
                sets.append(Candidate(first, end, np.array([[begun[i] for i in range(self.d)]])))
                begun = {}
        if self.n > 1:
            return self._together(sets)
        for each in sets:
            line = text[max(text.rfind("\n", 0, each.start) + 1, each.start - 300) : each.start]
            if self.d == 1 and not _ANNOUNCED.search(line) and line.strip(" -*#>`|.0123456789"):
                each.form = 1  # one number in the middle of a sentence
        return [self._revised(text, sets[0], pairs)] if len(sets) == 1 else sets

    def _together(self, rows: Lists, form: int = 2) -> Lists:
        """The first `n` lists as one."""
        if len(rows) < self.n:
            return []
        answer = np.concatenate([row.answer for row in rows[: self.n]])
        return [Candidate(rows[0].start, rows[self.n - 1].end, answer, form=form)]

    def _revised(self, text: str, first: Candidate[np.ndarray], pairs: Sequence[Pair]) -> Candidate[np.ndarray]:
        """A list of which the reply then changes some numbers, and says that it keeps the others."""
        change = _REVISED.search(text, first.end)
        if change is None:
            return first
        numbers = first.answer.copy()
        for place, number, start, end in pairs:
            if change.start() <= start and end <= change.end():
                numbers[0, place] = number
        return Candidate(first.start, change.end(), numbers)

    def _in_table(self, text: str) -> Lists:
        """A Markdown table, with a row or a column for each name; of several columns that of what is proposed."""
        rows = list(_ROW.finditer(text))
        cells = [[cell.strip(" *`\\") for cell in row[0].strip().strip("|").split("|")] for row in rows]
        named: dict[int, Any] = {}
        heads = [self.place.get(letters(cell)) for cell in cells[0]] if cells else []
        if len(rows) == 3 and len(cells[2]) == len(heads):
            named = {i: cell for i, cell in zip(heads, cells[2], strict=True) if i is not None}
        if len(named) < self.d <= len(rows):
            proposed = {k for row in cells if len(row) > 2 for k, cell in enumerate(row) if _PROPOSED.search(cell)}
            column = 1 if all(len(row) == 2 for row in cells) else proposed.pop() if len(proposed) == 1 else 0
            named = {self.place.get(letters(row[0]), -1): row[column] for row in cells if 0 < column < len(row)}
        numbers = self.numbers([named.get(i) for i in range(self.d)])
        return [] if numbers is None else [Candidate(rows[0].start(), rows[-1].end(), np.array([numbers]))]

    def _set_apart(self, text: str) -> Lists:
        """Lists between dollar signs, in boxes, and in round brackets after an equals sign."""
        found: Lists = []
        for pattern, form in ((_BOXED, 2), (_TUPLE, 1)):
            for match in pattern.finditer(text):
                inner = re.sub(r"\\(?:text|mathbf)\{([^{}]*)\}", r"\1", match[1])
                if (numbers := self.split(inner)) is not None:
                    found.append(Candidate(match.start(), match.end(), np.array([numbers]), form=form))
        text = text.replace("\\$", " $")
        signs = list(re.finditer(r"\$+", text))
        for sign, after in pairwise(signs):
            inner = text[sign.end() : after.start()]
            if self.d > 1 and (numbers := self.split(inner)) is not None:
                # In round brackets it is a point that is spoken of.
                form = 1 if inner.startswith("(") else 2
                found.append(Candidate(sign.start(), after.end(), np.array([numbers]), form=form))
        singles = list(re.finditer(rf"\$\s?({WRITTEN})\s?\$", text))
        if not found and singles and (numbers := self.numbers([match[1] for match in singles])) is not None:
            found.append(Candidate(singles[0].start(), singles[-1].end(), np.array([numbers])))
        return found

    def _in_brackets(self, text: str) -> Lists:
        """Bare lists in brackets, but no rows of the table; what is JSON is read as a value besides."""
        rows: Lists = []
        for match in _LIST.finditer(text):
            numbers = self.split(match[1])
            if numbers is not None and not MEASURED.match(text[match.end() : match.end() + 80]):
                rows.append(Candidate(match.start(), match.end(), np.array([numbers]), form=1))
        return rows if self.n == 1 else self._together(rows, form=1)

    def _on_lines(self, text: str, cut: bool) -> Lists:
        """A line of nothing but numbers, or a grid of words or arrows."""
        found: Lists = []
        grid: list[float] = []
        start = end = -1
        for match in re.finditer(r"^[^\n]{1,8000}$", text, re.MULTILINE):
            line = _CALLED.sub("", match[0].strip(" \t*`.$"))
            numbers = None
            if cut and match.end() == len(text.rstrip()):
                break
            if self.d == 1 and (alone := _ALONE.fullmatch(line)):
                numbers = self.numbers([alone[1]])
            elif self.d > 1 and line[:1] in tuple("+-.0123456789"):
                numbers = self.split(line)
            if numbers is not None:
                found.append(Candidate(match.start(), match.end(), np.array([numbers]), form=1))
            elif self.words is not None and len(line) < 400:
                cells = [self.words.exact(cell) for cell in re.split(r"[\s,|]+", line) if cell]
                if len(cells) > 1 and None not in cells:
                    start = start if grid else match.start()
                    grid, end = [*grid, *(float(cell) for cell in cells if cell is not None)], match.end()
        if not found and len(grid) == self.d:
            found.append(Candidate(start, end, np.array([grid]), form=1))
        return found

    def _named(self, text: str) -> dict[int, float]:
        """Numbers beside their names in sentences, either after or before them, whichever gives more."""
        ways: list[dict[int, float]] = []
        for before in (False, True):
            named: dict[int, float] = {}
            for i, stem in enumerate(self._stems):
                if before:
                    way = rf"(?<![\w.])({_VALUE}){_FOR}(?:{stem})(?!\w)"
                else:
                    way = rf"(?<!\w)(?:{stem})(?!\w){_GAP}({_VALUE})(?![\w]|\.\d)"
                values = {
                    number_of(match[1], self.shares)
                    for match in re.finditer(way, text, re.IGNORECASE)
                    if not _RANGE.match(text, match.end())
                }
                if len(values) == 1 and None not in values:
                    named[i] = next(value for value in values if value is not None)
            ways.append(named)
        return max(ways, key=len)


def _spelled(name: str) -> str:
    r"""A regular expression for a name, in whichever spelling: `rate_1` is `Rate 1`, `rate\_1` and `rate-1`, too."""
    return r"[\s_\\\-]{0,3}".join(re.escape(piece) for piece in re.findall(r"[^\W\d_]+|\d+|[^\w\s]", name))


def _stems(names: Sequence[str]) -> list[str]:
    """For each name a regular expression of what sentences call it: itself, its -ing, or its ordinal number."""
    numbered = len(names) > 1 and not any(name.isalpha() and len(name) > 1 for name in names)
    found = []
    for i, name in enumerate(names):
        stem = _spelled(name) + (r"(?:ing)?" if name.isalpha() else "")
        if numbered:
            ordinal = rf"{i + 1}(?:st|nd|rd|th)" + (f"|{ORDINALS[i]}" if i < len(ORDINALS) else "")
            stem += rf"|(?:{ordinal})(?:\s+(?:number|parameter|bracket|value|rate|one|entry))?"
        found.append(stem)
    return found
