"""What a loop sees of the run it belongs to: where to write, how to be saved, and when to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from llmrl.core.records import State

Kind = Literal["update", "adaptation", "proposal", "episode", "race", "evaluation", "probe"]
"""What a row of metrics is about.

- update: one or several updates of an agent's weights, and what it saw meanwhile.
- adaptation: a round in which a society plays under a mechanism and is updated.
- proposal: what was proposed last, how it did, and what the proposer learned from it.
- episode: episodes of agents that only play, all so far; or of a library that learns, those since the row before.
- race: a round in which the best few proposals were measured again, or the winner was.
- evaluation: agents, or what a search has found, measured without learning.
- probe: how likely actions are in situations that stay the same.
"""
Counter = Literal["env_steps", "updates", "rounds", "proposals", "principal_steps", "iterations", "episodes", "samples"]
"""What rows count, from the beginning of the run.

- env_steps: environment steps, summed over games, that were played to learn or to judge proposals.
- updates: of an agent's weights.
- rounds: of adaptation, over all principal steps.
- proposals: vectors tried, random ones before a search included.
- principal_steps, iterations: times that a principal was asked, in mechanism design and in policy search.
- episodes: that are over.
- samples: recorded steps that an imitator was shown, each as often as it was.
"""


class MetricLogger(Protocol):
    """Where a run's metrics go."""

    def log(self, kind: Kind, x: Counter, metrics: Mapping[str, Any], **counters: int) -> None:
        """Record a row of `metrics`, placed at the counter `x`, which is one of `counters`."""
        ...

    def attach_pictures(self, tag: str, pictures_of: Callable[[Mapping[str, Any]], Iterable[Path]]) -> None:
        """Show pictures and videos, as files, beside the rows that they are told of."""
        ...


class ProgressDisplay(Protocol):
    """Shows how far a run is; a context manager."""

    def update(self, done: float) -> None:
        """Say that `done` units are done; cheap enough for every step."""
        ...

    def advance(self, units: float) -> None:
        """Say that so many more are done."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StopRequest(Protocol):
    """Whether a signal asks the run to stop, and which one."""

    signal: int | None

    @property
    def requested(self) -> bool: ...


class RunStatus(Protocol):
    """What others can read of the run while it goes on, as far as loops know it: `llm`, the label of its model."""

    llm: str


@runtime_checkable
class RunContext(Protocol):
    """A run as its loop sees it; `llmrl.run.run.Run` is one.

    Attributes:
        folder: the run folder; a loop may write files of its own there.
        seed: the run's seed.
        restored: the state of the checkpoint to resume from; None if there is none.
        iteration: the iteration of that checkpoint, 0 for a new run.
        metrics: where to log.
        status: what others read of the run.
        stop: whether a signal asks to stop.
        summary: what the loop found, as plain data; to be set by it, saved as `summary.json`.
    """

    summary: dict[str, Any]

    @property
    def folder(self) -> Path: ...

    @property
    def seed(self) -> int: ...

    @property
    def restored(self) -> State | None: ...

    @property
    def iteration(self) -> int: ...

    @property
    def metrics(self) -> MetricLogger: ...

    @property
    def status(self) -> RunStatus: ...

    @property
    def stop(self) -> StopRequest: ...

    def progress(self, total: float | None, unit: str, description: str, done: float = 0) -> ProgressDisplay:
        """A display of how many of `total` `unit`s are done (None: nobody knows), starting from `done`."""
        ...

    def safe_point(self, iteration: int, state: Callable[[], State]) -> None:
        """To be called where the loop could be resumed from: saves when due, and stops if a signal asked for it."""
        ...

    def within_grace(self, iteration: int, state: Callable[[], State]) -> None:
        """To be called often on the way to the next safe point, where `state` is what it was at the last one: gives up
        the work since then if a stop takes too long."""
        ...

    def saved_if_refused(
        self, iteration: int, state: Callable[[], State], learns: bool = False
    ) -> AbstractContextManager[None]:
        """For a block that asks a language model: if that fails for good, or a signal stops it, the state before the
        block is saved; not if the block `learns`, and a signal interrupts it."""
        ...

    def checkpoint(self, iteration: int, state: State) -> Path:
        """Save `state` as the checkpoint of `iteration` (iterations done so far) now."""
        ...

    def checkpoint_due(self) -> bool:
        """Whether it is time for a checkpoint; to be asked once at every safe point."""
        ...

    def saving(self) -> AbstractContextManager[None]:
        """Around what belongs to a checkpoint and is saved beside it: signals wait."""
        ...

    def mark(self) -> State:
        """Where the run's files stand now, to be part of a state that is kept to be saved later."""
        ...
