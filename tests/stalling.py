"""Runs that come to a standstill: some method of theirs takes for ever from one call on, at which a signal is sent."""

from __future__ import annotations

import functools
import os
import signal
import time

import pytest

from experiments import comparable_metrics, only_run_folder, run
from llmrl.run.owner import read_owner
from llmrl.run.run import Stopped
from llmrl.run.status import read_status

STALLED_S = 40.0
"""What a stalled method takes, in all; far longer than a run may take to end, and short enough to see one that fails."""
PAUSE_S = 0.1
"""What each call of it takes."""


class Stall:
    """From call number `at` on, `owner.method` takes `PAUSE_S` each time, or `STALLED_S` at once (`whole`); the process
    sends itself a signal before. Calls take as long as ever when `STALLED_S` are over."""

    def __init__(self, monkeypatch, owner, method, at=0, whole=False, number=signal.SIGTERM):
        self.calls, self.signalled = 0, 0.0
        original = getattr(owner, method)

        @functools.wraps(original)
        def stalling(*args, **kwargs):
            self.calls += 1
            if self.calls > at:
                if not self.signalled:
                    self.signalled = time.monotonic()
                    os.kill(os.getpid(), number)
                if whole and self.calls == at + 1:
                    time.sleep(STALLED_S)
                elif time.monotonic() - self.signalled < STALLED_S:
                    time.sleep(PAUSE_S)
            return original(*args, **kwargs)

        monkeypatch.setattr(owner, method, stalling)


def impatient(monkeypatch, scale=0.05):
    """Make the time of a stop pass `1 / scale` times as fast; that of the last resort, which ends the process that
    tests run in, is out of reach."""
    import llmrl.run.run
    from llmrl.run import signals

    monkeypatch.setattr(llmrl.run.run, "GRACE_S", 5.0 * scale)
    for name, seconds in (("GIVE_UP_S", 8.0), ("GIVE_UP_AGAIN_S", 12.0), ("OVERDUE_S", 1e4)):
        monkeypatch.setattr(signals, name, seconds * scale, raising=False)


def stopped(root, *overrides, signalled, within=10.0, state="preempted"):
    """Run an experiment that is told to stop at the time `signalled()`, monotonic: what ended it, once it is sure that
    it ended `within` seconds, and that its folder is free and says so."""
    with pytest.raises(Stopped) as caught:
        run(*overrides, f"output_root={root}")
    assert time.monotonic() - signalled() < within
    folder = only_run_folder(root)
    status = read_status(folder)
    assert (status.state, status.error) == (state, caught.value.brief)
    assert read_owner(folder) is None
    return caught.value


def unpaid(folder):
    """Metrics of a run but for what was really paid: who asks again after a stop finds the reply or pays once more."""
    return [{k: v for k, v in row.items() if not k.startswith("spent/")} for row in comparable_metrics(folder)]
