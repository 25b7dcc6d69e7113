"""MountainCar with discrete actions and with continuous actions, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices, render_frame

_MIN_POSITION, _MAX_POSITION, _MAX_VELOCITY = -1.2, 0.6, 0.07
_FORCE, _GRAVITY, _GOAL = 0.001, 0.0025, 0.5
_POWER, _CONTINUOUS_GOAL = 0.0015, 0.45


class MountainCarGames(ArrayGames):
    """Gymnasium's MountainCar-v0, bit for bit (Moore 1990).

    Args:
        n: games.
        horizon: steps after which an episode is truncated; None: never.
        goal_velocity: least speed at which the goal counts.
    """

    def __init__(self, n: int, horizon: int | None = None, goal_velocity: float = 0) -> None:
        from gymnasium.envs.classic_control.mountain_car import MountainCarEnv

        self._stock: Any = MountainCarEnv(goal_velocity=goal_velocity, render_mode="rgb_array")
        super().__init__(n, self._stock.observation_space, self._stock.action_space, horizon)
        self._goal_velocity = np.full(n, float(goal_velocity))
        self._goal, self._reward = np.full(n, _GOAL), np.full(n, -1.0)
        self._reward.flags.writeable = False
        self._pushes = (np.arange(3) - 1) * _FORCE
        # Constants are arrays, because NumPy takes twice as long with Python numbers.
        self._min_position, self._max_position, self._zero_velocity = (
            np.full(n, _MIN_POSITION),
            np.full(n, _MAX_POSITION),
            np.zeros(n),
        )
        self._min_velocity, self._max_velocity = np.full(n, -_MAX_VELOCITY), np.full(n, _MAX_VELOCITY)
        self._three, self._gravity = np.full(n, 3.0), np.full(n, -_GRAVITY)
        # Position and velocity.
        self._state = np.zeros((2, n))

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        self._state[0, indices] = [source.uniform(low=-0.6, high=-0.4) for source in sources]
        self._state[1, indices] = 0.0

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        push = self._pushes.take(choices(actions, 3)) + _slopes(self._three * self._state[0]) * self._gravity
        velocity = _clip(self._state[1] + push, self._min_velocity, self._max_velocity)
        position = _clip(self._state[0] + velocity, self._min_position, self._max_position)
        stopped = (position == self._min_position) & (velocity < self._zero_velocity)
        if np.count_nonzero(stopped):
            velocity[stopped] = 0.0
        state = np.array((position, velocity))
        self._state = state if playing is None else np.where(playing, state, self._state)
        return self._reward, (position >= self._goal) & (velocity >= self._goal_velocity)

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.astype(np.float32, order="C")

    def render(self, index: int) -> NDArray[np.uint8]:
        self._stock.state = self._state[:, index].copy()
        return render_frame(self._stock)


class MountainCarContinuousGames(ArrayGames):
    """Gymnasium's MountainCarContinuous-v0, bit for bit if actions are float32, as its action space says.

    That environment keeps its state in float32 from the first step on, and computes in float32 but where a number came
    from Python; so does this.

    Args:
        n: games.
        horizon: steps after which an episode is truncated; None: never.
        goal_velocity: least speed at which the goal counts.
    """

    def __init__(self, n: int, horizon: int | None = None, goal_velocity: float = 0) -> None:
        from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

        self._stock: Any = Continuous_MountainCarEnv(goal_velocity=goal_velocity, render_mode="rgb_array")
        super().__init__(n, self._stock.observation_space, self._stock.action_space, horizon)
        # The initial state is float64, so that the first step is computed in double precision.
        self._constants = {kind: _Constants(n, kind, goal_velocity) for kind in (np.float32, np.float64)}
        self._start = np.zeros(n)
        self._first = np.ones(n, dtype=bool)
        self._any_first = True
        self._state = np.zeros((2, n), dtype=np.float32)

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        self._start[indices] = [source.uniform(low=-0.6, high=-0.4) for source in sources]
        self._state[0, indices], self._state[1, indices] = self._start[indices], 0.0
        self._first[indices] = self._any_first = True

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        action = np.asarray(actions, dtype=np.float32).reshape(self.n)
        state, terminated = _move(action, self._state[0], self._state[1], self._constants[np.float32])
        if self._any_first:
            first_state, first_terminated = _move(action, self._start, np.zeros(self.n), self._constants[np.float64])
            state, terminated = (
                np.where(self._first, first_state, state),
                np.where(self._first, first_terminated, terminated),
            )
            self._first &= False if playing is None else ~playing
            self._any_first = bool(self._first.any())
        if playing is not None:
            state = np.where(playing, state, self._state)
        self._state = state.astype(np.float32, copy=False)
        reward = action.astype(np.float64)
        np.square(reward, reward)
        reward *= -0.1
        if np.count_nonzero(terminated):
            # 100 - 0.1 a^2, added in the same order as in Gymnasium.
            reward = np.where(terminated, 100.0 + reward, reward)
        return reward, terminated

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.copy()

    def render(self, index: int) -> NDArray[np.uint8]:
        self._stock.state = self._state[:, index].copy()
        return render_frame(self._stock)


class _Constants:
    """Constants of n games in one precision, as arrays, because NumPy takes twice as long with Python numbers."""

    def __init__(self, n: int, kind: type[np.floating[Any]], goal_velocity: float) -> None:
        def full(number: float) -> NDArray[Any]:
            return np.full(n, number, dtype=kind)

        self.kind, self.three, self.power, self.one = kind, full(3), np.full(n, _POWER, np.float32), np.float32(1)
        self.min_velocity, self.max_velocity, self.min_position, self.max_position = (
            full(-_MAX_VELOCITY),
            full(_MAX_VELOCITY),
            full(_MIN_POSITION),
            full(_MAX_POSITION),
        )
        self.zero, self.goal, self.goal_velocity = full(0), full(_CONTINUOUS_GOAL), full(goal_velocity)
        self.gravity = np.full(n, _GRAVITY)


def _move(
    action: NDArray[np.float32], position: NDArray[Any], velocity: NDArray[Any], constants: _Constants
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the state [2, n] after a step, in the precision of `constants`, and whether the goal is reached [n]."""
    pull = constants.gravity * _slopes(constants.three * position)
    push = action * constants.power - pull.astype(np.float32)
    clipped_actions = np.abs(action) > constants.one
    if np.count_nonzero(clipped_actions):
        # In Gymnasium, a force that is clipped to its bound is a Python number, any other one is float32.
        push = np.where(clipped_actions, (np.where(action > 0, _POWER, -_POWER) - pull).astype(constants.kind), push)
    velocity = _clip(velocity + push, constants.min_velocity, constants.max_velocity)
    position = _clip(position + velocity, constants.min_position, constants.max_position)
    stopped = (position == constants.min_position) & (velocity < constants.zero)
    if np.count_nonzero(stopped):
        velocity[stopped] = 0
    return np.array((position, velocity)), (position >= constants.goal) & (velocity >= constants.goal_velocity)


def _slopes(angles: NDArray[Any]) -> NDArray[np.float64]:
    """Return cosines [n] as the C library computes them (as Gymnasium does); NumPy's may differ in the last bit."""
    return np.array([*map(math.cos, angles.tolist())])


def _clip(constants: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Return `constants` clipped to `low` and `high`. In place it would take longer."""
    clipped: NDArray[Any] = np.minimum(np.maximum(constants, low), high)
    return clipped
