"""Progress bars on a terminal: one for each task, with its latest result, and a text below them."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from llmrl.core.terminal import drawing


class Bars(Progress):
    """Progress bars, not started, of tasks with the fields `unit`, `speed` and `result_text`.

    Args:
        console: console to draw on; None: standard error.

    Attributes:
        note: text below the bars; empty: none.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.note = ""
        result_text = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[result_text]}", markup=False, table_column=result_text),
            console=console or Console(file=drawing(sys.stderr)),
            expand=True,
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars and the note below them."""
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)
