"""The decision whether a run saves a checkpoint at a safe point."""

from __future__ import annotations

import logging
import time

from llmrl.run.signals import GIVE_UP_S, PROMISED_S

log = logging.getLogger(__name__)

LONG_S = 4.0
"""Seconds between two safe points above which a stop may discard the work between them, so the run saves earlier."""
_SAVING_SHARE = 0.1
"""Maximum share of a run's time that is spent on such earlier saves."""


class CheckpointTimer:
    """Timer of checkpoints.

    Args:
        interval: seconds between saves at safe points; 0: save at every safe point.

    Attributes:
        duration: seconds that the last checkpoint took.
    """

    def __init__(self, interval: float = 60.0) -> None:
        self.interval = interval
        self.duration = 0.0
        self._pending = 0.0  # seconds of work on the next checkpoint
        self._is_slow = False  # a checkpoint took so long that a stop may take longer than `PROMISED_S`
        self._last_checkpoint = self._last_safe_point = time.monotonic()

    def start(self) -> None:
        """Start to measure the time to the next safe point."""
        self._last_safe_point = time.monotonic()

    def add(self, seconds: float) -> None:
        """Add seconds of work on the next checkpoint."""
        self._pending += seconds

    def finish(self) -> None:
        """Mark the checkpoint as saved; warn once if a stop would have to wait too long for it."""
        self._last_checkpoint = time.monotonic()
        self.duration, self._pending = self._pending, 0.0
        if self.duration > (limit := PROMISED_S - GIVE_UP_S) and not self._is_slow:
            self._is_slow = True
            log.warning(
                "a checkpoint took %.0f s, more than %g s: a stop may therefore take more than %d s (logged once)",
                self.duration,
                limit,
                PROMISED_S,
            )

    def is_due(self) -> bool:
        """Return whether to save at this safe point; call it once at each.

        Saves are due `interval` after the last one. They are due earlier if safe points are more than `LONG_S` apart,
        so that a stop discards less work.
        """
        now = time.monotonic()
        distance, self._last_safe_point = now - self._last_safe_point, now
        since = now - self._last_checkpoint
        return since >= self.interval or (distance > LONG_S and self.duration < _SAVING_SHARE * since)
