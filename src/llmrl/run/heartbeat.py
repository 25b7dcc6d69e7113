"""A file that a process touches every half minute, so that other machines can tell whether the process is alive."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from llmrl.core.threads import daemon_thread

log = logging.getLogger(__name__)

INTERVAL_S = 30.0
"""Seconds between two touches."""
STALE_AFTER_S = 300.0
"""Age in seconds from which an untouched file means that its process is dead."""


class Heartbeat:
    """A thread that touches `path` from construction until `stop`, while `is_owner()` is true."""

    def __init__(self, path: Path, is_owner: Callable[[], bool] = lambda: True) -> None:
        self._path, self._is_owner = path, is_owner
        self._stopped = threading.Event()
        # In a thread of its own, so that a long step of the main thread does not make the process look dead.
        daemon_thread("llmrl-heartbeat", self._beat).start()

    def stop(self) -> None:
        """Stop touching the file."""
        self._stopped.set()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _beat(self) -> None:
        while not self._stopped.wait(INTERVAL_S):
            try:
                if self._is_owner():
                    os.utime(self._path)
            except OSError as error:
                log.warning("could not touch %s: %s", self._path, error)


def is_fresh(path: Path) -> bool:
    """Return whether `path` was touched in the last `STALE_AFTER_S` seconds, by this machine's clock.

    Nothing is written.
    """
    try:
        return time.time() - path.stat().st_mtime < STALE_AFTER_S
    except OSError:
        return False
