"""Progress of several runs of one process, shown together.

On a terminal each run has a bar; else one line about all of them is printed to standard error at intervals. Each run's
own lines are in its `run.log`.
"""

from __future__ import annotations

import sys
import threading
import time
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING

from llmrl.core.printable import printable

if TYPE_CHECKING:
    import rich.progress

    from llmrl.run.bars import Bars
    from llmrl.run.status import RunProgress as Numbers

_row: ContextVar[DisplayRow | None] = ContextVar("llmrl_progress_row", default=None)


class RowsDisplay:
    """A display of the progress of runs, each in a thread of its own; a context manager.

    Args:
        runs: number of runs.
        every_s: seconds between two lines, if there is no terminal.
        terminal: whether to draw bars; None: if standard error is a terminal.
    """

    def __init__(self, runs: int, every_s: float = 60.0, terminal: bool | None = None) -> None:
        self._runs, self._every_s = runs, every_s
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._bars: Bars | None = None
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[float, float]] = {}  # finished share and steps per second, by run
        self._last_report = time.monotonic()

    def __enter__(self) -> RowsDisplay:
        if self._terminal:
            from llmrl.run.bars import Bars

            self._bars = Bars()
            self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def show_here(self, name: str) -> None:
        """Show the progress of this thread, from now on, as that of the run called `name`."""
        _row.set(DisplayRow(self, name))

    def update_row(self, name: str, numbers: Numbers) -> None:
        """Store the progress of a run, and print a line about all runs if one is due."""
        share = min(numbers.done / numbers.total, 1.0) if numbers.total else 0.0
        with self._lock:
            self._rows[name] = share, numbers.steps_per_second or 0.0
            if (now := time.monotonic()) - self._last_report < self._every_s:
                return
            self._last_report = now
            shares, speeds = zip(*self._rows.values(), strict=True)
        text = f"{len(shares)} of {self._runs} runs under way, {sum(shares) / len(shares):.1%} of these"
        news = f"; {name}: {numbers.news}" if numbers.news else ""
        sys.stderr.write(printable(f"{text}, {sum(speeds):,.4g} a second{news}") + "\n")


class DisplayRow:
    """The row of one run in a display.

    Args:
        display: display of all runs.
        name: name of the run.

    Attributes:
        stage: name of the stage, while the run waits for another run; empty while it is computed itself.
    """

    def __init__(self, display: RowsDisplay, name: str) -> None:
        self._display, self._name, self.stage = display, name, ""
        self._task: rich.progress.TaskID | None = None

    def show(self, description: str, numbers: Numbers, speed: str) -> None:
        """Show the progress of the run; may be called in any thread and at every step."""
        bars = self._display._bars
        if bars is None:
            if not self.stage:
                self._display.update_row(self._name, numbers)
            return
        if self._task is None:
            self._task = bars.add_task(self._name, total=None, unit="", speed="", news="")
        bars.update(
            self._task,
            description=printable(f"{self._name} {self.stage or description}"),
            total=numbers.total,
            completed=numbers.done,
            unit=numbers.unit,
            speed=speed,
            news=printable(numbers.news),
        )


def active_row() -> DisplayRow | None:
    """Return the row of this thread's run in the display of several runs; None if there is no such display."""
    return _row.get()
