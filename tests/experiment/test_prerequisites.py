"""Runs that wait for a required run are suspended meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmrl.core.errors import ConfigError, PrerequisiteFailed, RunInUse
from llmrl.experiment import prerequisites
from llmrl.run.ownership import Ownership, is_in_use
from llmrl.run.status import RunProgress, Status, read_status


class Waiting:
    """A required run that another process computes. It counts suspensions and attempts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.overrides = folder, {}, []
        self.purpose, self.name, self.error_label = "reference lines", "coarse scan", "it"
        self.env_steps = 10
        self.finished = False
        self.n_suspensions = self.tries = 0
        self.is_suspended = False

    @contextmanager
    def away(self) -> Iterator[None]:
        self.n_suspensions, self.is_suspended = self.n_suspensions + 1, True
        yield
        self.is_suspended = False

    def compute(self, config: Any, overrides: Any) -> None:
        assert not self.is_suspended
        self.tries += 1
        if is_in_use(self.folder):
            raise RunInUse("somebody works on it")
        self.finished = True


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    monkeypatch.setattr(prerequisites, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(prerequisites, "_describe_failure", lambda *args: None)
    monkeypatch.setattr(prerequisites, "_read_launch_time_and_folder", lambda run: (0.0, ""))
    return Waiting(tmp_path)


def run(signal: int | None = None, folder: Path = Path("run")) -> Any:
    processes = SimpleNamespace(is_main=folder.is_dir())
    return SimpleNamespace(
        stop_flag=SimpleNamespace(signal=signal), folder=folder, status=Status(), processes=processes
    )


def test_waiting_run_is_suspended_once(waiting: Waiting) -> None:
    held = Ownership(waiting.folder)
    threading.Timer(0.3, held.release).start()
    prerequisites.ensure_finished([waiting], run(), waiting.compute, waiting.away)  # type: ignore[list-item]
    assert not is_in_use(waiting.folder)
    assert (waiting.n_suspensions, waiting.tries, waiting.finished) == (1, 2, True)


def test_stage_is_reported_while_waiting(waiting: Waiting, tmp_path: Path) -> None:
    """Report progress and remaining time of the required run, whichever process computes it."""
    folder = tmp_path / "run"
    folder.mkdir()
    waiting_run, statuses = run(folder=folder), []
    Status(progress=RunProgress(done=30, total=40, eta_s=5.0)).write(waiting.folder)

    def compute(config: Any, overrides: Any) -> None:
        while (status := read_status(folder)) is None or status.stage is None:
            time.sleep(0.01)
        statuses.append(status.stage)
        waiting.finished = True

    assert prerequisites.ensure_finished([waiting], waiting_run, compute, n_stages_before=1, n_stages_after=2) == 2  # type: ignore[list-item]
    [stage] = statuses
    assert (stage.name, stage.run, stage.index, stage.of) == ("reference lines", "coarse scan", 2, 4)
    assert (stage.fraction, stage.eta_s) == (0.75, 5.0)
    assert waiting_run.status.stage is None
    assert [prerequisite.folder for prerequisite in waiting_run.status.prerequisites] == [str(waiting.folder)]


def test_completed_run_is_not_stage(waiting: Waiting) -> None:
    waiting.finished, waiting_run = True, run()
    assert prerequisites.ensure_finished([waiting], waiting_run, waiting.compute) == 0  # type: ignore[list-item]
    assert waiting.tries == 0 and len(waiting_run.status.prerequisites) == 1


def test_failed_stage_ends_run(waiting: Waiting) -> None:
    def fail(config: Any, overrides: Any) -> None:
        raise ConfigError("no")

    waiting_run = run()
    with pytest.raises(PrerequisiteFailed):
        prerequisites.ensure_finished([waiting], waiting_run, fail)  # type: ignore[list-item]
    assert waiting_run.status.stage is None


def test_signal_ends_waiting(waiting: Waiting) -> None:
    from llmrl.run.signals import Stopped

    held, waiting_run = Ownership(waiting.folder), run()
    threading.Timer(0.1, lambda: setattr(waiting_run.stop_flag, "signal", 15)).start()
    with pytest.raises(Stopped):
        prerequisites.ensure_finished([waiting], waiting_run, waiting.compute, waiting.away)  # type: ignore[list-item]
    held.release()
    assert waiting.n_suspensions == 1
