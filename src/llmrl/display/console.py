"""The one console of everything that is printed, and its tables."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from llmrl.core.printable import printable


class Terminal(Console):
    """A console that shows texts from outside as what they are: brackets are no markup, colons no emoji, and what a
    terminal would obey is spelled out.

    Args:
        width: where the output is no terminal; tables that go to a file are not squeezed into 80 columns.
    """

    def __init__(self, width: int = 120) -> None:
        super().__init__(width=None if sys.stdout.isatty() else width, markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options)


def terminal() -> Console:
    """The console of everything that is printed."""
    return Terminal()


def print_line(text: object) -> None:
    """A line that is to stay as it is, whatever its length; of texts from outside what can be printed."""
    sys.stdout.write(f"{printable(text)}\n")


def print_rows(title: str, rows: Sequence[tuple[str, str]]) -> None:
    """A table of names and values."""
    table = Table(title=title, show_header=False, min_width=70)
    for name, value in rows:
        table.add_row(name, value)
    terminal().print(table)


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], sides: str = "ll") -> None:
    """A table of texts, flush left where `sides` has `l`, and of numbers, flush right; names of runs are long."""
    table = Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(column, justify="left" if sides[i : i + 1] == "l" else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    Terminal(200).print(table)


def near(folder: Path) -> Path:
    """A folder as one would type it here."""
    return folder.relative_to(Path.cwd()) if folder.is_relative_to(Path.cwd()) else folder
