"""Tells all sinks of a run what it measures, and keeps their failures from it."""

from __future__ import annotations

import logging
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import short_error
from llmrl.core.secrets import redact, redact_all
from llmrl.core.threads import daemon_thread
from llmrl.run.sinks.sink import Ending, Opening, Row, Sink

log = logging.getLogger(__name__)

FINISH_S = 30.0
"""How long a run that has ended by itself waits for its sinks to take the rest and close, seconds."""
STOP_S = 5.0
"""The same where a signal asks the run to stop: schedulers wait no longer than for what has to be saved."""
AGAIN_S = 300.0
"""How long after its failure a sink in the background is opened again, seconds."""
MOST_WAITING = 20_000
"""Rows, texts and pictures that may wait for a sink; one that is further behind has failed."""
_POLL_S = 0.05

Call = Callable[[Sink], None]
Message = Callable[[], None]


class FanOut:
    """The sinks of one run.

    Args:
        sinks: by the names of their options.
        opening: what the run is; `kept` is set by `open`.
        history: reads all rows of the run so far, for sinks that are opened again.
    """

    def __init__(self, sinks: Mapping[str, Sink], opening: Opening, history: Callable[[], list[Row]]) -> None:
        opening = replace(
            opening, config=redact_all(opening.config), hyperparameters=redact_all(opening.hyperparameters)
        )
        self._guards = [
            (_Background if sink.background else _Guard)(f"loggers.{name}", sink, opening, history)
            for name, sink in sinks.items()
        ]
        self._safe_tags: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._guards)

    def open(self, rows: Sequence[Row]) -> None:
        """Open all sinks and tell them the rows that are kept of earlier attempts."""
        kept = [self._safe(row) for row in rows]
        for guard in self._guards:
            guard.open(kept)

    def row(self, row: Row) -> None:
        """Tell a row that was just logged."""
        safe = self._safe(row)
        for guard in self._guards:
            guard.row(safe)

    def text(self, row: Row, tag: str, markdown: str) -> None:
        """Tell a text that belongs to a row."""
        row, markdown = self._safe(row), redact(markdown)
        for guard in self._guards:
            guard.tell(lambda sink: sink.text(row, tag, markdown))

    def picture(self, row: Row, tag: str, path: Path) -> None:
        """Tell a picture or video that belongs to a row."""
        row = self._safe(row)
        for guard in self._guards:
            guard.tell(lambda sink: sink.picture(row, tag, path))

    def close(self, ending: Ending) -> None:
        """Close the sinks that write here; the others have begun to close. Asked again, it does nothing."""
        ending = replace(ending, error=redact(ending.error), summary=redact_all(ending.summary))
        for guard in self._guards:
            guard.close(ending)

    def wait(self, hurried: Callable[[], bool] = lambda: False) -> None:
        """Wait until all sinks are closed, at most `FINISH_S`, or `STOP_S` once `hurried`; then say which of them lack
        something. One that is not closed by then is left alone: its thread ends with the process."""
        begun, told = time.monotonic(), None
        while any(guard.closed and guard.busy for guard in self._guards):
            now = time.monotonic()
            if hurried():
                told = now if told is None else told
            if now - begun > FINISH_S or (told is not None and now - told > STOP_S):
                break
            time.sleep(_POLL_S)
        for guard in self._guards:
            if (lacks := guard.lacks()) is not None:
                log.warning("%s %s; metrics.jsonl in the run folder has everything", guard.name, lacks)
            guard.leave()
        self._guards = []

    def _safe(self, row: Row) -> Row:
        """A row whose tags hold no secret."""
        if row.metrics.keys() <= self._safe_tags:
            return row
        metrics = {redact(tag): value for tag, value in row.metrics.items()}
        self._safe_tags |= row.metrics.keys() & metrics.keys()
        return replace(row, metrics=metrics)


