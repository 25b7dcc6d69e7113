"""Interfaces of many games of one Gymnasium environment in lock step, and of their texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from llmrl.core.spaces import EnvDescription

if TYPE_CHECKING:
    from gymnasium import Space


@runtime_checkable
class Games(Protocol):
    """`n` games, numbered from 0, each of which behaves exactly as Gymnasium's own environment.

    Attributes:
        n: number of games.
        observation_space, action_space: spaces of one game.
        horizon: steps after which an episode is truncated; None: never.
        infos: the last `info` of each game; an empty mapping if there is none.
    """

    n: int
    observation_space: Space[Any]
    action_space: Space[Any]
    horizon: int | None
    infos: Sequence[Mapping[str, Any]]

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any] | np.ndarray:
        """Start the games where `mask` [n] is true, game i as `env.reset(seed=seeds[i])` does; `seeds` [n] int64.

        Return the observation of every game, in order; those of games never started are undefined.
        """
        ...

    def step(
        self, actions: Sequence[Any] | np.ndarray, playing: np.ndarray
    ) -> tuple[Sequence[Any] | np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Advance the games where `playing` [n] is true; the others do not change.

        `actions[i]` is an element of `action_space`. Return observations, rewards [n] float64, terminated [n] bool and
        truncated [n] bool; 0 and false for games that are not playing.
        """
        ...

    def reseed(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Draw the further random numbers of the games where `mask` [n] is true from generators with `seeds` [n]."""
        ...

    def render(self, index: int) -> np.ndarray:
        """Return a frame of one game, [height, width, 3] uint8."""
        ...

    def close(self) -> None: ...


class Describer(Protocol):
    """A text interface of one environment. `game` is the description that players get before an episode."""

    game: EnvDescription

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """Return an observation (with its `info`) as text."""
        ...
