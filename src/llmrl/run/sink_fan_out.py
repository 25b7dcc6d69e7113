"""Distribution of a run's metrics to all its sinks, which isolates the run from their failures."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import short_error
from llmrl.core.secrets import redact, redact_nested
from llmrl.core.threads import daemon_thread
from llmrl.run.sink import Ending, Opening, Row, Sink

log = logging.getLogger(__name__)

FINISH_S = 30.0
"""Maximum time that a run which has ended by itself waits for its sinks to close, seconds."""
STOP_S = 5.0
"""The same for a run that a signal stops, because schedulers soon kill it, seconds."""
RETRY_S = 300.0
"""Time after a failure at which a sink in the background is opened again, seconds."""
MAX_QUEUED = 20_000
"""Maximum number of rows, texts and pictures that wait for a sink; a sink with more has failed."""
_POLL_S = 0.05

Call = Callable[[Sink], None]
Message = Callable[[], None]


class FanOut:
    """The sinks of one run.

    Args:
        sinks: sinks by the names of their options.
        opening: description of the run; `open` sets its `kept`.
        history: function that reads all rows of the run so far, for sinks that are opened again.
    """

    def __init__(self, sinks: Mapping[str, Sink], opening: Opening, history: Callable[[], list[Row]]) -> None:
        opening = replace(
            opening, config=redact_nested(opening.config), hyperparameters=redact_nested(opening.hyperparameters)
        )
        self._guards = [
            (_Background if sink.background else _Guard)(f"loggers.{name}", sink, opening, history)
            for name, sink in sinks.items()
        ]
        self._safe_tags: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._guards)

    def open(self, rows: Sequence[Row]) -> None:
        """Open all sinks and pass them the rows that are kept of earlier attempts."""
        safe_rows = [self._safe(row) for row in rows]
        for guard in self._guards:
            guard.open(safe_rows)

    def row(self, row: Row) -> None:
        """Pass on a row that was just logged."""
        safe = self._safe(row)
        for guard in self._guards:
            guard.row(safe)

    def text(self, row: Row, tag: str, markdown: str) -> None:
        """Pass on a text that belongs to a row."""
        row, markdown = self._safe(row), redact(markdown)
        for guard in self._guards:
            guard.send(lambda sink: sink.text(row, tag, markdown))

    def picture(self, row: Row, tag: str, path: Path) -> None:
        """Pass on a picture or video that belongs to a row."""
        row = self._safe(row)
        for guard in self._guards:
            guard.send(lambda sink: sink.picture(row, tag, path))

    def close(self, ending: Ending) -> None:
        """Close the sinks without a thread; the others begin to close. Further calls do nothing."""
        ending = replace(ending, error=redact(ending.error), summary=redact_nested(ending.summary))
        for guard in self._guards:
            guard.close(ending)

    def wait(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait until all sinks are closed, at most `FINISH_S`, or `STOP_S` once `hurried()`.

        Then report incomplete ones. A sink that is not closed by then is abandoned: its thread ends with the process.
        """
        start, last_report = time.monotonic(), None
        while any(guard.closed and guard.busy for guard in self._guards):
            now = time.monotonic()
            if hurried():
                last_report = now if last_report is None else last_report
            if now - start > FINISH_S or (last_report is not None and now - last_report > STOP_S):
                break
            time.sleep(_POLL_S)
        for guard in self._guards:
            if (lacks := guard.lacks()) is not None:
                log.warning("%s %s; metrics.jsonl in the run folder has everything", guard.name, lacks)
            guard.leave()
        self._guards = []

    def _safe(self, row: Row) -> Row:
        """Return a row whose tags hold no secret."""
        if row.metrics.keys() <= self._safe_tags:
            return row
        metrics = {redact(tag): value for tag, value in row.metrics.items()}
        self._safe_tags |= row.metrics.keys() & metrics.keys()
        return replace(row, metrics=metrics)


