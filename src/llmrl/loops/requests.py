"""What loops ask for. A loop is a generator of these requests; whoever serves it (`llmrl.loops.executor`) answers each.

The list is closed. A request says all that is needed to answer it: who plays where, the seeds of what is drawn, and
what is imposed. So requests of several runs could be answered together, where their shapes are equal. What a loop
remembers is in its `state_dict`: made anew from the state of any `SafePoint`, it asks for the same as the one before.

An exception of an answer is raised where the request was yielded, so `with` blocks there see it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from llmrl.core.protocols import Agent, ChatModel, Controller, MetaLearner, Proposer, VecEnv
from llmrl.core.records import CallEstimate, ChatRequest, State
from llmrl.core.rollouts import Rollout
from llmrl.core.run_context import Counter, Kind, RunContext
from llmrl.core.seeding import Seeds

if TYPE_CHECKING:
    from llmrl.algorithms.cloning import Cloning
    from llmrl.loops.independent_games import IndependentGames
    from llmrl.rollout.collector import Collector


@dataclass(frozen=True)
class Begin:
    """Begin new episodes, or go on where games stood; answered by None.

    Attributes:
        collector: the run's games, who plays in them and who watches.
        seed: of the games (`VecEnv.reset`); None: no episode begins.
        games: those that begin, [n_envs] bool, while the others wait; None: all.
        state: where the games stood (`Collector.state_dict`), which is put in place after that; None: nothing is.
    """

    collector: Collector
    seed: int | None = None
    games: np.ndarray | None = None
    state: State | None = None


@dataclass(frozen=True, kw_only=True)
class PlaySteps:
    """Play on from where the games stand; answered by the `Rollout`, which the next one of these games writes over.

    Attributes:
        collector: the run's games, who plays in them and who watches.
        steps: of every game.
        actions: seeds of the generators that actions are drawn with, one a society, in the order of their games;
            societies with equal seeds draw the same numbers. None: those of the request before draw on.
        learn: keep what a learner needs.
        exposure: keep what the environment tells of the mechanism's effect (`EnvSpec.exposure`).
        copy: answer with a rollout in memory of its own.
        greedy: take likeliest actions.
        restart: games that end begin anew; else they wait.
    """

    collector: Collector
    steps: int
    actions: Sequence[int] | None
    learn: bool = True
    exposure: bool = False
    copy: bool = False
    greedy: bool = False
    restart: bool = True


@dataclass(frozen=True, kw_only=True)
class PlayEpisode(PlaySteps):
    """Begin all games anew and play in them, as long as an episode or its first piece; answered as `PlaySteps`.

    Whatever the games did before changes nothing in the answer.

    Attributes:
        seed: of the games, or one for each equal group of them (`VecEnv.reset`).
        mechanism: values that govern each game, [n_envs, d]; None: those that are set.
        context: of all games; None: that which is set, or there are none.
    """

    seed: int | Sequence[int]
    mechanism: np.ndarray | None = None
    context: int | None = None


@dataclass(frozen=True, kw_only=True)
class Update:
    """Let societies learn from one rollout, each from its own games; answered by the metrics of each.

    A teacher is asked within it (`Teacher.advise`), after rewards are scaled and before the first minibatch.

    Attributes:
        agents: one a society, in the order of their games.
        rollout: of all games.
        minibatches: seeds of the generators that minibatches are drawn with, one a society.
        stacked: updates are computed in batches, also of one society: then it has the same numbers, to the last bit,
            whoever is beside it. Else each society updates by itself; the numbers are those to float tolerance.
    """

    agents: Sequence[Agent]
    rollout: Rollout
    minibatches: Sequence[int]
    stacked: bool


@dataclass(frozen=True)
class DifferentiableUpdate:
    """Let a society learn from one rollout, and keep how the new weights depend on the mechanism; answered by metrics.

    Attributes:
        learner: of the society, for one principal step.
        rollout: of its games, with exposure.
        minibatches: seed of the generator that minibatches are drawn with.
    """

    learner: MetaLearner
    rollout: Rollout
    minibatches: int


@dataclass(frozen=True)
class Imitate:
    """Make one update of an imitator on recorded steps; answered by its metrics.

    Attributes:
        cloning: what is learned, and how far it is.
        update: its number, from 0.
    """

    cloning: Cloning
    update: int


@dataclass(frozen=True)
class Ask:
    """Ask a principal for vectors; answered by them, [n, d]. It may have to wait for a language model.

    Attributes:
        principal: who is asked.
        context: that the vectors are for; None where there are none.
        n: vectors.
    """

    principal: Proposer
    context: int | None
    n: int


@dataclass(frozen=True)
class PlayIndependently:
    """Let games that have their replies go on, each by itself, and wait for a reply where none has; answered by the
    episodes that ended.

    Attributes:
        games: of the run.
    """

    games: IndependentGames[Any]


@dataclass(frozen=True)
class Chat:
    """Ask a language model; answered by its replies, in the order of the requests.

    Attributes:
        model: who is asked.
        requests: what it is asked.
    """

    model: ChatModel
    requests: Sequence[ChatRequest]


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Play without learning in freshly seeded games; answered by the episodes, the first of each game and round
    (`evaluate_policy`). The games need a `Begin` before they are played otherwise.

    Attributes:
        collector: the run's games, and who plays in them.
        episodes: at least; all games play.
        seeds: node that games and actions are drawn from.
        watched: the collector's observers are told of it.
    """

    collector: Collector
    episodes: int
    seeds: Seeds
    watched: bool = True


