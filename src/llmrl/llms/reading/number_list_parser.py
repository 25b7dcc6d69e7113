"""Search for lists of numbers in texts: with names, in brackets, in tables, on lines, and in grids."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from llmrl.llms.reading.answer_parser import CandidateAnswer
from llmrl.llms.reading.assignments import AssignmentFinder, build_spelling_pattern
from llmrl.llms.reading.latex_and_tables import Table, find_tables, strip_latex
from llmrl.llms.reading.name_matcher import NameMatcher, normalize_name, split_words
from llmrl.llms.reading.non_answer_text import is_doubtful, split_sentence_around
from llmrl.llms.reading.number_parser import NUMBER_IN_DIGITS, parse_number
from llmrl.llms.reading.word_lists import load_pattern, load_word_list
from llmrl.llms.reply_cleaning import blank_spans, to_ascii

_KIND_WORDS = load_word_list("kinds")
LIST_KEYS = load_word_list("lists")
"""Normalized names of fields with lists of numbers."""

_PADDING = r"[ \t*_`\"'$\\]{0,12}"
_GLOSS = r"(?:\([^()\n]{1,60}\)[ \t*_`]{0,6}(?=[:=]))?"
_ASSIGNMENT_SIGN = r"[:=]+|\u8bbe\u4e3a|\u4e3a|->|\u2192"
_LINK_WORD = r"\b(?:to|is|at|of|with)\b"
_INDEXED_NAME = (
    r"params?[\s*_`\\]{0,6}[\[(]\s?(\d{1,9})[\s\\]{0,3}[\])]|(?:params?|theta|\u03b8|weights?|w|p)_?\{?(\d{1,9})\}?"
)
_RANGE_OR_CHANGE = re.compile(
    r"\s*(?:[,(]?\s*(?:to|or|bis|minus|plus|times|(?:re|in)\w+ed by)|-|\u2013|\.\.)\s*[+-]?\.?\d", re.IGNORECASE
)
_NEW_NUMBER_AFTER_ARROW = re.compile(rf"{_PADDING}(?:\u2192|->|=>|\u27f6){_PADDING}({NUMBER_IN_DIGITS})(?!\w)")
LIST_MEASUREMENT = re.compile(
    r"[\s;,|*_`\"')\]-]{0,12}(?:f\s*\(\s*params\s*\)[\s*_`\"']*[:=]|->|=>|\u2192)[\s*_`\"'$]{0,6}"
    r"(?:payoff|return|value)?[\s:=]{0,4}[+-]?\.?\d",
    re.IGNORECASE,
)
"""Measured value after a list of numbers that was evaluated before, in the format of prompts."""
_ANNOUNCEMENT = re.compile(r"\b(?:propos\w+|final|answer|choose|set|suggest|submit|next)\b", re.IGNORECASE)
_INDEX_ORIGIN = re.compile(
    r"\b(?:from|starting (?:at|with)|start(?:s|ing)? at|count\w* from) (?:1|one)\b|\b1-based\b|\bone-based\b",
    re.IGNORECASE,
)
LIST_OPERATOR = re.compile(r"(?:[+/]|(?<!\*)\*|\b(?:in|within|changes?:?|changes? (?:is|are)))\s*\Z", re.IGNORECASE)
"""End of the text before a list that is a term of an expression, an interval, or a change."""
_LATEX_BOX = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\}){1,1000})\}")
_TUPLE = re.compile(r"(?:[=:]|\bis|\bare|\bof|\bto)\s?\(([^()\n]{1,2000})\)")
_BRACKETED_LIST = re.compile(r"(?<![\w\]])\[([^\[\]]{1,8000})\]")
_SINGLE_NUMBER = re.compile(
    r"(?:(?:the |my |final )*(?:action|answer|value|number)[\s*_`]*(?::|=|\bis\b)[\s*_`]*)?"
    rf"(?:\\boxed\{{)?({NUMBER_IN_DIGITS})(?: ?[A-Za-z]{{1,3}})?\}}?",
    re.IGNORECASE,
)
_ROW_LABEL = re.compile(r"^(?:row|r|y)[\s_]*\d{0,2}\s*[:=]\s*", re.IGNORECASE)
_NUMBER_CELL = re.compile(r"[+-]?\d{1,9}(?:\.\d{1,9})?")
_LIST_LABEL = re.compile(rf"^(?:the |my |new )*(?:{'|'.join(LIST_KEYS)})[\s*_`]*[:=][\s*_`]*(?=[-+.\d])", re.IGNORECASE)

NamedNumber = tuple[int, float, int, int]
"""Index of a name, its number, and start and end of the span that contains both."""
ListCandidates = list[CandidateAnswer[np.ndarray]]


class NumberListFinder:
    """Finder of lists of `d` numbers, each an array [d], in texts.

    Args:
        names: names of the `d` numbers; indices in names of the form `params[i]` count from 0.
        are_fractions: for each number, whether percentages are divided by 100; otherwise they are not accepted.
        word_matcher: matcher of words that mean the numbers 0, 1, 2, ...; None: there are no such words.
        turn: number of the present generation or iteration; None: unknown.
    """

    def __init__(
        self, names: Sequence[str], are_fractions: Sequence[bool], word_matcher: NameMatcher | None, turn: int | None
    ) -> None:
        self.names, self.d, self.are_fractions = list(names), len(names), list(are_fractions)
        self.word_matcher, self.turn = word_matcher, turn
        self.index_by_name = {normalize_name(name): i for i, name in enumerate(names)}
        self.is_indexed = all(name == f"params[{i}]" for i, name in enumerate(names))
        self._indices_by_name_length = sorted(range(self.d), key=lambda i: -len(names[i]))  # longest name first
        self.assignments = AssignmentFinder(names, self.parse_value)
        spellings = [f"({build_spelling_pattern(names[i])})" for i in self._indices_by_name_length]
        name = _INDEXED_NAME if self.is_indexed else "|".join(spellings)
        self._named_number, self._loosely_named_number = (
            re.compile(
                rf"(?<![\w.]){_PADDING}(?:{name})(?![\w\[]){_PADDING}{_GLOSS}(?:{separator})[\s*_`\"'$\\]{{0,12}}"
                rf"(?P<number>{NUMBER_IN_DIGITS})(?![\w%]|\.\d)",
                re.IGNORECASE,
            )
            for separator in (_ASSIGNMENT_SIGN, f"{_ASSIGNMENT_SIGN}|{_LINK_WORD}")
        )

    def parse_value(self, value: Any, index: int = 0) -> float | None:
        """Return `value` as the number with the given index in the list; None if it is not one certain number."""
        word_number = self.word_matcher.find_exact(value) if self.word_matcher and isinstance(value, str) else None
        return parse_number(value, self.are_fractions[index]) if word_number is None else float(word_number)

    def find_name_index(self, key: str) -> int | None:
        """Return the index of the name that `key` spells; None if there is none.

        Words for kinds of numbers are ignored, so `thigh_torque` is `thigh`.
        """
        i = self.index_by_name.get(normalize_name(re.sub(r"\([^()]*\)", "", key)))
        if i is None and not self.is_indexed:
            i = self.index_by_name.get("".join(word for word, _, _ in split_words(key) if word not in _KIND_WORDS))
        return i

    def parse_values(self, value: Sequence[Any]) -> list[float] | None:
        """Return a sequence of values as `d` numbers; None if it has another length or a value is not a number."""
        numbers = [self.parse_value(number, i) for i, number in enumerate(value)] if len(value) == self.d else [None]
        return None if None in numbers else [number for number in numbers if number is not None]

    def parse_numbers(self, text: str) -> list[float] | None:
        """Return the `d` numbers of a text that consists only of numbers, with or without names; else None."""
        named_numbers = self._find_named_numbers(to_ascii(text), truncated=False)
        if named_numbers:
            number_by_index = {i: number for i, number, _, _ in named_numbers}
            is_complete = len(named_numbers) == len(number_by_index) == self.d
            return [number_by_index[i] for i in range(self.d)] if is_complete else None
        label, _, text = re.sub(r"\\[, ;!]|[\\$]", " ", to_ascii(text)).strip().rpartition("=")
        if label and not any(key in normalize_name(label) for key in (*self.index_by_name, *LIST_KEYS)):
            return None
        text = text.strip("[](){} \n")
        separators = (r"\s*[;\n|]\s*", r"\s*,\s+", r"\s*,\s*", r"\s+")
        lists = (self.parse_values([part for part in re.split(separator, text) if part]) for separator in separators)
        return next((numbers for numbers in lists if numbers is not None), None)

    def find_lists(self, text: str, truncated: bool) -> ListCandidates:
        """Return all lists of `d` numbers in a text; `truncated`: the end of the text is missing."""
        text = strip_latex(text)
        tables = list(find_tables(text))
        text = blank_spans(text, ((table.start, table.end) for table in tables))
        lists = [*_find_table_lists(tables, self), *self._find_named_lists(text, truncated)]
        other_lists = self._find_delimited_lists(text)
        if not lists:
            other_lists += [*self._find_bracketed_lists(text), *self._find_line_lists(text, truncated)]
        return [*lists, *other_lists]

    def describe_incomplete_list(self, text: str) -> str:
        """Return a message about missing numbers if a text has some, but not all, named numbers; else ""."""
        indices = {index for index, *_ in self._find_named_numbers(text, truncated=False, loose=True)}
        return self.describe_missing_numbers(indices) if indices and not indices >= set(range(self.d)) else ""

    def describe_missing_numbers(self, present: Container[int]) -> str:
        """Return a message with the names whose indices are not in `present`."""
        missing = [name for i, name in enumerate(self.names) if i not in present]
        return f"there is no number for {', '.join(missing[:10])}{', ...' if len(missing) > 10 else ''}"

    def contradicts(self, text: str, answer: np.ndarray) -> bool:
        """Return whether a text assigns to a name another number than that in `answer` [d]."""
        text = "\n".join(line for line in text.split("\n") if not LIST_MEASUREMENT.search(line))
        return any(
            index < self.d and number != answer[index] and not is_doubtful(*split_sentence_around(text, start, end))
            for index, number, start, end in self._find_named_numbers(text, truncated=False, loose=True)
        )

    def _find_named_numbers(self, text: str, truncated: bool, loose: bool = False) -> list[NamedNumber]:
        """Return all names that an assignment sign or, if `loose`, a word such as "is" links to a number.

        For `0.9 -> 0.7` the number is the new one, 0.7.
        """
        named_numbers: list[NamedNumber] = []
        for match in (self._loosely_named_number if loose else self._named_number).finditer(text):
            end, number_text = match.end(), match["number"]
            group = next(k for k in range(1, match.re.groups) if match[k] is not None)
            index = int(match[group]) if self.is_indexed else self._indices_by_name_length[group - 1]
            if arrow := _NEW_NUMBER_AFTER_ARROW.match(text, end):
                number_text, end = arrow[1], arrow.end()
            is_uncertain = (
                _RANGE_OR_CHANGE.match(text, end)
                or text[end : end + 2].lstrip().startswith("?")
                or (truncated and end >= len(text.rstrip()))
            )
            number = parse_number(number_text, index < self.d and self.are_fractions[index])
            if number is not None and not is_uncertain:
                named_numbers.append((index, number, match.start(), end))
        return named_numbers

    def _find_named_lists(self, text: str, truncated: bool) -> ListCandidates:
        """Return the lists whose `d` named numbers are all in a text, ordered by position."""
        named_numbers = self._find_named_numbers(text, truncated)
        counts_from_one = self.is_indexed and {index for index, *_ in named_numbers} == set(range(1, self.d + 1))
        offset = 1 if counts_from_one and _INDEX_ORIGIN.search(text) else 0
        lists: ListCandidates = []
        number_by_index: dict[int, float] = {}
        first_start = 0
        for index, number, start, end in named_numbers:
            i = index - offset
            if i >= self.d:
                continue
            if number_by_index.get(i, number) != number:
                number_by_index = {}
            first_start = first_start if number_by_index else start
            number_by_index[i] = number
            if len(number_by_index) == self.d:
                line = text[max(text.rfind("\n", 0, first_start) + 1, first_start - 300) : first_start]
                is_in_sentence = not _ANNOUNCEMENT.search(line) and line.strip(" -*#>`|.0123456789") != ""
                certainty = 1 if self.d == 1 and is_in_sentence else 2
                numbers = np.array([number_by_index[i] for i in range(self.d)])
                lists.append(CandidateAnswer(first_start, end, numbers, certainty=certainty))
                number_by_index = {}
        return lists

    def _find_delimited_lists(self, text: str) -> ListCandidates:
        """Return lists between dollar signs, in boxes, and in round brackets after an equals sign."""
        lists: ListCandidates = []
        for pattern, certainty in ((_LATEX_BOX, 2), (_TUPLE, 1)):
            for match in pattern.finditer(text):
                if (numbers := self.parse_numbers(match[1])) is not None:
                    lists.append(CandidateAnswer(match.start(), match.end(), np.array(numbers), certainty=certainty))
        text = text.replace("\\$", " $")
        for sign, next_sign in pairwise(re.finditer(r"\$+", text)):
            inner = text[sign.end() : next_sign.start()]
            if self.d > 1 and (numbers := self.parse_numbers(inner)) is not None:
                # A list in round brackets is less certain: it may be any point.
                certainty = 1 if inner.startswith("(") else 2
                lists.append(CandidateAnswer(sign.start(), next_sign.end(), np.array(numbers), certainty=certainty))
        numerals = list(re.finditer(rf"\$\s?({NUMBER_IN_DIGITS})\s?\$", text))
        if not lists and numerals and (numbers := self.parse_values([match[1] for match in numerals])) is not None:
            lists.append(CandidateAnswer(numerals[0].start(), numerals[-1].end(), np.array(numbers)))
        return lists

    def _find_bracketed_lists(self, text: str) -> ListCandidates:
        """Return lists in square brackets, without those with a measured value."""
        return [
            CandidateAnswer(match.start(), match.end(), np.array(numbers), certainty=1)
            for match in _BRACKETED_LIST.finditer(text)
            if not LIST_MEASUREMENT.match(text[match.end() : match.end() + 80])
            and (numbers := self.parse_numbers(match[1])) is not None
        ]

    def _find_line_lists(self, text: str, truncated: bool) -> ListCandidates:
        """Return the lists on lines that consist of numbers or, if there are none, the list in a grid of cells."""
        lists: ListCandidates = []
        grid: list[float] = []
        start = end = n_columns = -1
        for match in re.finditer(r"^[^\n]{1,8000}$", text, re.MULTILINE):
            line = _LIST_LABEL.sub("", match[0].strip(" \t*`.$"))
            numbers = None
            if truncated and match.end() == len(text.rstrip()):
                break
            if self.d == 1 and (number_match := _SINGLE_NUMBER.fullmatch(line)):
                numbers = self.parse_values([number_match[1]])
            elif self.d > 1 and line[:1] in tuple("+-.0123456789"):
                numbers = self.parse_numbers(line)
            if numbers is not None:
                lists.append(CandidateAnswer(match.start(), match.end(), np.array(numbers), certainty=1))
            elif len(line) < 400:
                cells = self._parse_cells(line)
                if len(cells) > 1 and None not in cells and len(cells) in (n_columns, 0 if grid else len(cells)):
                    n_columns = len(cells)
                    start = start if grid else match.start()
                    grid, end = [*grid, *(float(cell) for cell in cells if cell is not None)], match.end()
        if not lists and len(grid) == self.d:
            lists.append(CandidateAnswer(start, end, np.array(grid), certainty=1))
        return lists

    def _parse_cells(self, line: str) -> list[float | None]:
        """Return the numbers of one line of a grid of numbers or words; None for other cells."""
        cells = [cell for cell in re.split(r"[\s,|]+", _ROW_LABEL.sub("", line).strip("[]() ")) if cell]
        matcher = self.word_matcher
        if matcher is not None and None not in (indices := [matcher.find_exact(cell) for cell in cells]):
            return [float(index) for index in indices if index is not None]
        return [float(cell) if _NUMBER_CELL.fullmatch(cell) else None for cell in cells] if self.d > 3 else []


_NEW_COLUMN = load_pattern("new_columns")
_PLAIN_COLUMN = load_pattern("plain_columns")
_OTHER_COLUMN = load_pattern("other_columns")
_TURN_NUMBER = re.compile(r"\b(?:generation|gen|iteration|round|proposal|row)\b\W{0,3}(\d+)", re.IGNORECASE)
_INDEX_HEADER = re.compile(r"(?:index|i|parameter|param|#|state|s|no\.?|name|entry|position)?", re.IGNORECASE)


def _find_table_lists(tables: Sequence[Table], finder: NumberListFinder) -> ListCandidates:
    """Return the proposed lists in tables with one row or one column per name."""
    proposals = [(table, _read_rows(table, finder) or _read_columns(table, finder)) for table in tables]
    return [
        CandidateAnswer(table.start, table.end, np.array(numbers))
        for table, cells in proposals
        if cells is not None and (numbers := finder.parse_values(cells)) is not None
    ]


def _read_rows(table: Table, finder: NumberListFinder) -> list[str] | None:
    """Return the cells of the only column with a proposal in a table with one row per name; None if not exactly one."""
    width = max(map(len, table.rows))
    for name_column in range(min(width, 3)):
        header = table.header[name_column : name_column + 1]
        row_by_index: dict[int, list[str]] = {}
        for row in table.rows:
            if name_column < len(row) and (i := _find_name_in_cell(row[name_column], header, finder)) is not None:
                row_by_index.setdefault(i, row)
        if len(row_by_index) < finder.d:
            continue
        rows = [row_by_index[i] for i in range(finder.d)]
        columns: list[tuple[str, list[str]]] = []  # header and numbers of each column with numbers only
        for k in range(name_column + 1, width):
            cells = [_text_after_arrow(row[k]) if k < len(row) else "" for row in rows]
            if finder.parse_values(cells) is not None:
                columns.append((table.header[k] if k < len(table.header) else "", cells))
        new_columns = [
            cells for title, cells in columns if _NEW_COLUMN.search(title) and not _TURN_NUMBER.search(title)
        ]
        columns = [(title, cells) for title, cells in columns if not _OTHER_COLUMN.search(title)]
        plain_columns = [cells for title, cells in columns if _PLAIN_COLUMN.search(title)]
        remaining_columns = [cells for title, cells in columns if not _TURN_NUMBER.search(title)]
        matches = new_columns or plain_columns or remaining_columns
        return matches[0] if len(matches) == 1 else None
    return None


def _read_columns(table: Table, finder: NumberListFinder) -> list[str] | None:
    """Return the cells of the only row with a proposal in a table with one column per name; None if not exactly one."""
    column_by_index: dict[int, int] = {}
    for k, cell in enumerate(table.header):
        if (i := _find_name_in_cell(cell, (), finder)) is not None:
            column_by_index.setdefault(i, k)
    if len(column_by_index) < finder.d or (finder.d == 1 and len(table.rows) > 1):
        return None
    columns = [column_by_index[i] for i in range(finder.d)]
    rows = [row for row in table.rows if max(columns) < len(row)]
    if len(rows) > 1:
        rows = [row for row in rows if _NEW_COLUMN.search(row[0]) and min(columns) > 0]
    elif rows and min(columns) > 0 and ((turn := _TURN_NUMBER.search(rows[0][0])) or _OTHER_COLUMN.search(rows[0][0])):
        rows = [] if not (turn and int(turn[1]) == finder.turn) else rows
    return [_text_after_arrow(rows[0][k]) for k in columns] if len(rows) == 1 else None


def _find_name_in_cell(cell: str, header: Sequence[str], finder: NumberListFinder) -> int | None:
    """Return the index of the name in a cell, possibly with a description, below `header`; None if there is none."""
    for text in (cell, re.sub(r"\([^()]*\)", "", cell), re.split(r"\s[-\u2013\u2014]\s|:|,", cell)[0]):
        if (i := finder.find_name_index(text)) is not None:
            return i
    if finder.is_indexed and cell.isdigit() and header and _INDEX_HEADER.fullmatch(header[0]):
        return int(cell) if int(cell) < finder.d else None
    return None


def _text_after_arrow(cell: str) -> str:
    """Return the text after the last arrow of a cell such as `0.9 -> 0.7`, or the whole text."""
    return re.split(r"->|=>|\u2192", cell)[-1].strip(" *`")
