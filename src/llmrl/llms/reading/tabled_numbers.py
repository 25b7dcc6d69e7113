"""Lists of numbers in Markdown tables: the column, or the row, of what is proposed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from llmrl.llms.reading.answer_parser import CandidateAnswer
from llmrl.llms.reading.tables import Table, tables

_NEW = re.compile(
    r"\b(?:new|propos\w*|next|suggest\w*|choice|chosen|final|recommend\w*|selected|updated|mine|my)\b|\u65b0",
    re.IGNORECASE,
)
_PLAIN = re.compile(
    r"\b(?:value|setting|number|incentive|payment|rate|amount|force|torque|weight|proposal|action|set to|"
    r"params?)\b|\u503c",
    re.IGNORECASE,
)
_OTHER = re.compile(
    r"\b(?:old|previous|prev|current|before|last|best|min|max|minimum|maximum|low|high|lower|upper|bounds?|ranges?|limits?|"
    r"change|delta|difference|payoff|return|score|expected|index|no|step|was)\b|#|\u0394|\u65e7",
    re.IGNORECASE,
)
_TURN = re.compile(r"\b(?:generation|gen|iteration|round|proposal|row)\b\W{0,3}(\d+)", re.IGNORECASE)
_INDEXED = re.compile(r"(?:index|i|parameter|param|#|state|s|no\.?|name|entry|position)?", re.IGNORECASE)


class NumberMeaning(Protocol):
    """The part of `WrittenNumbers` that tables need."""

    d: int
    indexed: bool
    turn: int | None

    def called(self, key: str) -> int | None: ...
    def numbers(self, said: Sequence[Any]) -> list[float] | None: ...


def proposed(text: str, written: NumberMeaning) -> list[CandidateAnswer[np.ndarray]]:
    """The lists that tables propose: with a row or a column for each name."""
    found = []
    for table in tables(text):
        cells = _by_row(table, written) or _by_column(table, written)
        if cells is not None and (numbers := written.numbers(cells)) is not None:
            found.append(CandidateAnswer(table.start, table.end, np.array([numbers])))
    return found


def _by_row(table: Table, written: NumberMeaning) -> list[str] | None:
    """One row for each name, and one column of what is proposed."""
    width = max(map(len, table.rows))
    for at in range(min(width, 3)):
        place: dict[int, int] = {}
        for k, row in enumerate(table.rows):
            if at < len(row) and (i := _place(row[at], table.head[at : at + 1], written)) is not None:
                place.setdefault(i, k)
        if len(place) < written.d:
            continue
        columns: dict[int, list[str]] = {}
        for column in range(at + 1, width):
            cells = [
                row[column] if column < len(row) else "" for row in (table.rows[place[i]] for i in range(written.d))
            ]
            if written.numbers([_new(cell) for cell in cells]) is not None:
                columns[column] = [_new(cell) for cell in cells]
        heads = {column: table.head[column] if column < len(table.head) else "" for column in columns}
        new = [column for column, head in heads.items() if _NEW.search(head) and not _TURN.search(head)]
        usual = [column for column, head in heads.items() if _PLAIN.search(head) and not _OTHER.search(head)]
        others = [column for column, head in heads.items() if not _OTHER.search(head) and not _TURN.search(head)]
        for chosen in (new, usual, others):
            if len(chosen) == 1:
                return columns[chosen[0]]
            if chosen:
                return None
        return None
    return None


def _by_column(table: Table, written: NumberMeaning) -> list[str] | None:
    """One column for each name; of several rows that of what is proposed."""
    place: dict[int, int] = {}
    for k, cell in enumerate(table.head):
        if (i := _place(cell, (), written)) is not None:
            place.setdefault(i, k)
    if len(place) < written.d or (written.d == 1 and len(table.rows) > 1):
        return None
    columns = [place[i] for i in range(written.d)]
    rows = [row for row in table.rows if max(columns) < len(row)]
    if len(rows) > 1:
        rows = [row for row in rows if _NEW.search(row[0]) and min(columns) > 0]
    elif rows and min(columns) > 0 and ((turn := _TURN.search(rows[0][0])) or _OTHER.search(rows[0][0])):
        rows = [] if not (turn and int(turn[1]) == written.turn) else rows
    return [_new(rows[0][k]) for k in columns] if len(rows) == 1 else None


def _place(cell: str, head: Sequence[str], written: NumberMeaning) -> int | None:
    """The place of the name that a cell is, perhaps with what it is for."""
    for said in (cell, re.sub(r"\([^()]*\)", "", cell), re.split(r"\s[-\u2013\u2014]\s|:|,", cell)[0]):
        if (i := written.called(said)) is not None:
            return i
    if written.indexed and cell.isdigit() and head and _INDEXED.fullmatch(head[0]):
        return int(cell) if int(cell) < written.d else None
    return None


def _new(cell: str) -> str:
    """The new number of a cell with an old and a new one."""
    return re.split(r"->|=>|\u2192", cell)[-1].strip(" *`")
