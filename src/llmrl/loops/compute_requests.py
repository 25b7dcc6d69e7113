"""Requests of loops. A loop is a generator of these requests, and an executor (`llmrl.loops.executor`) answers each.

There are no other types of requests. A request contains everything that determines its answer: the players and games,
the seeds of random draws, mechanisms and contexts. So requests of several runs can be answered together if their shapes
are equal. A loop restored from the `state_dict` at a `SafePoint` makes the same further requests as the original loop.

An exception in an answer is raised at the `yield` of the request, so the loop can handle it.
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
        collector: collector of the run's games.
        seed: seed of the games, or one for each of several equal groups (`VecEnv.reset`); None: no episode begins.
        games: mask of the games that begin an episode, [n_envs] bool; other games do not play. None: all games.
        state: state of the games (`Collector.state_dict`), restored after the reset; None: no state is restored.
        fork_seed: seed of the random numbers of the restored games (`Forkable.fork`); None: restored generators.
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
        collector: collector of the run's games.
        steps: number of steps of every game.
        action_seeds: seeds of the generators that draw actions, one for each society, in the order of their games;
            societies with equal seeds draw the same numbers. None: the generators of the previous request continue.
        learn: whether the rollout contains the observations and policy outputs that updates need.
        reward_jacobian: whether the rollout contains the derivative of the rewards with respect to the mechanism
            (`EnvSpec.has_reward_jacobian`).
        copy: whether the rollout is copied, so that later rollouts do not overwrite it.
        greedy: whether to take the most probable actions instead of sampling.
        restart: whether ended games begin a new episode; if not, they wait for the next `Begin` or `PlayEpisode`.
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
    """Reset all games and play the first `steps` steps of an episode in each; answered by the `Rollout`.

    The answer does not depend on what the games did before.

    Attributes:
        seed: seed of the games, or one for each of several equal groups (`VecEnv.reset`).
        mechanism: mechanism vector of each game, [n_envs, d]; None: unchanged.
        context: index of the context of all games; None: unchanged, or the environment has none.
    """

    seed: int | Sequence[int]
    mechanism: np.ndarray | None = None
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Update:
    """Update every society from its games of a rollout; answered by the metrics of each society, a list.

    Teachers are called within the update (`Teacher.advise`), after rewards are scaled and before the first minibatch.

    Attributes:
        agents: one agent for each society, in the order of their games.
        rollout: rollout of all games.
        minibatch_seeds: seeds of the generators that draw minibatches, one for each society.
        stacked: whether to compute updates as a batch, even of one society. The result of a society is then bit-equal
            for all batches that contain it. Results without a batch agree with it to float tolerance.
    """

    agents: Sequence[Agent]
    rollout: Rollout
    minibatch_seeds: Sequence[int]
    stacked: bool


@dataclass(frozen=True)
class Call:
    """Call a function that is independent of other runs; answered by its return value.

    Attributes:
        function: function to call.
        is_long: whether other runs should not wait for it, because it waits for a language model or calls a library.
    """

    function: Callable[[], Any]
    is_long: bool = False


@dataclass(frozen=True, kw_only=True)
class EvaluateController:
    """Play complete episodes of a controller in separate games; answered by an `EvaluationBatch`.

    Attributes:
        env: environment to play (`SupportsEvaluator`).
        controller: controller that plays.
        vectors: parameter vectors of the controller, [q, d].
        seeds: seeds of the episodes, [k]; each vector plays one episode under each seed.
        workers: number of processes; None: the number of CPU cores.
    """

    env: VecEnv
    controller: Controller
    vectors: np.ndarray
    seeds: np.ndarray
    workers: int | None


@dataclass(frozen=True)
class Delegate:
    """Call a function that contains the training loop of a library; answered by its return value.

    Attributes:
        function: function to call. Its argument is a function that answers a request, because it cannot `yield` one.
    """

    function: Callable[[Callable[[Request], Any]], Any]


@dataclass(frozen=True)
class Log:
    """Record a row of metrics; answered by None.

    Attributes:
        kind: kind of the row.
        x_counter: name of the counter that is the row's x coordinate in figures.
        metrics: metrics of the row by name.
        counters: current counters by name, including `x_counter`.
    """

    kind: RowKind
    x_counter: CounterName
    metrics: Mapping[str, Any]
    counters: Mapping[str, int]


@dataclass(frozen=True)
class SafePoint:
    """Mark a point from which the loop can be resumed; answered by None, after a save if one is due.

    If the run was told to stop, `Stopped` is raised here.

    Attributes:
        iteration: index of the point, not lower than that of earlier points.
        state: function that returns the state for a bit-equal resume; it is called now if the state is saved.
        always: whether to save in any case, and not to raise `Stopped`.
    """

    iteration: int
    state: Callable[[], State]
    always: bool = False


Request = Begin | PlaySteps | PlayEpisode | Update | Call | EvaluateController | Delegate | Log | SafePoint
"""All requests that a loop may make."""


T = TypeVar("T")
Requests = Generator[Request, Any, T]
"""Generator of the requests of a loop, or of a part of one, that returns a T."""


@runtime_checkable
class Loop(Protocol):
    """An outer loop, such as mechanism design, policy search, learning or play."""

    def requests(self, run: Run) -> Requests[float]:
        """Run from the restored state of `run` to the end of the budget; return the scalar that a sweeper optimizes."""
        ...

    def state_dict(self) -> State:
        """Return the state for a bit-equal resume."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """Return the planned size of the complete run as pairs of a name and an amount."""
        ...

    def estimate(self) -> CallEstimate | None:
        """Return an estimate of the calls to a chat model; None if there are none, or they cannot be estimated."""
        return None
