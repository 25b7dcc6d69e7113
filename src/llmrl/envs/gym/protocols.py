"""Many games of one Gymnasium environment in lock step: what whoever plays them has, and what says which they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import numpy as np

from llmrl.core.spaces import GameText
from llmrl.core.trust import NOBODY, Trust

if TYPE_CHECKING:
    from gymnasium import Space

Engine = Literal["stock", "batched"]


@runtime_checkable
class Games(Protocol):
    """`n` games, numbered from 0, each of which goes on exactly as Gymnasium's own environment would.

    `observation_space` and `action_space` are those of one game; `horizon` is the number of steps after which it is
    truncated, None if it never is; `infos[i]` is what the environment last said about game i beside its observation
    (an empty mapping where it says nothing).
    """

    n: int
    observation_space: Space[Any]
    action_space: Space[Any]
    horizon: int | None
    infos: Sequence[Mapping[str, Any]]

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> Sequence[Any] | np.ndarray:
        """Start the games where `mask` [n] is true, game i as `env.reset(seed=seeds[i])` does; `seeds` [n] int64.

        Returns every game's observation, entry i that of game i; of games never started, anything.
        """
        ...

    def step(
        self, actions: Sequence[Any] | np.ndarray, playing: np.ndarray
    ) -> tuple[Sequence[Any] | np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Advance the games where `playing` [n] is true; the others stay as they are.

        `actions[i]` is what `action_space` holds. Returns observations, rewards [n] float64, terminated [n] bool and
        truncated [n] bool; 0 and false for games that are not playing.
        """
        ...

    def render(self, index: int) -> np.ndarray:
        """A picture of one game, [height, width, 3] uint8."""
        ...

    def close(self) -> None: ...


class Describer(Protocol):
    """Puts one environment into words."""

    game: GameText

    def describe(self, observation: Any, info: Mapping[str, Any]) -> str:
        """What is observed, for a reader."""
        ...


@dataclass(frozen=True)
class EnvArguments:
    """What says which games of one environment are meant, here or in another process.

    Args:
        id: Gymnasium's id; `module:Id-v0` imports `module` first.
        kwargs: arguments of the environment.
        horizon: steps after which an episode is truncated, >= 1; None: the environment's own number.
        engine: `stock`, Gymnasium's own environment, one object a game; or `batched`, the same game as arrays.
        trust: which modules an id, or a text of the game, may name.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    horizon: int | None = None
    engine: Engine = "stock"
    trust: Trust = NOBODY
