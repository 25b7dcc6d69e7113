"""Batched environments: n parallel games with states in arrays, each with exactly the results of Gymnasium's game."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from gymnasium import Space

_BATCHED_MODULE = "llmrl.envs.gym.batched"
_TASKS_MODULE = "llmrl.envs.gym.tasks"

BATCHED_GAMES: Mapping[str, str] = {
    "CartPole-v1": f"{_BATCHED_MODULE}.classic_control:CartPoleGames",
    "MountainCar-v0": f"{_BATCHED_MODULE}.classic_control:MountainCarGames",
    "MountainCarContinuous-v0": f"{_BATCHED_MODULE}.classic_control:MountainCarContinuousGames",
    "FrozenLake-v1": f"{_BATCHED_MODULE}.tabular_games:make_frozen_lake_games",
    "FrozenLake8x8-v1": f"{_BATCHED_MODULE}.tabular_games:make_frozen_lake_games",
    "CliffWalking-v1": f"{_BATCHED_MODULE}.tabular_games:make_cliff_walking_games",
    "CliffWalkingSlippery-v1": f"{_BATCHED_MODULE}.tabular_games:make_cliff_walking_games",
    "Taxi-v4": f"{_BATCHED_MODULE}.tabular_games:make_taxi_games",
    "llmrl/Maze-v0": f"{_TASKS_MODULE}.maze:MazeGames",
    "llmrl/Nim-v0": f"{_TASKS_MODULE}.nim:make_nim_games",
    "llmrl/Navigation-v0": f"{_TASKS_MODULE}.navigation:NavigationGames",
    "llmrl/Pong-v0": f"{_TASKS_MODULE}.pong:PongGames",
}
"""Gymnasium id -> `module:callable`, whose arguments are the number of games, the step limit and arguments of the
environment. It returns the games, or None if no batched engine supports these arguments."""


class BatchedGames(ABC):
    """Base class of games whose state consists of arrays; `env_factory.Games` documents most attributes.

    Args:
        n: number of games.
        observation_space: observation space of one game.
        action_space: action space of one game.
        horizon: steps after which an episode is truncated; None: never.

    Attributes:
        time: number of steps of each game's episode so far, [n].
    """

    def __init__(self, n: int, observation_space: Space[Any], action_space: Space[Any], horizon: int | None) -> None:
        self.n = n
        self.observation_space, self.action_space, self.horizon = observation_space, action_space, horizon
        self.always_ends = horizon is not None
        self.infos: Sequence[Mapping[str, Any]] = ({},) * n
        self.time = np.zeros(n, dtype=np.int64)
        self._rngs: list[np.random.Generator | None] = [None] * n

    @abstractmethod
    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        """Put games `indices` [m] into start states sampled with the generators `rngs` [m]."""

    @abstractmethod
    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Advance the games that are `active` [n] (None: all); return rewards [n] and whether games terminated [n].

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
        self.start(games, [np.random.default_rng(int(seed)) for seed in seeds[games]])
        return self.observe()

    def start(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        """Start an episode in games `indices` [m], whose random numbers come from the generators `rngs` [m]."""
        self.set_start_states(indices, rngs)
        self.time[indices] = 0
        for game, rng in zip(indices.tolist(), rngs, strict=True):
            self._rngs[game] = rng

    def reseed(self, seeds: NDArray[np.int64], mask: NDArray[np.bool_]) -> None:
        for game in np.flatnonzero(mask).tolist():
            self._rngs[game] = np.random.default_rng(int(seeds[game]))

    def sample(
        self,
        n_numbers: int,
        active: NDArray[np.bool_] | None,
        distribution: Literal["random", "standard_normal"] = "random",
    ) -> NDArray[np.float64]:
        """Return the next `n_numbers` random numbers of the games that are `active` [n] (None: all), [n, n_numbers].

        They are uniform on [0, 1) (`random`) or standard normal. Each game has a generator, so that its numbers equal
        those of Gymnasium's environment. Numbers of games that are not active are 0.
        """
        numbers = np.zeros((self.n, n_numbers))
        for game in range(self.n) if active is None else np.flatnonzero(active).tolist():
            if (rng := self._rngs[game]) is not None:
                getattr(rng, distribution)(out=numbers[game])
        return numbers

    def step(
        self, actions: Any, active: NDArray[np.bool_]
    ) -> tuple[NDArray[Any], NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]]:
        self.time += active
        reward, terminated = self.advance(actions, None if active.all() else active)
        return self.observe(), reward * active, terminated & active, active & (self.time >= (self.horizon or np.inf))

    def close(self) -> None:  # noqa: B027
        """Do nothing: there are no resources."""