class _Guard:
    """A sink that is called in the caller's thread.

    An exception of the sink is reported, and the sink is not called again.
    """

    def __init__(self, name: str, sink: Sink, opening: Opening, history: Callable[[], list[Row]]) -> None:
        self.name, self.sink = name, sink
        self._opening, self._history = opening, history
        self.n_sent = self.n_rows = 0  # rows passed to the sink, and all rows so far
        self._next = 0  # number of the next row
        self.error = ""
        self.closed = self.is_abandoned = False

    @property
    def busy(self) -> bool:
        """True while the sink is not closed."""
        return False

    def open(self, kept: Sequence[Row]) -> None:
        self.n_rows = len(kept)
        self._open(kept)

    def row(self, row: Row) -> None:
        self.n_rows = row.number + 1
        self._rows([row])

    def send(self, call: Call) -> None:
        self._try(call)

    def close(self, ending: Ending) -> None:
        if not self.closed:
            self.closed = True
            self._try(lambda sink: sink.close(ending))

    def lacks(self) -> str | None:
        """Return a report on an incomplete sink; None if there is nothing to report."""
        if not self.error:
            return None
        missing = self.n_rows - self.n_sent
        problem = f"lacks the last {missing:,} of {self.n_rows:,} rows" if missing else "was not closed properly"
        return f"{problem}: {self.error}"

    def leave(self) -> None:
        """Abandon a sink that is not closed yet."""
        self.is_abandoned = True
        if self.busy:
            self.error = ""
            self._try(lambda sink: sink.abandon())

    def _open(self, rows: Sequence[Row]) -> None:
        opening = replace(self._opening, kept=len(rows))
        if rows:
            opening = replace(opening, started=rows[0].unix)
        if self._try(lambda sink: sink.open(opening)):
            self._rows(rows)

    def _rows(self, rows: Sequence[Row]) -> None:
        new = [row for row in rows if row.number >= self._next]
        if new and self._try(lambda sink: sink.rows(new)):
            self._next = new[-1].number + 1
            self.n_sent = max(self.n_sent, self._next)

    def _try(self, call: Call) -> bool:
        """Call the sink unless it has failed; return whether the call succeeded."""
        if self.error:
            return False
        try:
            call(self.sink)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (no error of a library may end the run)
            self._report_failure(error)
            return False
        return True

    def _report_failure(self, error: BaseException) -> None:
        self.error = redact(short_error(error)) or type(error).__name__
        if not self.is_abandoned:
            log.warning("%s has failed: %s. The run continues%s", self.name, self.error, self._consequence)
        log.debug("%s has failed", self.name, exc_info=error)

    _consequence = " without this sink"


class _Background(_Guard):
    """A sink with a thread of its own, which takes waiting rows. After a failure it is opened again."""

    _consequence = f"; it is tried again every {RETRY_S / 60:.0f} min"

    def __init__(self, name: str, sink: Sink, opening: Opening, history: Callable[[], list[Row]]) -> None:
        super().__init__(name, sink, opening, history)
        self._waiting: queue.Queue[Row | Message | None] = queue.Queue(MAX_QUEUED)
        self._failures = 0
        self._retry_time = 0.0
        self._has_backlog = False
        self._thread = daemon_thread(f"llmrl-{name}", self._work)

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def open(self, kept: Sequence[Row]) -> None:
        self.n_rows = len(kept)
        self._enqueue(lambda: self._open(kept))
        self._thread.start()

    def row(self, row: Row) -> None:
        self.n_rows = row.number + 1
        self._enqueue(row)

    def send(self, call: Call) -> None:
        def message() -> None:
            self._try(call)

        self._enqueue(message)

    def close(self, ending: Ending) -> None:
        if not self.closed:
            self.closed = True
            self.send(lambda sink: sink.close(ending))
            self._enqueue(None)

    def lacks(self) -> str | None:
        if self.busy:
            missing = self.n_rows - self.n_sent
            problem = f"lacks the last {missing:,} of {self.n_rows:,} rows" if missing else "could not be closed"
            return f"{problem}: it did not answer in time"
        return super().lacks()

    def _enqueue(self, message: Row | Message | None) -> None:
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._has_backlog = True

    def _work(self) -> None:
        while True:
            message = self._waiting.get()
            rows = []
            while isinstance(message, Row):
                rows.append(message)
                try:
                    message = self._waiting.get_nowait()
                except queue.Empty:
                    break
            if rows:
                self._send_backlog()
                self._rows(rows)
            if message is None:
                return
            if not isinstance(message, Row):
                message()

    def _send_backlog(self) -> None:
        """Reopen a sink that failed a while ago, or that lacks rows because it could not keep up."""
        if self._has_backlog and not self.error:
            self._has_backlog = False
            self._report_failure(RuntimeError(f"it is more than {MAX_QUEUED:,} rows, texts and pictures behind"))
        if self.error and time.monotonic() >= self._retry_time and not self.closed:
            self.error, self._next = "", 0
            self._open(self._history())

    def _report_failure(self, error: BaseException) -> None:
        self._failures += 1
        self._retry_time = time.monotonic() + RETRY_S
        if self._failures == 1:
            super()._report_failure(error)
        else:
            self.error = redact(short_error(error)) or type(error).__name__