class _Guard:
    """One sink that is called here and now. What it raises is reported, and it is told nothing more."""

    def __init__(self, name: str, sink: Sink, opening: Opening, history: Callable[[], list[Row]]) -> None:
        self.name, self.sink = name, sink
        self._opening, self._history = opening, history
        self.told = self.all = 0  # rows that it has had, and all so far
        self._next = 0  # number of the row that comes next
        self.fault = ""
        self.closed = self.left = False  # told to close; nobody waits for it any more

    @property
    def busy(self) -> bool:
        """Whether it is not closed yet."""
        return False

    def open(self, kept: Sequence[Row]) -> None:
        self.all = len(kept)
        self._open(kept)

    def row(self, row: Row) -> None:
        self.all = row.number + 1
        self._rows([row])

    def tell(self, call: Call) -> None:
        self._try(call)

    def close(self, ending: Ending) -> None:
        if not self.closed:
            self.closed = True
            self._try(lambda sink: sink.close(ending))

    def lacks(self) -> str | None:
        """What is to be said of it at the end; None: nothing."""
        if not self.fault:
            return None
        missing = self.all - self.told
        what = f"lacks the last {missing:,} of {self.all:,} rows" if missing else "was not closed properly"
        return f"{what}: {self.fault}"

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self.left = True
        if self.busy:
            self.fault = ""
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
            self.told = max(self.told, self._next)

    def _try(self, call: Call) -> bool:
        """Call the sink unless it has failed; whether that went well."""
        if self.fault:
            return False
        try:
            call(self.sink)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a library raises, the run goes on)
            self._failed(error)
            return False
        return True

    def _failed(self, error: BaseException) -> None:
        self.fault = redact(short_error(error)) or type(error).__name__
        if not self.left:
            log.warning("%s has failed: %s. The run goes on%s", self.name, self.fault, self._cure)
        log.debug("%s has failed", self.name, exc_info=error)

    _cure = ", and tells it nothing more"


class _Background(_Guard):
    """One sink with a thread of its own, which takes what waits for it. After a failure it is opened again."""

    _cure = f"; it is tried again every {AGAIN_S / 60:.0f} min"

    def __init__(self, name: str, sink: Sink, opening: Opening, history: Callable[[], list[Row]]) -> None:
        super().__init__(name, sink, opening, history)
        self._waiting: queue.Queue[Row | Message | None] = queue.Queue(MOST_WAITING)
        self._failures = 0
        self._again = 0.0
        self._behind = False
        self._thread = daemon_thread(f"llmrl-{name}", self._work)

    @property
    def busy(self) -> bool:
        return self._thread.is_alive()

    def open(self, kept: Sequence[Row]) -> None:
        self.all = len(kept)
        self._put(lambda: self._open(kept))
        self._thread.start()

    def row(self, row: Row) -> None:
        self.all = row.number + 1
        self._put(row)

    def tell(self, call: Call) -> None:
        def message() -> None:
            self._try(call)

        self._put(message)

    def close(self, ending: Ending) -> None:
        if not self.closed:
            self.closed = True
            self.tell(lambda sink: sink.close(ending))
            self._put(None)

    def lacks(self) -> str | None:
        if self.busy:
            missing = self.all - self.told
            what = f"lacks the last {missing:,} of {self.all:,} rows" if missing else "could not be closed"
            return f"{what}: it did not answer in time"
        return super().lacks()

    def _put(self, message: Row | Message | None) -> None:
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._behind = True

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
                self._catch_up()
                self._rows(rows)
            if message is None:
                return
            if not isinstance(message, Row):
                message()

    def _catch_up(self) -> None:
        """Open a sink again that has failed a while ago, or could not keep up and so lacks rows."""
        if self._behind and not self.fault:
            self._behind = False
            self._failed(RuntimeError(f"it is more than {MOST_WAITING:,} rows, texts and pictures behind"))
        if self.fault and time.monotonic() >= self._again and not self.closed:
            self.fault, self._next = "", 0
            self._open(self._history())

    def _failed(self, error: BaseException) -> None:
        self._failures += 1
        self._again = time.monotonic() + AGAIN_S
        if self._failures == 1:
            super()._failed(error)
        else:
            self.fault = redact(short_error(error)) or type(error).__name__
