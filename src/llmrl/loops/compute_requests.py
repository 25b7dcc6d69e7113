"""Requests of loops. A loop is a generator of these requests, and an executor (`llmrl.loops.executor`) answers each.

The list is closed. A request contains everything that its answer needs: the players and games, the seeds of random
draws, and imposed values. So requests of several runs can be answered together, if their shapes are equal. The memory
of a loop is its `state_dict`: a loop restored from the state of any `SafePoint` makes the same requests as the original
one.

An exception in an answer is raised where the request was yielded, so `with` blocks there see it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from llmrl.core.metrics import CounterName, RowKind
from llmrl.core.protocols import Agent, Controller, VecEnv
from llmrl.core.records import CallEstimate, State
from llmrl.core.rollouts import Rollout
from llmrl.run.run import Run

if TYPE_CHECKING:
    from llmrl.rollout.collector import Collector


@dataclass(frozen=True)
class Begin:
    """Begin new episodes, or restore games; answered by None.

    Attributes:
        collector: games of the run, with their players and observers.
        seed: seed of the games, or one for each equal group of them (`VecEnv.reset`); None: no episode begins.
        games: games that begin, [n_envs] bool, while the others wait; None: all.
        state: state of the games (`Collector.state_dict`), restored after that; None: no state is restored.
        fork_seed: seed of the further random numbers of the restored games (`Forkable.fork`); None: those of the state.
    """

    collector: Collector
    seed: int | Sequence[int] | None = None
    games: np.ndarray | None = None
    state: State | None = None
    fork_seed: int | None = None


@dataclass(frozen=True, kw_only=True)
class PlaySteps:
    """Continue all games; answered by the `Rollout`, whose memory the next rollout of these games overwrites.

    Attributes:
        collector: games of the run, with their players and observers.
        steps: number of steps of every game.
        action_seeds: seeds of the generators that draw actions, one for each society, in the order of their games;
            societies with equal seeds draw the same numbers. None: the generators of the previous request continue.
        learn: whether to keep what a learner needs.
        reward_jacobian: whether to keep the reward's Jacobian in the mechanism (`EnvSpec.has_reward_jacobian`).
        copy: whether the rollout is answered in memory of its own.
        greedy: whether to take the most probable actions.
        restart: whether ended games begin a new episode; else they wait.
    """

    collector: Collector
    steps: int
    action_seeds: Sequence[int] | None
    learn: bool = True
    reward_jacobian: bool = False
    copy: bool = False
    greedy: bool = False
    restart: bool = True


@dataclass(frozen=True, kw_only=True)
class PlayEpisode(PlaySteps):
    """Reset all games and play an episode, or its first steps, in each; answered as `PlaySteps`.

    The answer does not depend on what the games did before.

    Attributes:
        seed: seed of the games, or one for each equal group of them (`VecEnv.reset`).
        mechanism: mechanism vector of each game, [n_envs, d]; None: unchanged.
        context: index of the context of all games; None: unchanged, or the environment has none.
    """

    seed: int | Sequence[int]
    mechanism: np.ndarray | None = None
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Update:
    """Update societies from one rollout, each from its own games; answered by a list with the metrics of each.

    Teachers are called within the update (`Teacher.advise`), after rewards are scaled and before the first minibatch.

    Attributes:
        agents: one agent for each society, in the order of their games.
        rollout: rollout of all games.
        minibatch_seeds: seeds of the generators that draw minibatches, one for each society.
        stacked: whether updates are computed as a batch, even of one society. The numbers of a society are then equal,
            bit for bit, whatever others are in the batch. Updates without a batch agree to float tolerance.
    """

    agents: Sequence[Agent]
    rollout: Rollout
    minibatch_seeds: Sequence[int]
    stacked: bool


@dataclass(frozen=True)
class Call:
    """Call a function that needs nothing of other runs; answered by what it returns.

    Attributes:
        function: function to call.
        is_long: whether it may take long, because it waits for a language model or calls a library.
    """

    function: Callable[[], Any]
    is_long: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluateController:
    """Play whole episodes of a controller in games other than the run's own; answered by an `EvaluationBatch`.

    Attributes:
        env: environment to play (`SupportsEvaluator`).
        controller: controller that plays.
        vectors: parameter vectors of the controller, [q, d].
        seeds: seeds of the episodes, [k]; each vector plays one episode under each seed.
        workers: number of processes; None: as many as there are cores.
    """

    env: VecEnv
    controller: Controller
    vectors: np.ndarray
    seeds: np.ndarray
    workers: int | None


@dataclass(frozen=True)
class Delegate:
    """Run code with a loop of its own, such as the training of a library; answered by what it returns.

    Attributes:
        work: function to call; its argument is a function that answers requests, because it cannot yield them.
    """

    work: Callable[[Callable[[Request], Any]], Any]


@dataclass(frozen=True)
class Log:
    """Record a row of metrics; answered by None.

    Attributes:
        kind: kind of the row.
        x: name of the counter that is its x coordinate.
        metrics: metrics of the row by name.
        counters: current counters by name, including `x`.
    """

    kind: RowKind
    x: CounterName
    metrics: Mapping[str, Any]
    counters: Mapping[str, int]


@dataclass(frozen=True)
class SafePoint:
    """Mark a point from which the loop can be resumed; answered by None, after a save if one is due.

    A run that is to stop raises `Stopped` here.

    Attributes:
        iteration: number of the point; it never decreases.
        state: function that returns the state for an exact resume. It is called at once, or never.
        always: whether to save in any case, and not to stop.
    """

    iteration: int
    state: Callable[[], State]
    always: bool = False


Request = Begin | PlaySteps | PlayEpisode | Update | Call | EvaluateController | Delegate | Log | SafePoint
"""All requests that a loop may make."""


T = TypeVar("T")
Requests = Generator[Request, Any, T]
"""A running loop, or a part of one, that returns a T."""


@runtime_checkable
class Loop(Protocol):
    """An outer loop, such as mechanism design, policy search, learning or play."""

    def requests(self, run: Run) -> Requests[float]:
        """Continue from the state of `run` to the end of the budget; return the scalar that a sweeper optimizes."""
        ...

    def state_dict(self) -> State:
        """Return everything that a new loop needs for an exact resume."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """Return the planned size of the complete run as pairs of a name and an amount."""
        ...

    def estimate(self) -> CallEstimate | None:
        """Return an estimate of the calls to a chat model; None if there are none, or they cannot be estimated."""
        return None
