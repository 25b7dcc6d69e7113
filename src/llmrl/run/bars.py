"""A progress bar on a terminal, with the latest result, and a text below it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from llmrl.core.printable import printable
from llmrl.core.terminal import to_drawing_stream
from llmrl.run.status import RunProgress


class TerminalBar(Progress):
    """A progress bar with columns for unit, speed, remaining time and latest result. `start` shows it.

    Args:
        console: console to draw on; None: standard error.

    Attributes:
        note: text below the bar; empty for none.
    """

    def __init__(self, console: Console | None = None) -> None:
        self.note = ""
        result_column = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        super().__init__(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[unit]}"),
            TextColumn("{task.fields[speed]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[result_text]}", markup=False, table_column=result_column),
            console=console or Console(file=to_drawing_stream(sys.stderr)),
            expand=True,
        )

    def show_progress(self, description: str, progress: RunProgress, speed: str) -> None:
        """Show the progress in the bar."""
        fields: dict[str, Any] = {
            "description": printable(description),
            "total": progress.total,
            "completed": progress.done,
            "unit": progress.unit,
            "speed": speed,
            "result_text": printable(progress.result_text),
        }
        if not self.task_ids:
            self.add_task(**fields)
        self.update(self.task_ids[0], **fields)

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bar and the note below it."""
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)
