"""The interface of a run to its loop: run folder, metrics, checkpoints and requests to stop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self, runtime_checkable

from llmrl.core.records import State

Kind = Literal[
    "update", "adaptation", "proposal", "confirmation", "recommendation", "episode", "race", "evaluation", "probe"
]
"""The subject of a row of metrics.

- update: one or several updates of an agent's weights, and the rollouts they used.
- adaptation: a round in which a society plays under a mechanism and is updated.
- proposal: the last proposals, their outcomes, and the metrics of the proposer.
- episode: all episodes so far of agents that only play; of an external learner, the episodes since the last row.
- confirmation: a principal step that measured the leading candidates again.
- recommendation: the evaluation of the vectors that a principal recommends after some measurements.
- race: a round in which the best few policies of a search were measured again.
- evaluation: agents, or the result of a search, measured without learning.
- probe: probabilities of actions in a fixed set of situations.
"""
Counter = Literal[
    "env_steps",
    "updates",
    "rounds",
    "proposals",
    "measurements",
    "principal_steps",
    "iterations",
    "episodes",
    "samples",
]
"""Counters of rows of metrics, from the beginning of the run.

- env_steps: environment steps, summed over games, that were played for learning or for evaluating proposals.
- updates: updates of an agent's weights.
- rounds: adaptation rounds, over all principal steps.
- proposals: vectors evaluated, including random ones before a search.
- measurements: vectors evaluated by the steps of a principal, confirmations included.
- principal_steps, iterations: calls of a principal's `ask`, in mechanism design and in policy search.
- episodes: finished episodes.
- samples: recorded steps that an imitator was trained on, counted with repetitions.
"""


class MetricLogger(Protocol):
    """A sink for a run's metrics."""

    def log(self, kind: Kind, x: Counter, metrics: Mapping[str, Any], **counters: int) -> None:
        """Record a row of `metrics`. `x` names the counter among `counters` that is its x coordinate."""
        ...

    def attach_pictures(self, tag: str, pictures_of: Callable[[Mapping[str, Any]], Iterable[Path]]) -> None:
        """Attach to each row, under `tag`, the files of pictures and videos that `pictures_of(row)` returns."""
        ...


class ProgressDisplay(Protocol):
    """A display of a run's progress; a context manager."""

    def update(self, done: float) -> None:
        """Set the number of finished units to `done`; cheap enough to call at every step."""
        ...

    def advance(self, units: float) -> None:
        """Add `units` to the number of finished units."""
        ...

    def show_result(self, value: float, proposed: str = "") -> None:
        """Show the last objective or return.

        `proposed` is the proposal that reached the objective; empty if there are no proposals.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StopRequest(Protocol):
    """The state of signals that ask the run to stop: `requested`, and the number of the `signal` or None."""

    signal: int | None

    @property
    def requested(self) -> bool: ...


class RunStatus(Protocol):
    """The part of a run's published status that loops set: `llm`, the label of its language model."""

    llm: str


@runtime_checkable
class RunContext(Protocol):
    """The interface of a run to its loop; `llmrl.run.run.Run` implements it.

    Attributes:
        folder: run folder; a loop may write files of its own there.
        seed: seed of the run.
        restored: state of the checkpoint to resume from; None if there is none.
        iteration: iteration of that checkpoint; 0 for a new run.
        metrics: sink for metrics.
        status: published status of the run.
        stop: state of signals that ask the run to stop.
        summary: results of the loop as plain data; set by the loop, saved as `summary.json`.
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
        """Return a display of the finished units out of `total` (None: unknown), starting from `done`."""
        ...

    def safe_point(self, iteration: int, state: Callable[[], State]) -> None:
        """Save a checkpoint if one is due, and stop if a signal requests it. Call it where the loop can be resumed."""
        ...

    def within_grace(self, iteration: int, state: Callable[[], State]) -> None:
        """Discard the work since the last safe point and stop, if a requested stop has taken too long.

        Call it often between safe points; `state` must return the state at the last one.
        """
        ...

    def saved_if_refused(
        self, iteration: int, state: Callable[[], State], learns: bool = False
    ) -> AbstractContextManager[None]:
        """Return a context manager for a block that calls a language model.

        If the calls fail permanently or a signal stops them, the state before the block is saved. It is not saved if
        the block `learns` and a signal interrupts it.
        """
        ...

    def checkpoint(self, iteration: int, state: State) -> Path:
        """Save `state` as the checkpoint of `iteration` (the number of finished iterations) now; return its path."""
        ...

    def checkpoint_due(self) -> bool:
        """Return whether it is time for a checkpoint. Call it once at every safe point."""
        ...

    def saving(self) -> AbstractContextManager[None]:
        """Return a context manager that delays signals while files that belong to a checkpoint are written."""
        ...

    def mark(self) -> State:
        """Return the current positions in the run's files, to be part of a state that is saved later."""
        ...
