"""Who is told of the steps that are played: observers beside a rollout, and policies that learn what became of their
actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.core.records import Act, Observation, Step
from llmrl.core.rollouts import Episode, Rollout


@dataclass(frozen=True)
class Transition:
    """One step of all games.

    Attributes:
        observation: all channels of the environment, in the state that was acted in. An engine may write over these
            arrays two steps later: copy what is kept.
        act: what the policy decided.
        step: what it led to.
        ended: the game is over and waits for its next reset, [n_envs] bool. What a game shows that was over before
            means nothing.
    """

    observation: Observation
    act: Act
    step: Step
    ended: np.ndarray


@runtime_checkable
class StepObserver(Protocol):
    """Who is told of resets and steps: an `Observer`, and a policy that is told what its actions led to.

    A policy is told before observers are, because what it learns is part of the play.
    """

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """New episodes have begun in the games where `games` [n_envs] is true; `observation` is every game's."""
        ...

    def on_step(self, transition: Transition) -> None:
        """All games were stepped."""
        ...


class Observer:
    """Watches a rollout and changes nothing in it; `Collector(observers=[...])` tells it.

    Derive from it and override what is needed: every method does nothing by default. Arrays must not be changed.
    Whatever it raises ends the run.

    Attributes:
        channels: of the environment that it reads; a channel that is only computed on request is requested.
    """

    channels: tuple[str, ...] = ()

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """New episodes have begun in the games where `games` [n_envs] is true; `observation` is every game's."""

    def on_step(self, transition: Transition) -> None:
        """All games were stepped."""

    def on_progress(self, steps: int) -> None:
        """Every game has made so many steps since this was told last: some twenty times a second, where steps are that
        fast, and when a collection is over. For whoever need not look at each."""

    def on_episode_end(self, episode: Episode) -> None:
        """An episode is over; told when the collection that it ended in is, in the order of ends and then of games."""

    def on_rollout(self, rollout: Rollout) -> None:
        """So many steps were collected. The next collection writes over its tensors."""

    def close(self) -> None:
        """Nothing more is to come. An observer of a run that is interrupted is not closed."""
