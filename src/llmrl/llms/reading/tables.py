"""Parser of Markdown tables in a text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_ROW = re.compile(r"^[ \t>]*\|?[^\n|]*\|[^\n]*$", re.MULTILINE)
_RULE = re.compile(r"[\s|:+\-=\u2014]+")
MAX_ROWS = 500


@dataclass(frozen=True)
class Table:
    """Markdown table.

    Attributes:
        start, end: span of the table in the text.
        head: cells of the first row, without markup.
        rows: cells of the other rows, without markup.
    """

    start: int
    end: int
    head: list[str]
    rows: list[list[str]]

    def column(self, names: Sequence[str]) -> int | None:
        """Return the column with the first of the lower-case `names` among the heads, ignoring case; None if none."""
        headings = [cell.casefold() for cell in self.head]
        return next((headings.index(name) for name in names if name in headings), None)


def tables(text: str) -> Iterator[Table]:
    """Yield all tables in a text: two or more consecutive lines with vertical bars."""
    block: list[re.Match[str]] = []
    for row in [*_ROW.finditer(text), None]:
        if block and (row is None or text[block[-1].end() : row.start()] != "\n" or len(block) > MAX_ROWS):
            if (table := _table(block)) is not None:
                yield table
            block = []
        if row is not None:
            block.append(row)


def _table(block: Sequence[re.Match[str]]) -> Table | None:
    rules = [bool(_RULE.fullmatch(row[0])) for row in block]
    lines = [row for row, rule in zip(block, rules, strict=True) if not rule]
    if len(lines) < 2 or (not any(rules) and not all(row[0].strip(" \t>").startswith("|") for row in lines)):
        return None
    cells = [_cells(row[0]) for row in lines]
    return Table(block[0].start(), block[-1].end(), cells[0], cells[1:])


def _cells(line: str) -> list[str]:
    line = line.strip(" \t>").removeprefix("|")
    line = line.removesuffix("|")
    return [cell.strip(" *`\\_$") for cell in re.split(r"(?<!\\)\|", line)]
