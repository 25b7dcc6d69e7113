"""A file that is touched every half minute, so that other machines can tell whether its process is still there."""

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

EVERY_S = 30.0
STALE_AFTER_S = 300.0
"""An untouched file is believed in for this long."""


class Heartbeat:
    """Touches `path` from construction until `stop`, as long as `still` says that it may."""

    def __init__(self, path: Path, still: Callable[[], bool] = lambda: True) -> None:
        self._path, self._still = path, still
        self._stopped = threading.Event()
        # A daemon thread, because a long step of the main thread must not make the process look dead.
        daemon_thread("llmrl-heartbeat", self._beat).start()

    def stop(self) -> None:
        """Touch it no more."""
        self._stopped.set()

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _beat(self) -> None:
        while not self._stopped.wait(EVERY_S):
            try:
                if self._still():
                    os.utime(self._path)
            except OSError as error:
                log.warning("could not touch %s: %s", self._path, error)


def is_fresh(path: Path) -> bool:
    """Whether `path` was touched lately, by this machine's clock; nothing is written to find out."""
    try:
        return time.time() - path.stat().st_mtime < STALE_AFTER_S
    except OSError:
        return False
