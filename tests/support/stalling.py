"""Simulation of runs that stall after a signal, by a method that becomes slow."""

from __future__ import annotations

import functools
import os
import signal
import time

TOTAL_STALL_S = 40.0
"""Total duration of the stall in seconds, much longer than a run may take to stop."""
PAUSE_S = 10.0
"""Duration of each slow call in seconds."""


class StallingMethod:
    """Patch that makes a method slow and sends a signal to the process before the first slow call.

    Calls are fast again when `TOTAL_STALL_S` have passed since the signal.

    Args:
        monkeypatch: fixture that applies the patch.
        owner: object with the method.
        method: name of the method.
        at: number of fast calls before the first slow one.
        whole: whether the first slow call takes `TOTAL_STALL_S` instead of `PAUSE_S`.
        number: number of the signal.
    """

    def __init__(self, monkeypatch, owner, method, at=0, whole=False, number=signal.SIGTERM):
        self.calls, self.signaled = 0, 0.0
        original = getattr(owner, method)

        @functools.wraps(original)
        def stalling(*args, **kwargs):
            self.calls += 1
            if self.calls > at:
                if not self.signaled:
                    self.signaled = time.monotonic()
                    os.kill(os.getpid(), number)
                if whole and self.calls == at + 1:
                    time.sleep(TOTAL_STALL_S)
                elif time.monotonic() - self.signaled < TOTAL_STALL_S:
                    time.sleep(PAUSE_S)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, stalling)


def shorten_stop_timeouts(monkeypatch, scale=0.05):
    """Multiply the timeouts of a stop by `scale`, and disable the one that exits the process, which runs the tests."""
    import llmrl.run.run
    from llmrl.run import signals

    monkeypatch.setattr(llmrl.run.run, "STOP_GRACE_S", 5.0 * scale)
    for name, seconds in (("DISCARD_WORK_S", 8.0), ("SECOND_DISCARD_S", 12.0), ("FORCED_EXIT_S", 1e4)):
        monkeypatch.setattr(signals, name, seconds * scale, raising=False)
