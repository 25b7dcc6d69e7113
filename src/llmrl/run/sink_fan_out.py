"""Distribution of a run's metrics to all its sinks, which isolates the run from their failures."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import summarize_error
from llmrl.core.secrets import redact, redact_nested
from llmrl.core.threads import make_daemon_thread
from llmrl.run.sink import Ending, Opening, Row, Sink

log = logging.getLogger(__name__)

FINISH_TIMEOUT_S = 30.0
"""Maximum time in seconds for which a run waits for its sinks to close, unless a signal has stopped it."""
STOP_TIMEOUT_S = 5.0
"""Maximum time in seconds for which a run that a signal has stopped waits, because schedulers soon kill it."""
MAX_QUEUED_CALLS = 20_000
"""Maximum number of rows, texts and pictures that wait for a sink; a sink with more counts as failed."""
_POLL_S = 0.05

SinkFunction = Callable[[Sink], None]
"""Function that calls a method of a sink."""


class SinkFanOut:
    """The sinks of one run.

    Args:
        sinks: sinks by the names of their options.
        opening: description of the run; sinks get copies with `n_kept_rows`, and `started` of the first attempt.
    """

    def __init__(self, sinks: Mapping[str, Sink], opening: Opening) -> None:
        opening = replace(
            opening, config=redact_nested(opening.config), hyperparameters=redact_nested(opening.hyperparameters)
        )
        self._guarded_sinks = [_GuardedSink(f"loggers.{name}", sink, opening) for name, sink in sinks.items()]
        self._tags_without_secrets: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._guarded_sinks)

    def open(self, rows: Sequence[Row]) -> None:
        """Open all sinks and pass on `rows`, those of earlier attempts before the resumed checkpoint."""
        redacted_rows = [self._redact_tags(row) for row in rows]
        for guarded_sink in self._guarded_sinks:
            guarded_sink.open(redacted_rows)

    def row(self, row: Row) -> None:
        """Pass on a row that was just logged."""
        redacted_row = self._redact_tags(row)
        for guarded_sink in self._guarded_sinks:
            guarded_sink.row(redacted_row)

    def text(self, row: Row, tag: str, markdown: str) -> None:
        """Pass on a text that belongs to a row."""
        row, markdown = self._redact_tags(row), redact(markdown)
        for guarded_sink in self._guarded_sinks:
            guarded_sink.send(lambda sink: sink.text(row, tag, markdown))

    def picture(self, row: Row, tag: str, path: Path) -> None:
        """Pass on a picture or video that belongs to a row."""
        row = self._redact_tags(row)
        for guarded_sink in self._guarded_sinks:
            guarded_sink.send(lambda sink: sink.picture(row, tag, path))

    def close(self, ending: Ending) -> None:
        """Close the sinks without a thread; the others begin to close. Further calls do nothing."""
        ending = replace(ending, error=redact(ending.error), summary=redact_nested(ending.summary))
        for guarded_sink in self._guarded_sinks:
            guarded_sink.close(ending)

    def wait_until_closed(self, is_stopping: Callable[[], bool]) -> None:
        """Wait until all sinks are closed, at most `FINISH_TIMEOUT_S`, or `STOP_TIMEOUT_S` once `is_stopping()`.

        Then report incomplete ones. A sink that is still open is abandoned: its thread ends with the process.
        """
        deadline, is_deadline_shortened = time.monotonic() + FINISH_TIMEOUT_S, False
        while any(s.is_close_requested and s.is_busy for s in self._guarded_sinks) and time.monotonic() <= deadline:
            if not is_deadline_shortened and is_stopping():
                deadline, is_deadline_shortened = min(deadline, time.monotonic() + STOP_TIMEOUT_S), True
            time.sleep(_POLL_S)
        for guarded_sink in self._guarded_sinks:
            if (problem := guarded_sink.describe_missing_rows()) is not None:
                log.warning("%s %s; metrics.jsonl in the run folder has everything", guarded_sink.name, problem)
            guarded_sink.abandon_if_busy()
        self._guarded_sinks = []

    def _redact_tags(self, row: Row) -> Row:
        """Return a row whose tags hold no secret."""
        if row.metrics.keys() <= self._tags_without_secrets:
            return row
        metrics = {redact(tag): value for tag, value in row.metrics.items()}
        self._tags_without_secrets |= row.metrics.keys() & metrics.keys()
        return replace(row, metrics=metrics)


class _GuardedSink:
    """A sink whose exception is logged, and which is not called after an exception.

    With `Sink.background`, a thread of its own calls the sink with the messages in a queue; otherwise the caller does.
    """

    def __init__(self, name: str, sink: Sink, opening: Opening) -> None:
        self.name, self.sink = name, sink
        self._opening = opening
        self.n_delivered_rows = self.n_rows = 0  # numbers of rows passed to the sink, and of all rows so far
        self.error = ""
        self.is_close_requested = self.is_abandoned = False
        self._message_queue: queue.Queue[Row | SinkFunction | None] = queue.Queue()
        self._thread = make_daemon_thread(f"llmrl-{name}", self._deliver_queued_messages) if sink.background else None

    @property
    def is_busy(self) -> bool:
        """True while the thread of the sink runs."""
        return self._thread is not None and self._thread.is_alive()

    def open(self, kept_rows: Sequence[Row]) -> None:
        self.n_rows = len(kept_rows)
        started = kept_rows[0].unix_time if kept_rows else self._opening.started
        opening = replace(self._opening, n_kept_rows=len(kept_rows), started=started)

        def open_sink(sink: Sink) -> None:
            sink.open(opening)
            self._pass_rows(kept_rows)

        if self._thread is not None:
            self._thread.start()
        self.send(open_sink)

    def row(self, row: Row) -> None:
        self.n_rows = row.number + 1
        self.send(row)

    def send(self, message: Row | SinkFunction) -> None:
        """Pass a row to the sink, or call a function with the sink: now, or later in its thread."""
        if self._thread is None:
            self._deliver(message)
        elif not self.error and self._message_queue.qsize() >= MAX_QUEUED_CALLS:
            self._report_failure(RuntimeError(f"it is more than {MAX_QUEUED_CALLS:,} rows, texts and pictures behind"))
        elif not self.error:
            self._message_queue.put(message)

    def close(self, ending: Ending) -> None:
        if not self.is_close_requested:
            self.is_close_requested = True
            self.send(lambda sink: sink.close(ending))
            self._message_queue.put(None)

    def describe_missing_rows(self) -> str | None:
        """Return a report on an incomplete sink; None if there is nothing to report."""
        error = "it did not answer in time" if self.is_busy else self.error
        if not error:
            return None
        n_missing = self.n_rows - self.n_delivered_rows
        problem = f"lacks the last {n_missing:,} of {self.n_rows:,} rows" if n_missing else "was not closed properly"
        return f"{problem}: {error}"

    def abandon_if_busy(self) -> None:
        """Call `Sink.abandon` if the sink is not closed yet."""
        self.is_abandoned = True
        if self.is_busy:
            self.error = ""
            self._deliver(lambda sink: sink.abandon())

    def _deliver_queued_messages(self) -> None:
        """Run the thread: deliver queued messages until one is None; consecutive rows are passed in one call."""
        while (message := self._message_queue.get()) is not None:
            if isinstance(message, Row):
                rows = [message]
                while self._message_queue.queue and isinstance(self._message_queue.queue[0], Row):
                    rows.append(self._message_queue.get())  # type: ignore[arg-type]
                self._deliver(lambda _, rows=rows: self._pass_rows(rows))  # type: ignore[misc]
            else:
                self._deliver(message)

    def _pass_rows(self, rows: Sequence[Row]) -> None:
        if rows:
            self.sink.rows(rows)
            self.n_delivered_rows = rows[-1].number + 1

    def _deliver(self, message: Row | SinkFunction) -> None:
        """Pass a row to the sink or call a function with it, unless the sink has failed."""
        if self.error:
            return
        try:
            if isinstance(message, Row):
                self._pass_rows([message])
            else:
                message(self.sink)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (no error of a library may end the run)
            self._report_failure(error)

    def _report_failure(self, error: BaseException) -> None:
        self.error = redact(summarize_error(error)) or type(error).__name__
        if not self.is_abandoned:
            log.warning("%s has failed: %s. The run continues without this sink", self.name, self.error)
        log.debug("%s has failed", self.name, exc_info=error)
