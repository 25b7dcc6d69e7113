"""Functions that print lines and tables to standard output."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmrl.core.printable import printable

if TYPE_CHECKING:
    from llmrl.results.table_format import ReportTable


class Terminal(Console):
    """Console that prints texts literally: without markup or emoji, and with control characters escaped.

    Args:
        width: width in characters if the output is not a terminal; rich's default of 80 is too small for tables.
    """

    def __init__(self, width: int = 120) -> None:
        super().__init__(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def print_line(text: object, style: str | None = None) -> None:
    """Print a line without wrapping, with control characters escaped, and with a style of rich unless it is None."""
    if style is None:
        sys.stdout.write(f"{printable(text)}\n")
    else:
        Terminal().print(str(text), style=style, soft_wrap=True)


def print_fields(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """Print a table with rows (name, value)."""
    table = Table(title=title, show_header=False, min_width=70)
    for name, value in rows:
        table.add_row(name, value)
    Terminal().print(table)


def print_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    alignments: str = "ll",
    styles: Sequence[str | None] = (),
) -> None:
    """Print a table, at most 200 characters wide if standard output is no terminal, because names of runs are long.

    Args:
        title: title, printed as a line above the table without wrapping, so that it can be copied.
        columns: names of the columns.
        rows: cells of each row.
        alignments: one letter per column: `l` aligns left; other letters, and missing ones, align right.
        styles: style of rich for each row; empty: no styles.
    """
    print_line(f"\n{title}")
    table = Table()
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if alignments[i : i + 1] == "l" else "right", overflow="fold")
    for row, style in zip(rows, styles or [None] * len(rows), strict=True):
        table.add_row(*row, style=style)
    Terminal(width=200).print(table)


def print_report_table(table: ReportTable) -> None:
    """Print a table of a report with its notes, or nothing for a table without columns, which is written to a file."""
    if table.columns:
        print_table(table.caption, table.columns, table.rows, table.alignments)
        for note in table.notes:
            print_line(note)


def relative_to_cwd(folder: Path) -> Path:
    """Return a folder relative to the working directory if it is inside this directory, else unchanged."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
