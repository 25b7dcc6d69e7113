"""A run that waits for one that it needs is away for as long as that takes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmrl.core.errors import RunInUse
from llmrl.experiment import prerequisites
from llmrl.run.ownership import Ownership, in_use


class Waiting:
    """A run that needs another, which somebody else computes; counts how often it goes away and comes back to try."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config, self.overrides = folder, {}, []
        self.what, self.name, self.told_of = "reference lines", "coarse scan", "it"
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


def run(signal: int | None = None) -> Any:
    return SimpleNamespace(stop=SimpleNamespace(signal=signal), folder=Path("run"))


def test_it_comes_back_once_and_not_to_look(waiting: Waiting) -> None:
    held = Ownership(waiting.folder)
    threading.Timer(0.3, held.release).start()
    prerequisites.ensure([waiting], run(), waiting.compute, waiting.away)  # type: ignore[list-item]
    assert not in_use(waiting.folder)
    assert (waiting.times_away, waiting.tries, waiting.finished) == (1, 2, True)


def test_a_signal_ends_the_waiting(waiting: Waiting) -> None:
    from llmrl.run.signals import Stopped

    held, own = Ownership(waiting.folder), run()
    threading.Timer(0.1, lambda: setattr(own.stop, "signal", 15)).start()
    with pytest.raises(Stopped):
        prerequisites.ensure([waiting], own, waiting.compute, waiting.away)  # type: ignore[list-item]
    held.release()
    assert waiting.times_away == 1
