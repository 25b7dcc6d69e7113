"""The common base of batched games: seeds, clocks, and random numbers drawn in advance."""

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
"""Number of steps for which random numbers are drawn at once."""


class ArrayGames(ABC):
    """Base class of `Games` whose state consists of arrays.

    Args:
        n: number of games.
        observation_space: observation space of one game.
        action_space: action space of one game.
        horizon: steps after which an episode is truncated; None: never.
    """

    def __init__(self, n: int, observation_space: Space[Any], action_space: Space[Any], horizon: int | None) -> None:
        self.n = n
        self.observation_space, self.action_space, self.horizon = observation_space, action_space, horizon
        self.infos: Sequence[Mapping[str, Any]] = ({},) * n
        self._tick = 0
        self._began: NDArray[np.int64] = np.zeros(n, dtype=np.int64)
        """Tick at which each game would have begun if it had been advanced at every tick since then."""
        self._next_truncation = 0
        """No game is truncated before this tick."""

    @property
    def time(self) -> NDArray[np.int64]:
        """Number of steps of each game's episode so far, [n]."""
        return self._tick - self._began

    @abstractmethod
    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Put games `indices` [m] into start states, drawn from the generators `sources` [m]."""

    @abstractmethod
    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Advance the games that are `playing` [n] (None: all); return rewards [n] and whether games terminated [n].

        Returned values of other games are ignored; their state must not change.
        """

    @abstractmethod
    def observe(self) -> NDArray[Any]:
        """Return the observations of all games, [n, ...], in a new array."""

    @abstractmethod
    def render(self, index: int) -> NDArray[np.uint8]:
        """Return a frame of one game, [height, width, 3]."""

    def reset(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> NDArray[Any]:
        games = np.flatnonzero(mask)
        self.start(games, generators(np.asarray(seeds)[games]))
        return self.observe()

    def start(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Start games `indices` [m], which draw from the generators `sources` [m]."""
        self.begin(indices, sources)
        self._began[indices] = self._tick
        self._next_truncation = int(self._began.min()) + (self.horizon or 0)

    def reseed(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> None:  # noqa: B027
        """Do nothing, because most games draw numbers at their start only; the others override this."""

    def step(
        self, actions: Any, playing: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        # The overhead of NumPy's calls exceeds their arithmetic here, so most steps skip what they do not need.
        self._tick += 1
        if np.count_nonzero(playing) == self.n:
            reward, terminated = self.advance(actions, None)
        else:
            self._began += ~playing
            reward, terminated = self.advance(actions, playing)
            reward, terminated = reward * playing, terminated & playing
        if self.horizon is None or self._tick < self._next_truncation:
            truncated = np.zeros(self.n, dtype=bool)
        else:
            truncated = playing & (self.time >= self.horizon)
        return self.observe(), reward, terminated, truncated

    def close(self) -> None:  # noqa: B027 (not everybody has something to release)
        """Do nothing: there are no resources. Subclasses with resources override it."""


class BufferedRandom:
    """Random numbers of n games, drawn in blocks, which are the same numbers as drawn step by step.

    If a game uses its generator for nothing else after its start, it gets the numbers of Gymnasium's environment.

    Args:
        n: number of games.
        width: numbers per step.
        kind: distribution: uniform on [0, 1), or standard normal.
    """

    def __init__(self, n: int, width: int, kind: Literal["random", "standard_normal"] = "random") -> None:
        self._kind = kind
        self._block = np.zeros((n, _BLOCK, width))
        self._positions = np.zeros(n, dtype=np.int64)
        self._games = np.arange(n)
        self._remaining = _BLOCK
        """Number of steps for which every game has buffered numbers."""
        self._generators: list[np.random.Generator | None] = [None] * n

    def start(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        """Draw the numbers of games `indices` [m] from the generators `sources` [m] from now on."""
        for game, source in zip(indices.tolist(), sources, strict=True):
            self._generators[game] = source
            self._fill(game)
        self._remaining = _BLOCK - int(self._positions.max())

    def take(self, playing: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """Return the next numbers of all games, [n, width], and advance games that are `playing` [n] (None: all)."""
        numbers = self._block[self._games, self._positions]
        self._positions += True if playing is None else playing
        self._remaining -= 1
        if self._remaining == 0:
            for game in np.flatnonzero(self._positions == _BLOCK).tolist():
                self._fill(game)
            self._remaining = _BLOCK - int(self._positions.max())
        return numbers

    def _fill(self, game: int) -> None:
        source = self._generators[game]
        if source is not None:
            getattr(source, self._kind)(out=self._block[game])
        self._positions[game] = 0


def choices(actions: Any, n: int) -> NDArray[np.int64]:
    """Return discrete actions, of any shape, as int64.

    Raises:
        ValueError: an action is not in 0 .. n - 1.
    """
    indices = np.ascontiguousarray(actions, dtype=np.int64)
    # One comparison checks both bounds: as unsigned integers, negative ones are the largest.
    if np.count_nonzero(indices.view(np.uint64) >= n):
        raise ValueError(f"actions must be 0 to {n - 1}, got {indices.min()} to {indices.max()}")
    return indices


def render_frame(env: Any) -> NDArray[np.uint8]:
    """Return the frame that a Gymnasium environment renders, [height, width, 3]."""
    image: NDArray[np.uint8] = np.asarray(env.render())
    return image
