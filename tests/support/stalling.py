"""Runs that come to a standstill: some method of theirs takes for ever from one call on, at which a signal is sent."""

from __future__ import annotations

import functools
import os
import signal
import time

TOTAL_STALL_S = 40.0
"""What a stalled method takes, in all: far longer than a run may take to end, short enough to see one fail."""
PAUSE_S = 10.0
"""What each call of it takes."""


class StallingMethod:
    """Patch that makes a method slow and sends a signal to the process.

    From call number `at` on, `owner.method` takes `PAUSE_S` each time, or `TOTAL_STALL_S` at once (`whole`); the signal
    precedes it. Calls take their usual time when `TOTAL_STALL_S` are over.
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
    """Make the time of a stop pass `1 / scale` times as fast.

    The time limit that ends the process, which is the process of the tests, is out of reach.
    """
    import llmrl.run.run
    from llmrl.run import signals

    monkeypatch.setattr(llmrl.run.run, "GRACE_S", 5.0 * scale)
    for name, seconds in (("DISCARD_WORK_S", 8.0), ("SECOND_DISCARD_S", 12.0), ("FORCED_EXIT_S", 1e4)):
        monkeypatch.setattr(signals, name, seconds * scale, raising=False)
