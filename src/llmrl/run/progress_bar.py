"""Display of a run's progress: a bar on a terminal, a line in a notebook, else log lines at intervals.

The numbers are also written to `status.json`, which the launcher of a sweep and `llmrl-sweep status` read. If a process
computes several runs, each in a thread of its own, they have lines in their `run.log` only.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from llmrl.core.printable import printable
from llmrl.run import status
from llmrl.run.log_file import get_active_log_files

if TYPE_CHECKING:
    from llmrl.run.bars import TerminalBar


log = logging.getLogger(__name__)

_WARM_UP_FRACTION = 0.01
"""The speed omits a first update below this fraction of the total, because its time includes compilation."""
MAX_PROPOSAL_CHARACTERS = 80
"""Maximum number of characters of a proposal that are shown."""

FIRST_LOG_S = 10.0
"""Seconds until the first log line, which shows a user early that the run makes progress."""
LOG_INTERVAL_S = 60.0
"""Seconds between log lines without a bar."""
REPORT_INTERVAL_S = 5.0
"""Seconds between calls of `on_report`."""
NOTEBOOK_INTERVAL_S = 1.0
"""Seconds between two changes of the line in a notebook."""


class ProgressBar:
    """A display of the number of finished units of work, `done` of `total`; a context manager.

    Args:
        total: final value of `done`; None if unknown.
        unit: name of the counted units, e.g. `steps`.
        description: name of the work, e.g. `train`.
        done: number of units that are finished at the start, e.g. by an earlier attempt of a resumed run.
        on_report: function that is called with the progress at most every `REPORT_INTERVAL_S` seconds, and at the end.
        draws_bar: whether to draw a bar; None: draw it if standard error is a terminal.
    """

    def __init__(
        self,
        total: float | None,
        unit: str,
        description: str,
        done: float = 0,
        on_report: Callable[[status.RunProgress], None] | None = None,
        draws_bar: bool | None = None,
    ) -> None:
        self.progress = status.RunProgress(done=done, total=total, unit=unit)
        self._description = description
        self._on_report = on_report
        self._draws_bar = sys.stderr.isatty() if draws_bar is None else draws_bar
        self._bar: TerminalBar | None = None
        self._in_notebook = "ipykernel" in sys.modules
        self._is_in_main_thread, self._log_files = True, get_active_log_files()
        self._start_done = done
        self._has_updated = self._has_logged = False
        self._start_time = self._last_report_time = self._last_log_time = self._last_notebook_time = time.monotonic()

    def __enter__(self) -> ProgressBar:
        self._start_time = self._last_report_time = self._last_log_time = self._last_notebook_time = time.monotonic()
        self._is_in_main_thread = threading.current_thread() is threading.main_thread()
        self._log_files = get_active_log_files()
        if self._draws_bar and self._is_in_main_thread:
            from llmrl.run.bars import TerminalBar

            self._bar = TerminalBar()
            self._bar.show_progress(self._description, self.progress, self._format_speed())
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        else:
            self._write_log_line()
        if self._in_notebook:
            self._write_notebook_line("\n")
        if self._on_report is not None:
            self._on_report(self.progress)

    def update(self, done: float) -> None:
        """Set the number of finished units to `done`; it may be called at every step."""
        now = time.monotonic()
        progress = self.progress
        progress.done = done
        if not self._has_updated and done > self._start_done:
            self._has_updated = True
            if progress.total and done - self._start_done < _WARM_UP_FRACTION * progress.total:
                self._start_done, self._start_time = done, now
        elapsed = now - self._start_time
        if elapsed > 0 and done > self._start_done:
            progress.steps_per_second = (done - self._start_done) / elapsed
            if progress.total is not None:
                progress.eta_s = max(progress.total - done, 0) / progress.steps_per_second
        if self._bar is not None:
            self._bar.show_progress(self._description, progress, self._format_speed())
        elif now - self._last_log_time >= (LOG_INTERVAL_S if self._has_logged else FIRST_LOG_S):
            self._last_log_time, self._has_logged = now, True
            self._write_log_line()
        if self._in_notebook and now - self._last_notebook_time >= NOTEBOOK_INTERVAL_S:
            self._last_notebook_time = now
            self._write_notebook_line()
        if self._on_report is not None and now - self._last_report_time >= REPORT_INTERVAL_S:
            self._last_report_time = now
            self._on_report(progress)

    def advance(self, n_units: float) -> None:
        """Add `n_units` to the number of finished units."""
        self.update(self.progress.done + n_units)

    def show_result(self, value: float, proposed: str = "") -> None:
        """Set the last objective or return, and the proposal that reached it; later displays show both."""
        self.progress.value, self.progress.proposed = value, shorten_proposal(proposed)
        self.update(self.progress.done)

    def print_line(self, text: str) -> None:
        """Show a line of text: above the bar on a terminal, else in the log, and below the cell of a notebook."""
        if self._bar is not None:
            self._bar.console.print(printable(text), markup=False, emoji=False, highlight=False, soft_wrap=True)
        else:
            log.info("%s", text)
            if self._in_notebook:
                sys.stdout.write(f"\r{printable(text):<100}\n")

    @property
    def has_bar(self) -> bool:
        """True while there is a bar on the terminal."""
        return self._bar is not None

    def show_activity(self, text: str) -> None:
        """Show the current activity: below the bar on a terminal until the next note, else as a log line."""
        if self._bar is not None:
            self._bar.note = printable(text)
            self._bar.refresh()
        else:
            log.info("%s; %s", self, text)

    def _write_log_line(self) -> None:
        if self._is_in_main_thread:
            log.info("%s", self)
            return
        for file in self._log_files:  # those of the thread that entered the bar, because another thread may call this
            file.write(log, logging.INFO, str(self))

    def _write_notebook_line(self, line_end: str = "") -> None:
        """Write the progress over the previous line."""
        sys.stdout.write(f"\r{printable(str(self)):<100}{line_end}")

    def __str__(self) -> str:
        progress = self.progress
        total = "" if progress.total is None else f"/{progress.total:.0f}"
        percent = f" ({progress.done / progress.total:.1%})" if progress.total else ""
        remaining = "" if progress.eta_s is None else f", {format_clock(progress.eta_s)} left"
        speed = f", {self._format_speed()}" if progress.steps_per_second else ""
        result_text = f"; {progress.result_text}" if progress.result_text else ""
        return f"{self._description} {progress.done:.0f}{total} {progress.unit}{percent}{speed}{remaining}{result_text}"

    def _format_speed(self) -> str:
        speed = self.progress.steps_per_second
        if speed is None:
            return ""
        return f"{speed:,.0f} {self.progress.unit}/s" if speed >= 100 else f"{speed:.3g} {self.progress.unit}/s"


def shorten_proposal(text: str, max_characters: int = MAX_PROPOSAL_CHARACTERS) -> str:
    """Return `text` cut to at most `max_characters`, because a proposal may have hundreds of numbers."""
    return text if len(text) <= max_characters else f"{text[: max_characters - 1]}…"


def format_clock(seconds: float) -> str:
    """Return a duration as `h:mm:ss`, or `m:ss` below an hour."""
    minutes, seconds_rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_rest:02d}" if hours else f"{minutes}:{seconds_rest:02d}"


def format_duration(seconds: float) -> str:
    """Return a duration in its two largest units: `2 h 5 min`, `17 min 40 s`, `40 s`.

    >>> format_duration(7500), format_duration(1060), format_duration(0.4)
    ('2 h 5 min', '17 min 40 s', '0 s')
    """
    minutes, seconds_rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {seconds_rest} s" if minutes else f"{seconds_rest} s"
