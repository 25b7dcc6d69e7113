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
        self._news: dict[str, str] = {}
        self._stages: dict[str, str] = {}  # stages of runs that wait for another run
        self._lines = 0
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

    def update_row(self, name: str, numbers: Numbers, stage: str = "") -> None:
        """Store the progress of a run, and print a line about all runs if one is due.

        Args:
            name: name of the run.
            numbers: progress of the run, or of its `stage`.
            stage: name of the stage, if the run still needs another one; empty if not.
        """
        share = min(numbers.done / numbers.total, 1.0) if numbers.total else 0.0
        with self._lock:
            self._stages.pop(name, None)
            if stage:
                self._stages[name] = f"{stage} {share:.0%}"
            else:
                self._rows[name] = share, numbers.steps_per_second or 0.0
            self._news[name] = "" if stage else numbers.news
            if (now := time.monotonic()) - self._last_report < self._every_s:
                return
            self._last_report = now
            stages = "; ".join(dict.fromkeys(self._stages.values()))
            shares, speeds = zip(*self._rows.values(), strict=True) if self._rows else ((), ())
            # A line has room for one run only, so runs take turns.
            updated_rows = sorted(row for row, news in self._news.items() if news)
            selected = updated_rows[self._lines % len(updated_rows)] if updated_rows else ""
            self._lines += 1
            news = f"; {selected}: {self._news[selected]}" if selected else ""
        text = f"{len(shares)} of {self._runs} runs under way"
        if shares:
            text += f", {sum(shares) / len(shares):.1%} of these, {sum(speeds):,.4g} a second{news}"
        sys.stderr.write(printable(f"{text}; {stages}" if stages else text) + "\n")


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
            self._display.update_row(self._name, numbers, self.stage)
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
