"""Progress bars on a terminal: one for each task, with its latest result, and a text below them."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from llmrl.core.printable import printable
from llmrl.core.terminal import to_drawing_stream
from llmrl.run.status import RunProgress


class Bars(Progress):
    """Progress bars of tasks, not started.

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
            console=console or Console(file=to_drawing_stream(sys.stderr)),
            expand=True,
        )

    def show_progress(self, task: TaskID | None, description: str, progress: RunProgress, speed: str) -> TaskID:
        """Show the progress of a task in its bar and return the task; None: add a bar."""
        fields: dict[str, Any] = {
            "description": printable(description),
            "total": progress.total,
            "completed": progress.done,
            "unit": progress.unit,
            "speed": speed,
            "result_text": printable(progress.result_text),
        }
        if task is None:
            return self.add_task(**fields)
        self.update(task, **fields)
        return task

    def get_renderables(self) -> Iterable[RenderableType]:
        """Return the bars and the note below them."""
        yield from super().get_renderables()
        if self.note:
            yield Text(self.note)
