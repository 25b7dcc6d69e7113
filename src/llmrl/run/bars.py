"""Progress bars on a terminal: one for each task, with its latest result, and a table below them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from llmrl.core.terminal import drawing

_MAX_ROWS = 12
"""Maximum number of rows of the table, so that the terminal does not scroll."""


class Bars(Progress):
    """Progress bars, not started, of tasks with the fields `unit`, `speed` and `news`.

    Args:
        console: console to draw on; None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._table: RenderableType | None = None
        news = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[news]}", markup=False, table_column=news),
            console=console or Console(file=drawing(sys.stderr)),
            expand=True,
        )

    def show_below(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Show rows of cells below the bars, in place of earlier ones.

        The column with the longest cell takes the remaining width and is cut if it is too long. Without `columns` there
        are no headings.
        """
        table = Table(box=None, show_header=bool(columns), header_style="dim", pad_edge=False, expand=True)
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        for i, width in enumerate(widths):
            wide = 1 if width == max(widths) else None
            table.add_column(columns[i] if columns else "", no_wrap=True, overflow="ellipsis", ratio=wide)
        for row in rows[:_MAX_ROWS]:
            table.add_row(*map(Text, row))
        if len(rows) > _MAX_ROWS:
            table.add_row(Text(f"and {len(rows) - _MAX_ROWS} more"))
        self._table = table if rows else None
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars and the table below them."""
        yield from super().get_renderables()
        if self._table is not None:
            yield self._table
