"""What batched games share: seeds, clocks, and random numbers drawn in advance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.generators import generators

if TYPE_CHECKING:
    from gymnasium import Space

_BLOCK = 64
"""Steps for which random numbers are drawn at once."""


class ArrayGames(ABC):
    """`Games` whose state is arrays.

    Args:
        n: games.
        observation_space: of one game.
        action_space: of one game.
        horizon: steps after which a game is truncated; None: never.
    """

    def __init__(self, n: int, observation_space: Space[Any], action_space: Space[Any], horizon: int | None) -> None:
        self.n = n
        self.observation_space, self.action_space, self.horizon = observation_space, action_space, horizon
        self.infos: Sequence[Mapping[str, Any]] = ({},) * n
        self._tick = 0
        self._began: NDArray[np.int64] = np.zeros(n, dtype=np.int64)
        """Tick at which each game would have begun if it had never been left standing."""
        self._first_cut = 0
        """No game is truncated before this tick."""

    @property
    def time(self) -> NDArray[np.int64]:
        """Steps of each game since it began, [n]."""
        return self._tick - self._began

    @abstractmethod
    def begin(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Put games `chosen` [m] into a state that they may start in, drawn from `sources` [m]."""

    @abstractmethod
    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """One step of the games that are `playing` [n] (None: all): rewards [n], and whether they reached an end [n].

        What is returned of other games does not matter; their state must not change.
        """

    @abstractmethod
    def observe(self) -> NDArray[Any]:
        """Observations of all games, [n, ...], in an array of their own."""

    @abstractmethod
    def render(self, index: int) -> NDArray[np.uint8]:
        """A picture of one game, [height, width, 3]."""

    def reset(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        chosen = np.flatnonzero(mask)
        self.start(chosen, generators(np.asarray(seeds)[chosen]))
        return self.observe()

    def start(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Start games `chosen` [m], which draw from `sources` [m]."""
        self.begin(chosen, sources)
        self._began[chosen] = self._tick
        self._first_cut = int(self._began.min()) + (self.horizon or 0)

    def step(
        self, actions: Any, playing: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        # NumPy's calls cost more than its arithmetic here, so what most steps do not need is not computed.
        self._tick += 1
        if np.count_nonzero(playing) == self.n:
            reward, terminated = self.advance(actions, None)
        else:
            self._began += ~playing
            reward, terminated = self.advance(actions, playing)
            reward, terminated = reward * playing, terminated & playing
        if self.horizon is None or self._tick < self._first_cut:
            truncated = np.zeros(self.n, dtype=bool)
        else:
            truncated = playing & (self.time >= self.horizon)
        return self.observe(), reward, terminated, truncated

    def close(self) -> None:  # noqa: B027 (not everybody has something to release)
        """Release what games hold outside of this process's memory: nothing."""


class Draws:
    """Random numbers of n games, drawn in blocks: the same numbers as drawing them step by step.

    A game whose generator is used for nothing else once it has begun therefore draws what Gymnasium's environment
    draws.

    Args:
        n: games.
        width: numbers a step.
        kind: uniform on [0, 1), or standard normal.
    """

    def __init__(self, n: int, width: int, kind: Literal["random", "standard_normal"] = "random") -> None:
        self._kind = kind
        self._block = np.zeros((n, _BLOCK, width))
        self._at = np.zeros(n, dtype=np.int64)
        self._games = np.arange(n)
        self._rest = _BLOCK
        """Steps for which every game has numbers, at least."""
        self._generators: list[np.random.Generator | None] = [None] * n

    def start(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Draw for games `chosen` [m] from `sources` [m] from now on."""
        for game, source in zip(chosen.tolist(), sources, strict=True):
            self._generators[game] = source
            self._fill(game)
        self._rest = _BLOCK - int(self._at.max())

    def take(self, playing: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """The next numbers of each game, [n, width]; those of games that are not `playing` [n] stay the next.

        None: all play.
        """
        numbers = self._block[self._games, self._at]
        self._at += True if playing is None else playing
        self._rest -= 1
        if self._rest == 0:
            for game in np.flatnonzero(self._at == _BLOCK).tolist():
                self._fill(game)
            self._rest = _BLOCK - int(self._at.max())
        return numbers

    def _fill(self, game: int) -> None:
        source = self._generators[game]
        if source is not None:
            getattr(source, self._kind)(out=self._block[game])
        self._at[game] = 0


def choices(actions: Any, n: int) -> NDArray[np.int64]:
    """Discrete actions, of any shape, as int64.

    Raises:
        ValueError: one is not 0 to n - 1.
    """
    chosen = np.ascontiguousarray(actions, dtype=np.int64)
    # As unsigned numbers, negative ones are the largest.
    if np.count_nonzero(chosen.view(np.uint64) >= n):
        raise ValueError(f"actions must be 0 to {n - 1}, got {chosen.min()} to {chosen.max()}")
    return chosen


def picture(env: Any) -> NDArray[np.uint8]:
    """What Gymnasium draws of one game."""
    drawn: NDArray[np.uint8] = np.asarray(env.render())
    return drawn
