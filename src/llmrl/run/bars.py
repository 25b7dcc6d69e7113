"""Bars on a terminal: one for each task, with what it has reached, and a table below them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from llmrl.core.terminal import drawing

_SHOWN = 12
"""Rows of the table, at most: a terminal that scrolls shows nothing."""


class Bars(Progress):
    """Bars, not started, of tasks with the fields `unit`, `speed` and `news`.

    Args:
        console: to draw on; None: standard error.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._below: RenderableType | None = None
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
        """Show rows of cells below the bars, in place of those before. The column with the longest cell takes the room
        that others leave, and is cut where that is too little; without `columns` there are no headings."""
        table = Table(box=None, show_header=bool(columns), header_style="dim", pad_edge=False, expand=True)
        widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
        for i, width in enumerate(widths):
            wide = 1 if width == max(widths) else None
            table.add_column(columns[i] if columns else "", no_wrap=True, overflow="ellipsis", ratio=wide)
        for row in rows[:_SHOWN]:
            table.add_row(*map(Text, row))
        if len(rows) > _SHOWN:
            table.add_row(Text(f"and {len(rows) - _SHOWN} more"))
        self._below = table if rows else None
        self.refresh()

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return what is drawn: the bars, and what is below them."""
        yield from super().get_renderables()
        if self._below is not None:
            yield self._below
