"""Mountain car, with three actions and with a force, as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices, picture

_LEFT, _RIGHT, _FASTEST = -1.2, 0.6, 0.07
_FORCE, _GRAVITY, _GOAL = 0.001, 0.0025, 0.5
_POWER, _NEARER_GOAL = 0.0015, 0.45


class MountainCarGames(ArrayGames):
    """Gymnasium's MountainCar-v0, equal to it bit for bit: Moore (1990).

    Args:
        n: games.
        horizon: steps after which a game is truncated; None: never.
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
        # As arrays: NumPy takes twice as long with a number of Python's.
        self._left, self._right, self._still = np.full(n, _LEFT), np.full(n, _RIGHT), np.zeros(n)
        self._slowest, self._fastest = np.full(n, -_FASTEST), np.full(n, _FASTEST)
        self._three, self._gravity = np.full(n, 3.0), np.full(n, -_GRAVITY)
        # Position and velocity.
        self._state = np.zeros((2, n))

    def begin(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        self._state[0, chosen] = [source.uniform(low=-0.6, high=-0.4) for source in sources]
        self._state[1, chosen] = 0.0

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        push = self._pushes.take(choices(actions, 3)) + _slopes(self._three * self._state[0]) * self._gravity
        velocity = _confined(self._state[1] + push, self._slowest, self._fastest)
        position = _confined(self._state[0] + velocity, self._left, self._right)
        stopped = (position == self._left) & (velocity < self._still)
        if np.count_nonzero(stopped):
            velocity[stopped] = 0.0
        state = np.array((position, velocity))
        self._state = state if playing is None else np.where(playing, state, self._state)
        return self._reward, (position >= self._goal) & (velocity >= self._goal_velocity)

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.astype(np.float32, order="C")

    def render(self, index: int) -> NDArray[np.uint8]:
        self._stock.state = self._state[:, index].copy()
        return picture(self._stock)


class MountainCarContinuousGames(ArrayGames):
    """Gymnasium's MountainCarContinuous-v0, equal to it bit for bit where actions are float32, as its space says.

    That environment keeps its state in float32 from the first step on, and computes in float32 but where a number came
    from Python; so does this.

    Args:
        n: games.
        horizon: steps after which a game is truncated; None: never.
        goal_velocity: least speed at which the goal counts.
    """

    def __init__(self, n: int, horizon: int | None = None, goal_velocity: float = 0) -> None:
        from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

        self._stock: Any = Continuous_MountainCarEnv(goal_velocity=goal_velocity, render_mode="rgb_array")
        super().__init__(n, self._stock.observation_space, self._stock.action_space, horizon)
        # The state drawn at the start is float64, so that a first step is computed with all its digits.
        self._digits = {kind: _Numbers(n, kind, goal_velocity) for kind in (np.float32, np.float64)}
        self._start = np.zeros(n)
        self._first = np.ones(n, dtype=bool)
        self._any_first = True
        self._state = np.zeros((2, n), dtype=np.float32)

    def begin(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        self._start[chosen] = [source.uniform(low=-0.6, high=-0.4) for source in sources]
        self._state[0, chosen], self._state[1, chosen] = self._start[chosen], 0.0
        self._first[chosen] = self._any_first = True

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        action = np.asarray(actions, dtype=np.float32).reshape(self.n)
        state, terminated = _moved(action, self._state[0], self._state[1], self._digits[np.float32])
        if self._any_first:
            early, over = _moved(action, self._start, np.zeros(self.n), self._digits[np.float64])
            state, terminated = np.where(self._first, early, state), np.where(self._first, over, terminated)
            self._first &= False if playing is None else ~playing
            self._any_first = bool(self._first.any())
        if playing is not None:
            state = np.where(playing, state, self._state)
        self._state = state.astype(np.float32, copy=False)
        reward = action.astype(np.float64)
        np.square(reward, reward)
        reward *= -0.1
        if np.count_nonzero(terminated):
            # 100 - 0.1 a^2, as Gymnasium adds it up.
            reward = np.where(terminated, 100.0 + reward, reward)
        return reward, terminated

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.copy()

    def render(self, index: int) -> NDArray[np.uint8]:
        self._stock.state = self._state[:, index].copy()
        return picture(self._stock)


class _Numbers:
    """Constants of n games in one precision, each as an array: NumPy takes twice as long with a number of Python's."""

    def __init__(self, n: int, kind: type[np.floating[Any]], goal_velocity: float) -> None:
        def full(number: float) -> NDArray[Any]:
            return np.full(n, number, dtype=kind)

        self.kind, self.three, self.power, self.one = kind, full(3), np.full(n, _POWER, np.float32), np.float32(1)
        self.slowest, self.fastest, self.left, self.right = full(-_FASTEST), full(_FASTEST), full(_LEFT), full(_RIGHT)
        self.zero, self.goal, self.goal_velocity = full(0), full(_NEARER_GOAL), full(goal_velocity)
        self.gravity = np.full(n, _GRAVITY)


def _moved(
    action: NDArray[np.float32], position: NDArray[Any], velocity: NDArray[Any], its: _Numbers
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """State [2, n] after a step, in the precision of `its`, and whether the goal is reached [n]."""
    pull = its.gravity * _slopes(its.three * position)
    push = action * its.power - pull.astype(np.float32)
    beyond = np.abs(action) > its.one
    if np.count_nonzero(beyond):
        # A force that is cut to its bound is a number of Python's there, any other one is float32.
        push = np.where(beyond, (np.where(action > 0, _POWER, -_POWER) - pull).astype(its.kind), push)
    velocity = _confined(velocity + push, its.slowest, its.fastest)
    position = _confined(position + velocity, its.left, its.right)
    stopped = (position == its.left) & (velocity < its.zero)
    if np.count_nonzero(stopped):
        velocity[stopped] = 0
    return np.array((position, velocity)), (position >= its.goal) & (velocity >= its.goal_velocity)


def _slopes(angles: NDArray[Any]) -> NDArray[np.float64]:
    """Cosines [n]. Gymnasium takes them from the C library, which NumPy's need not equal in the last bit."""
    return np.array([*map(math.cos, angles.tolist())])


def _confined(numbers: NDArray[Any], low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """`numbers` between `low` and `high`. In place it would take longer."""
    put: NDArray[Any] = np.minimum(np.maximum(numbers, low), high)
    return put
