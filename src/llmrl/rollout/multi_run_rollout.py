"""Games of several runs, played as one batch: each run with its policies, mechanism, context, seeds and observers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from llmrl.algorithms.societies.batched_trainer import BatchedTrainer
from llmrl.algorithms.societies.partitioned_policy import PartitionedPolicy, split
from llmrl.core.errors import Diverged
from llmrl.core.observers import Observer, Transition
from llmrl.core.protocols import Agent, Resizable
from llmrl.core.records import Observation
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import generators
from llmrl.rollout.collector import Collector
from llmrl.run.signals import GivenUp

InContext = Callable[..., Any]
"""Calls a function with arguments as if its run did."""


@dataclass(frozen=True)
class Member:
    """A run of a wave.

    Attributes:
        collector: its games, who plays in them and who watches; its policy is a `PartitionedPolicy`.
        told: calls its observers as if the run did.
    """

    collector: Collector
    told: InContext


@dataclass(frozen=True, kw_only=True)
class Begun:
    """How a member's new episodes begin, as a `PlayEpisode` says.

    Attributes:
        seed: of its games, or one for each of its societies.
        actions: seeds of what its policies draw (`PlaySteps.actions`).
        mechanism: values [n_envs, d] that govern them; None: there is no mechanism.
        context: of all; None: there are none.
    """

    seed: int | Sequence[int]
    actions: Sequence[int]
    mechanism: np.ndarray | None
    context: int | None


class Wave:
    """Runs whose games are of one kind and played together, until each begins an episode elsewhere.

    What a run gets is what it would get alone, to the last bit: games do not depend on how many there are
    (`Resizable`), and neither do policies (`PartitionedPolicy`) and updates (`BatchedTrainer`). A run whose observer
    raises is told so when the others have played, and its games mean nothing meanwhile.

    Args:
        members: runs with equal environments, networks and numbers of games and societies.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        first = members[0].collector
        assert isinstance(first.env, Resizable) and isinstance(first.policy, PartitionedPolicy)
        self.members, self.games = members, first.spec.n_envs
        self.societies = len(first.policy.policies)
        policies = [each for member in members for each in _policies(member)]
        policy = PartitionedPolicy(policies, first.policy.games)
        self._observers = _Observers(members, self.games)
        self._env = env = first.env.resized(self.games * len(members))
        self._collector = Collector(env, policy, str(first.device), observers=[self._observers])
        self._generators: list[torch.Generator] = []
        self._rollout: Rollout | None = None
        self._trainer: BatchedTrainer | None = None

    def play(
        self, steps: int, begun: Sequence[Begun] | None, absent: Collection[int], **how: bool
    ) -> list[Rollout | BaseException]:
        """Play on in all games; returns what each member gets, or what its observers raised.

        Args:
            steps: of every game.
            begun: how the new episodes of each member begin; None: those there are go on.
            absent: places of members that no longer want to know; their games go on and mean nothing.
            how: keyword arguments of `Collector.collect`.
        """
        self._observers.begin(absent)
        try:
            if begun is not None:
                self._begin(begun)
            self._rollout = self._collector.collect(steps, self._generators, **how)
        except _NobodyLeft:
            return [error for error in self._observers.errors if error is not None]
        found: list[Rollout | BaseException] = []
        for i, part in enumerate(split(self._rollout, len(self.members))):
            own = [replace(episode, game=episode.game - i * self.games) for episode in part.episodes]
            found.append(self._observers.finish(i, replace(part, episodes=own)))
        return found

    def _begin(self, begun: Sequence[Begun]) -> None:
        env = self._env
        if begun[0].mechanism is not None:
            env.set_mechanism(np.concatenate([np.asarray(each.mechanism) for each in begun]))
        if begun[0].context is not None:
            env.set_context(np.repeat([each.context for each in begun], self.games))
        self._generators = [each for own in begun for each in self._drawing(own.actions)]
        self._collector.reset([seed for each in begun for seed in self._for_societies(each.seed)])

    def update(
        self, agents: Mapping[int, Sequence[Agent]], minibatches: Mapping[int, Sequence[int]]
    ) -> dict[int, list[dict[str, float] | Diverged]]:
        """Let the societies of some members learn from the newest rollout; returns, by the places of the members, what
        `BatchedTrainer.update` does.

        Args:
            agents: of these members, by their places, one a society.
            minibatches: of each of them the seeds of its societies' minibatches.
        """
        assert self._rollout is not None
        if len(agents) == len(self.members):
            together = [each for place in range(len(agents)) for each in agents[place]]
            draws = [each for place in range(len(agents)) for each in generators(minibatches[place])]
            self._trainer = BatchedTrainer.of(together, self._trainer)
            found = self._trainer.update(self._rollout, draws)
            n = self.societies
            return {place: found[place * n : (place + 1) * n] for place in range(len(agents))}
        parts = split(self._rollout, len(self.members))
        return {
            place: BatchedTrainer(own).update(parts[place], generators(minibatches[place]))
            for place, own in agents.items()
        }

    def _for_societies(self, seed: int | Sequence[int]) -> list[int]:
        """A seed for each society of a member: under one seed their games draw alike (`VecEnv.pair_games`)."""
        return [seed] * self.societies if isinstance(seed, int | np.integer) else list(seed)

    def _drawing(self, seeds: Sequence[int]) -> list[torch.Generator]:
        """A generator for each society of a member; those of one seed are one."""
        return generators(seeds if len(seeds) > 1 else [*seeds] * self.societies, shared=True)


