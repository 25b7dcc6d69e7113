"""A run that waits for one that it needs is away for as long as that takes."""

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
from llmrl.run.ownership import Ownership, in_use
from llmrl.run.status import RunProgress, Status, read_status


class Waiting:
    """A run that needs another, which somebody else computes; counts how often it goes away and comes back to try."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.overrides = folder, {}, []
        self.what, self.name, self.told_of, self.title = "reference lines", "coarse scan", "it", "it"
        self.env_steps = 10
        self.finished = False
        self.times_away = self.tries = 0
        self.is_away = False

    @contextmanager
    def away(self) -> Iterator[None]:
        self.times_away, self.is_away = self.times_away + 1, True
        yield
        self.is_away = False

    def compute(self, config: Any, overrides: Any) -> None:
        assert not self.is_away
        self.tries += 1
        if in_use(self.folder):
            raise RunInUse("somebody works on it")
        self.finished = True


@pytest.fixture
def waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    monkeypatch.setattr(prerequisites, "_POLL_S", 0.01)
    monkeypatch.setattr(prerequisites, "_ended", lambda *args: None)
    monkeypatch.setattr(prerequisites, "_taken_on", lambda run: (0.0, ""))
    return Waiting(tmp_path)


def run(signal: int | None = None, folder: Path = Path("run")) -> Any:
    processes = SimpleNamespace(is_main=folder.is_dir())
    return SimpleNamespace(stop=SimpleNamespace(signal=signal), folder=folder, status=Status(), processes=processes)


def test_it_comes_back_once_and_not_to_look(waiting: Waiting) -> None:
    held = Ownership(waiting.folder)
    threading.Timer(0.3, held.release).start()
    prerequisites.ensure([waiting], run(), waiting.compute, waiting.away)  # type: ignore[list-item]
    assert not in_use(waiting.folder)
    assert (waiting.times_away, waiting.tries, waiting.finished) == (1, 2, True)


def test_the_stage_is_in_the_status_until_the_needed_run_is_finished(waiting: Waiting, tmp_path: Path) -> None:
    """Fraction and time left are those of the needed run, whoever computes it."""
    folder = tmp_path / "run"
    folder.mkdir()
    own, seen = run(folder=folder), []
    Status(progress=RunProgress(done=30, total=40, eta_s=5.0)).write(waiting.folder)

    def compute(config: Any, overrides: Any) -> None:
        while (status := read_status(folder)) is None or status.stage is None:
            time.sleep(0.01)
        seen.append(status.stage)
        waiting.finished = True

    assert prerequisites.ensure([waiting], own, compute, passed=1, ahead=2) == 2  # type: ignore[list-item]
    [stage] = seen
    assert (stage.name, stage.run, stage.index, stage.of) == ("reference lines", "coarse scan", 2, 4)
    assert (stage.fraction, stage.eta_s) == (0.75, 5.0)
    assert own.status.stage is None
    assert [each.folder for each in own.status.prerequisites] == [str(waiting.folder)]


def test_a_finished_run_is_no_stage(waiting: Waiting) -> None:
    waiting.finished, own = True, run()
    assert prerequisites.ensure([waiting], own, waiting.compute) == 0  # type: ignore[list-item]
    assert waiting.tries == 0 and len(own.status.prerequisites) == 1


def test_a_failed_stage_ends(waiting: Waiting) -> None:
    def fail(config: Any, overrides: Any) -> None:
        raise ConfigError("no")

    own = run()
    with pytest.raises(PrerequisiteFailed):
        prerequisites.ensure([waiting], own, fail)  # type: ignore[list-item]
    assert own.status.stage is None


def test_a_signal_ends_the_waiting(waiting: Waiting) -> None:
    from llmrl.run.signals import Stopped

    held, own = Ownership(waiting.folder), run()
    threading.Timer(0.1, lambda: setattr(own.stop, "signal", 15)).start()
    with pytest.raises(Stopped):
        prerequisites.ensure([waiting], own, waiting.compute, waiting.away)  # type: ignore[list-item]
    held.release()
    assert waiting.times_away == 1