@dataclass(frozen=True, kw_only=True)
class EvaluateController:
    """Play whole episodes of a controller elsewhere than in a run's games; answered by an `EvaluationBatch`.

    Attributes:
        env: whose episodes (`SupportsEvaluator`).
        controller: who plays.
        vectors: its parameters, [q, d].
        seeds: of the episodes, [k]; each vector plays one under each.
        workers: processes that play; None: as many as there are cores.
        traced: steps that are wanted of the beginning of each vector's first episode.
    """

    env: VecEnv
    controller: Controller
    vectors: np.ndarray
    seeds: np.ndarray
    workers: int | None
    traced: int = 0


@dataclass(frozen=True)
class Delegate:
    """Let others work in a loop of their own, a library's training for example; answered by what they return.

    Attributes:
        work: is given a function that answers requests, since it cannot yield them.
    """

    work: Callable[[Callable[[Request], Any]], Any]


@dataclass(frozen=True)
class Log:
    """Record a row of metrics; answered by None.

    Attributes:
        kind: what it is about.
        x: the counter at which it is placed.
        metrics: the row.
        counters: what has been counted by now, `x` among it.
    """

    kind: Kind
    x: Counter
    metrics: Mapping[str, Any]
    counters: Mapping[str, int]


@dataclass(frozen=True)
class SafePoint:
    """Tell where the loop could be made anew from; answered by None, after saving where that is due.

    A run that is to stop ends here, with `Stopped`.

    Attributes:
        iteration: number of the place; it never falls.
        state: makes what a loop goes on from exactly. It is called at once, or never.
        always: save in any case, and do not stop.
    """

    iteration: int
    state: Callable[[], State]
    always: bool = False


Request = (
    Begin
    | PlaySteps
    | PlayEpisode
    | Update
    | DifferentiableUpdate
    | Imitate
    | Ask
    | Chat
    | PlayIndependently
    | Evaluate
    | EvaluateController
    | Delegate
    | Log
    | SafePoint
)
"""All that a loop may ask for."""


class Seat(Protocol):
    """A run's place at an executor that answers the requests of several runs of a process (`llmrl.loops.rows`)."""

    def answer(self, request: Request) -> Any:
        """Wait for the answer to a request, in the thread of the run.

        Raises:
            Whatever the answer raised.
        """
        ...

    def away(self) -> AbstractContextManager[None]:
        """A span in which the run may wait for long; nobody waits for it meanwhile."""
        ...

    def apart(self) -> AbstractContextManager[None]:
        """A span in which the run computes another one, which is not like those beside it."""
        ...

    def leave(self) -> None:
        """Ask no more."""
        ...


T = TypeVar("T")
Requests = Generator[Request, Any, T]
"""A loop, or a part of one, that is under way and returns a T."""


@runtime_checkable
class Loop(Protocol):
    """One of the few outer loops."""

    def requests(self, run: RunContext) -> Requests[float]:
        """Go on from where `run` stands to the end of the budget; returns the scalar a sweeper optimises."""
        ...

    def state_dict(self) -> State:
        """What the loop remembers: everything that one made anew needs to go on exactly."""
        ...

    def plan(self) -> list[tuple[str, str]]:
        """What the whole run would cost: rows (what, how much)."""
        ...

    def estimate(self) -> CallEstimate | None:
        """What it would ask of a chat model; None where that is nothing, or cannot be known."""
        ...