class _NobodyLeft(Exception):  # noqa: N818  (a way out of a rollout)
    """The observers of every member have raised something."""


class _Observers(Observer):
    """Tells the members' observers of their own games."""

    def __init__(self, members: Sequence[Member], games: int) -> None:
        self._members, self._games = members, games
        self.errors: list[BaseException | None] = [None] * len(members)
        self._looked_at = True

    def begin(self, absent: Collection[int]) -> None:
        """Get ready for more steps, of which members at the places `absent` are not told."""
        self.errors = [_NobodyLeft() if i in absent else None for i in range(len(self._members))]
        watching = [each for member in self._members for each in member.collector.observers]
        self._looked_at = any(type(each).on_step is not Observer.on_step for each in watching)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        self._tell(lambda each, own: each.on_reset(games[own], _part(observation, own)))

    def on_step(self, transition: Transition) -> None:
        if self._looked_at:
            self._tell(lambda each, own: each.on_step(_Part(transition, own)))  # type: ignore[arg-type]

    def on_progress(self, steps: int) -> None:
        self._tell(lambda each, own: each.on_progress(steps))

    def finish(self, i: int, rollout: Rollout) -> Rollout | BaseException:
        """What member i gets, once its observers have been told of it."""

        def tell() -> None:
            for each in self._members[i].collector.observers:
                for episode in rollout.episodes:
                    each.on_episode_end(episode)
                each.on_rollout(rollout)

        self._guarded(i, tell)
        return rollout if (error := self.errors[i]) is None else error

    def _tell(self, what: Callable[[Observer, slice], None]) -> None:
        for i, member in enumerate(self._members):
            own = slice(i * self._games, (i + 1) * self._games)

            def tell(observers: Sequence[Observer] = member.collector.observers, own: slice = own) -> None:
                for each in observers:
                    what(each, own)

            self._guarded(i, tell)
        if all(error is not None for error in self.errors):
            raise _NobodyLeft

    def _guarded(self, i: int, tell: Callable[[], None]) -> None:
        if self.errors[i] is None:
            try:
                self._members[i].told(tell)
            except (KeyboardInterrupt, GivenUp):  # of the process
                raise
            except BaseException as error:  # noqa: BLE001 (raised again where the member asked for the rollout)
                self.errors[i] = error


class _Part:
    """A member's share of a `Transition`, cut out where somebody looks at it."""

    def __init__(self, whole: Transition, own: slice) -> None:
        self._whole, self._own = whole, own

    @cached_property
    def observation(self) -> Observation:
        return _part(self._whole.observation, self._own)

    @cached_property
    def output(self) -> Any:
        return _fields(self._whole.output, self._own)

    @cached_property
    def step(self) -> Any:
        return _fields(self._whole.step, self._own)

    @cached_property
    def ended(self) -> np.ndarray:
        return self._whole.ended[self._own]


def _part(named: Mapping[str, Any], own: slice) -> dict[str, Any]:
    return {name: x[own] for name, x in named.items()}


def _fields(record: Any, own: slice) -> Any:
    """A record of arrays with the games in front, cut to some games."""
    cut = {
        name: None if x is None else _part(x, own) if isinstance(x, dict) else x[own]
        for name, x in vars(record).items()
    }
    return replace(record, **cut)


def _policies(member: Member) -> Sequence[Any]:
    policy = member.collector.policy
    assert isinstance(policy, PartitionedPolicy)
    return policy.policies
