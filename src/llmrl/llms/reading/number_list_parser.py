"""Lists of numbers as they are written in texts: beside names, in brackets, in tables, on lines, in sentences."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from llmrl.llms.reading.answer_parser import CandidateAnswer
from llmrl.llms.reading.assignments import Assignments, spelled
from llmrl.llms.reading.latex import untexed
from llmrl.llms.reading.name_matcher import NameMatcher, letters, words
from llmrl.llms.reading.number_parser import WRITTEN, number_of
from llmrl.llms.reading.reply_cleaning import blank_spans, plain
from llmrl.llms.reading.tabled_numbers import proposed
from llmrl.llms.reading.tables import tables
from llmrl.llms.reading.word_lists import listed

_KINDS = listed("kinds")
LISTS = listed("lists")
"""What lists of numbers are called."""

_AROUND = r"[ \t*_`\"'$\\]{0,12}"
_GLOSS = r"(?:\([^()\n]{1,60}\)[ \t*_`]{0,6}(?=[:=]))?"
_SIGN = r"[:=]+|\u8bbe\u4e3a|\u4e3a|->|\u2192"
_WORD = r"\b(?:to|is|at|of|with)\b"
_INDEX = (
    r"params?[\s*_`\\]{0,6}[\[(]\s?(\d{1,9})[\s\\]{0,3}[\])]|(?:params?|theta|\u03b8|weights?|w|p)_?\{?(\d{1,9})\}?"
)
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
_REVISED = re.compile(
    r"\b(?:revise|change|lower|raise|reduce|increase|adjust|set)\b(?:[^.\n]|\.(?=\d)){0,200}\bkeep\b[^.\n]{0,80}"
    r"\b(?:others?|rest|remaining)\b",
    re.IGNORECASE,
)
_ROW_LABEL = re.compile(r"^(?:row|r|y)[\s_]*\d{0,2}\s*[:=]\s*", re.IGNORECASE)
_CELL = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,9})?")
_CALLED = re.compile(rf"^(?:the |my |new )*(?:{'|'.join(LISTS)})[\s*_`]*[:=][\s*_`]*(?=[-+.\d])", re.IGNORECASE)

Pair = tuple[int, float, int, int]
"""The place of a name, the number beside it, and where they stand."""
Lists = list[CandidateAnswer[np.ndarray]]


class WrittenNumbers:
    """Finds lists [n, d] of numbers in texts.

    Args:
        names: of the `d` numbers; those of the form `params[i]` are counted from 0.
        n: lists that belong together.
        shares: of which of the numbers per cent are hundredths.
        words: what may stand for the numbers 0, 1, 2, ...; None: nothing.
        turn: the number of this generation or iteration; None: it has none.
    """

    def __init__(
        self, names: Sequence[str], n: int, shares: Sequence[bool], words: NameMatcher | None, turn: int | None = None
    ) -> None:
        self.names, self.n, self.d, self.shares, self.words = list(names), n, len(names), list(shares), words
        self.turn = turn
        self.place = {letters(name): i for i, name in enumerate(names)}
        self.indexed = all(name == f"params[{i}]" for i, name in enumerate(names))
        self._order = sorted(range(self.d), key=lambda i: len(names[i]), reverse=True)
        self._assignments = Assignments(names, number=self.number)
        name = _INDEX if self.indexed else "|".join(f"({spelled(names[i])})" for i in self._order)
        self._pair, self._loose = (
            re.compile(
                rf"(?<![\w.]){_AROUND}(?:{name})(?![\w\[]){_AROUND}{_GLOSS}(?:{beside})[\s*_`\"'$\\]{{0,12}}"
                rf"(?P<number>{WRITTEN})(?![\w%]|\.\d)",
                re.IGNORECASE,
            )
            for beside in (_SIGN, f"{_SIGN}|{_WORD}")
        )

    def number(self, said: Any, place: int = 0) -> float | None:
        """The one number that a value means for a place; None where it means none."""
        if isinstance(said, list) and len(said) == 1:
            said = said[0]
        if isinstance(said, str) and self.words is not None and (meant := self.words.exact(said)) is not None:
            return float(meant)
        return number_of(said, self.shares[place])

    def called(self, key: str) -> int | None:
        """The number that a key names, perhaps with the word for what it is: `thigh_torque` is the `thigh`."""
        i = self.place.get(letters(re.sub(r"\([^()]*\)", "", key)))
        if i is None and not self.indexed:
            i = self.place.get("".join(word for word, _, _ in words(key) if word not in _KINDS))
        return i

    def numbers(self, said: Sequence[Any]) -> list[float] | None:
        """The `d` numbers that so many values mean; None where one means none."""
        found = [self.number(each, i) for i, each in enumerate(said)] if len(said) == self.d else [None]
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
        text = untexed(text)
        tabled = proposed(text, self) if self.n == 1 else []
        text = blank_spans(text, ((table.start, table.end) for table in tables(text)))
        found = [*tabled, *self._beside_names(text, cut)]
        if self.n > 1:
            return found or self._in_brackets(text)
        if found:
            return [*found, *self._set_apart(text)]
        return [*self._set_apart(text), *self._in_brackets(text), *self._on_lines(text, cut)]

    def incomplete(self, text: str) -> str:
        """What a text lacks that has some of the numbers beside their names; "" where it has none or all."""
        named = {place for place, *_ in self._pairs(text, False, loose=True)}
        return self.lacking(named) if named and self.n == 1 and not named >= set(range(self.d)) else ""

    def lacking(self, named: Container[int]) -> str:
        """In words, which numbers are not `named`."""
        missing = [self.names[i] for i in range(self.d) if i not in named]
        return f"there is no number for {', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"

    def spoken(self, text: str) -> list[float] | None:
        """The list that sentences give; None where they give none, or no certain one."""
        return self._assignments.read(plain(text))

    def _pairs(self, text: str, cut: bool, loose: bool = False) -> list[Pair]:
        """All names with a number beside them, if `loose` also after a word; of an old and a new number, `0.9 -> 0.7`,
        the new one."""
        found: list[Pair] = []
        for match in (self._loose if loose else self._pair).finditer(text):
            start, end, said = match.start(), match.end(), match["number"]
            if self.indexed:
                place = int(match[1] or match[2])
            else:
                place = self._order[next(k for k in range(self.d) if match[k + 1] is not None)]
            if arrow := _ARROW.match(text, end):
                said, end = arrow[1], arrow.end()
            if (
                _RANGE.match(text, end)
                or text[end : end + 2].lstrip().startswith("?")
                or (cut and end >= len(text.rstrip()))
            ):
                continue
            if (number := number_of(said, place < self.d and self.shares[place])) is not None:
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
                sets.append(CandidateAnswer(first, end, np.array([[begun[i] for i in range(self.d)]])))
                begun = {}
        if self.n > 1:
            return self._together(sets)
        for each in sets:
            line = text[max(text.rfind("\n", 0, each.start) + 1, each.start - 300) : each.start]
            if self.d == 1 and not _ANNOUNCED.search(line) and line.strip(" -*#>`|.0123456789"):
                each.form = 1  # one number in the middle of a sentence
        return [self._revised(text, sets[0], self._pairs(text, cut, loose=True))] if len(sets) == 1 else sets

    def _together(self, rows: Lists, form: int = 2) -> Lists:
        """The first `n` lists as one."""
        if len(rows) < self.n:
            return []
        answer = np.concatenate([row.answer for row in rows[: self.n]])
        return [CandidateAnswer(rows[0].start, rows[self.n - 1].end, answer, form=form)]

    def _revised(
        self, text: str, first: CandidateAnswer[np.ndarray], pairs: Sequence[Pair]
    ) -> CandidateAnswer[np.ndarray]:
        """A list of which the reply then changes some numbers, and says that it keeps the others."""
        change = _REVISED.search(text, first.end)
        if change is None:
            return first
        numbers = first.answer.copy()
        for place, number, start, end in pairs:
            if change.start() <= start and end <= change.end():
                numbers[0, place] = number
        return CandidateAnswer(first.start, change.end(), numbers)

    def _set_apart(self, text: str) -> Lists:
        """Lists between dollar signs, in boxes, and in round brackets after an equals sign."""
        found: Lists = []
        for pattern, form in ((_BOXED, 2), (_TUPLE, 1)):
            for match in pattern.finditer(text):
                if (numbers := self.split(match[1])) is not None:
                    found.append(CandidateAnswer(match.start(), match.end(), np.array([numbers]), form=form))
        text = text.replace("\\$", " $")
        signs = list(re.finditer(r"\$+", text))
        for sign, after in pairwise(signs):
            inner = text[sign.end() : after.start()]
            if self.d > 1 and (numbers := self.split(inner)) is not None:
                # In round brackets it is a point that is spoken of.
                form = 1 if inner.startswith("(") else 2
                found.append(CandidateAnswer(sign.start(), after.end(), np.array([numbers]), form=form))
        singles = list(re.finditer(rf"\$\s?({WRITTEN})\s?\$", text))
        if not found and singles and (numbers := self.numbers([match[1] for match in singles])) is not None:
            found.append(CandidateAnswer(singles[0].start(), singles[-1].end(), np.array([numbers])))
        return found

    def _in_brackets(self, text: str) -> Lists:
        """Bare lists in brackets, but no rows of the table; what is JSON is read as a value besides."""
        rows: Lists = []
        for match in _LIST.finditer(text):
            numbers = self.split(match[1])
            if numbers is not None and not MEASURED.match(text[match.end() : match.end() + 80]):
                rows.append(CandidateAnswer(match.start(), match.end(), np.array([numbers]), form=1))
        return rows if self.n == 1 else self._together(rows, form=1)

    def _on_lines(self, text: str, cut: bool) -> Lists:
        """A line of nothing but numbers, or a grid of words or arrows."""
        found: Lists = []
        grid: list[float] = []
        start = end = width = -1
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
                found.append(CandidateAnswer(match.start(), match.end(), np.array([numbers]), form=1))
            elif len(line) < 400:
                cells = self._cells(line)
                if len(cells) > 1 and None not in cells and len(cells) in (width, 0 if grid else len(cells)):
                    width = len(cells)
                    start = start if grid else match.start()
                    grid, end = [*grid, *(float(cell) for cell in cells if cell is not None)], match.end()
        if not found and len(grid) == self.d:
            found.append(CandidateAnswer(start, end, np.array([grid]), form=1))
        return found

    def _cells(self, line: str) -> list[float | None]:
        """The numbers of a row of a grid, or those that its words stand for."""
        cells = [cell for cell in re.split(r"[\s,|]+", _ROW_LABEL.sub("", line).strip("[]() ")) if cell]
        if self.words is not None and None not in (meant := [self.words.exact(cell) for cell in cells]):
            return [float(index) for index in meant if index is not None]
        return [float(cell) if _CELL.fullmatch(cell) else None for cell in cells] if self.d > 3 else []
