"""Stopping safely: a signal sets a flag, the loop stops at its next safe point.

Worker processes: forked ones inherit these handlers but ignore the signals (the flag belongs to the process that made
it); spawned ones start with Python's own handlers and should ignore SIGINT and SIGUSR1/2 themselves, because a
terminal sends Ctrl-C, and a scheduler its warning, to every process of a run.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

log = logging.getLogger(__name__)

SIGNALS = tuple(name for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGHUP") if hasattr(signal, name))
"""Ctrl-C; the scheduler's last word; its early warnings before a time limit or preemption; the terminal is gone."""


class StopFlag:
    """While entered, the first of `SIGNALS` sets `requested`; a second Ctrl-C interrupts at once, but never a save.

    Does nothing outside the main thread, where Python delivers no signals.

    Args:
        quiet: somebody else says what is going on.
    """

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self.signal: int | None = None
        self._since = 0.0
        self._pid = os.getpid()
        self._previous: dict[int, Any] = {}
        self._saving = 0
        self._interrupt_after_saving = False

    @property
    def requested(self) -> bool:
        """Whether the loop should stop at its next safe point."""
        return self.signal is not None

    @property
    def waiting_s(self) -> float:
        """How long ago the first signal came, seconds; 0 if none has."""
        return 0.0 if self.signal is None else time.monotonic() - self._since

    @property
    def name(self) -> str:
        """The signal that asked for it, e.g. `SIGTERM`; empty if none has."""
        return "" if self.signal is None else signal.Signals(self.signal).name

    def __enter__(self) -> StopFlag:
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                number = getattr(signal, name)
                if name == "SIGHUP" and signal.getsignal(number) == signal.SIG_IGN:
                    continue  # under nohup
                self._previous[number] = signal.signal(number, self._handle)
        else:
            log.warning("not in the main thread: this run cannot be stopped safely by signals")
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save: an interrupt waits until it is done."""
        self._saving += 1
        try:
            yield
        finally:
            self._saving -= 1
        if self._interrupt_after_saving and not self._saving:
            raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        if os.getpid() != self._pid:
            return
        if self.signal is None:
            self.signal, self._since = number, time.monotonic()
            self._say("stopping at the next safe point; Ctrl-C to stop at once")
        elif number == signal.SIGINT:
            if not self._saving:
                raise KeyboardInterrupt
            self._interrupt_after_saving = True
            self._say("stopping when the checkpoint is saved")

    def _say(self, text: str) -> None:
        # Not through logging or sys.stderr: the signal may have come in the middle of one of their writes.
        if not self._quiet:
            os.write(2, f"\n{self.name}: {text}\n".encode())
