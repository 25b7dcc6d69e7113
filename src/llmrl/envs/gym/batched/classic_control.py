"""CartPole and MountainCar: n parallel copies (games) with their state in arrays, and with Gymnasium's constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.array_games import check_discrete_actions
from llmrl.envs.gym.batched import BatchedGames

# CartPole: masses in kg, half the length of the pole in m, gravity in m/s², time step in s, force on the cart in N.
_POLE_MASS, _POLE_HALF_LENGTH, _TOTAL_MASS = 0.1, 0.5, 0.1 + 1.0
_POLE_MASS_LENGTH = _POLE_MASS * _POLE_HALF_LENGTH
_CART_GRAVITY, _TIME_STEP, _CART_FORCE = 9.8, 0.02, 10.0
_MAX_CART_POSITION, _MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360  # in m, and 12 degrees in radians; beyond: terminated

# MountainCar and MountainCarContinuous: position, velocity in position per step, forces in velocity per step.
_MIN_CAR_POSITION, _MAX_CAR_POSITION, _MAX_CAR_VELOCITY = -1.2, 0.6, 0.07
_SLOPE_GRAVITY, _DISCRETE_FORCE, _DISCRETE_GOAL_POSITION = 0.0025, 0.001, 0.5
_MAX_FORCE, _CONTINUOUS_GOAL_POSITION = 0.0015, 0.45  # of MountainCarContinuous


class ClassicControlGames(BatchedGames):
    """Base class of games whose state consists of k numbers and whose frames a Gymnasium environment renders.

    Args:
        n: number of games.
        env: Gymnasium environment that defines the spaces and renders.
        horizon: steps after which an episode is truncated; None: never.
        state: initial state of each game, [k, n].
    """

    def __init__(self, n: int, env: Any, horizon: int | None, state: NDArray[Any]) -> None:
        super().__init__(n, env.observation_space, env.action_space, horizon)
        self._env, self._state = env, state

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.astype(np.float32, order="C")

    def render(self, index: int) -> NDArray[np.uint8]:
        self._env.state = self._state[:, index].copy()
        return np.asarray(self._env.render())


class CartPoleGames(ClassicControlGames):
    """Gymnasium's CartPole-v1, bit for bit: the task of Barto, Sutton and Anderson (1983) in Euler steps of 0.02 s.

    Args:
        n: number of games.
        horizon: steps after which an episode is truncated; None: never.
        sutton_barto_reward: whether the reward is -1 in a step that terminates the episode and 0 in other steps; else
            it is 1 in each step.
    """

    def __init__(self, n: int, horizon: int | None = None, sutton_barto_reward: bool = False) -> None:
        from gymnasium.envs.classic_control.cartpole import CartPoleEnv

        env = CartPoleEnv(sutton_barto_reward=sutton_barto_reward, render_mode="rgb_array")
        # Position and velocity of the cart, then angle and angular velocity of the pole.
        super().__init__(n, env, horizon, np.zeros((4, n)))
        self._sutton_barto_reward = sutton_barto_reward

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        for game, rng in zip(indices.tolist(), rngs, strict=True):
            self._state[:, game] = rng.uniform(low=-0.05, high=0.05, size=(4,))

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Apply Gymnasium's operations in the same order, so that rounding is equal."""
        _, x_dot, theta, theta_dot = self._state
        force = np.where(check_discrete_actions(actions, 2) == 1, _CART_FORCE, -_CART_FORCE)
        cos, sin = np.cos(theta), np.sin(theta)
        # Frictionless equations of Florian (2007), "Correct equations for the dynamics of the cart-pole system".
        push = (force + _POLE_MASS_LENGTH * np.square(theta_dot) * sin) / _TOTAL_MASS
        effective_length = _POLE_HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * np.square(cos) / _TOTAL_MASS)
        theta_acceleration = (_CART_GRAVITY * sin - cos * push) / effective_length
        x_acceleration = push - _POLE_MASS_LENGTH * theta_acceleration * cos / _TOTAL_MASS
        state = self._state + _TIME_STEP * np.array((x_dot, x_acceleration, theta_dot, theta_acceleration))
        self._state = state if active is None else np.where(active, state, self._state)
        terminated = (np.abs(state[0]) > _MAX_CART_POSITION) | (np.abs(state[2]) > _MAX_ANGLE)
        return -terminated.astype(np.float64) if self._sutton_barto_reward else np.ones(self.n), terminated


class MountainCarGames(ClassicControlGames):
    """Gymnasium's MountainCar-v0, bit for bit (Moore 1990).

    Args:
        n: number of games.
        horizon: steps after which an episode is truncated; None: never.
        goal_velocity: minimum velocity at the goal position with which an episode terminates.
    """

    def __init__(self, n: int, horizon: int | None = None, goal_velocity: float = 0) -> None:
        from gymnasium.envs.classic_control.mountain_car import MountainCarEnv

        env: Any = MountainCarEnv(goal_velocity=goal_velocity, render_mode="rgb_array")
        super().__init__(n, env, horizon, np.zeros((2, n)))  # position and velocity
        self._goal_velocity = goal_velocity

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        self._state[0, indices] = [rng.uniform(low=-0.6, high=-0.4) for rng in rngs]
        self._state[1, indices] = 0.0

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        directions = check_discrete_actions(actions, 3) - 1
        push = directions * _DISCRETE_FORCE + _cosines(3 * self._state[0]) * -_SLOPE_GRAVITY
        state = _move_car(self._state[0], self._state[1], push)
        self._state = state if active is None else np.where(active, state, self._state)
        return np.full(self.n, -1.0), (state[0] >= _DISCRETE_GOAL_POSITION) & (state[1] >= self._goal_velocity)


class MountainCarContinuousGames(ClassicControlGames):
    """Gymnasium's MountainCarContinuous-v0, bit for bit if actions are float32, as its action space declares.

    From the first step on, Gymnasium stores the state in float32. It computes in float32, except where an operand is a
    Python number. This class does the same.

    Args:
        n: number of games.
        horizon: steps after which an episode is truncated; None: never.
        goal_velocity: minimum velocity at the goal position with which an episode terminates.
    """

    def __init__(self, n: int, horizon: int | None = None, goal_velocity: float = 0) -> None:
        from gymnasium.envs.classic_control.continuous_mountain_car import Continuous_MountainCarEnv

        env: Any = Continuous_MountainCarEnv(goal_velocity=goal_velocity, render_mode="rgb_array")
        super().__init__(n, env, horizon, np.zeros((2, n), dtype=np.float32))
        self._goal_velocity = goal_velocity
        # Gymnasium's initial state is float64, so its first step is computed in double precision.
        self._start_positions = np.zeros(n)
        self._is_first_step = np.ones(n, dtype=bool)

    def set_start_states(self, indices: NDArray[np.int64], rngs: Sequence[np.random.Generator]) -> None:
        self._start_positions[indices] = [rng.uniform(low=-0.6, high=-0.4) for rng in rngs]
        self._state[0, indices], self._state[1, indices] = self._start_positions[indices], 0.0
        self._is_first_step[indices] = True

    def advance(self, actions: Any, active: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        action = np.asarray(actions, dtype=np.float32).reshape(self.n)
        state, terminated = self._compute_step(action, self._state[0], self._state[1])
        if self._is_first_step.any():
            first_state, first_terminated = self._compute_step(action, self._start_positions, np.zeros(self.n))
            state = np.where(self._is_first_step, first_state, state)
            terminated = np.where(self._is_first_step, first_terminated, terminated)
            self._is_first_step &= False if active is None else ~active
        if active is not None:
            state = np.where(active, state, self._state)
        self._state = state.astype(np.float32, copy=False)
        # Gymnasium's reward is -0.1 a², plus 100 at the goal; the sum has the same order.
        cost = np.square(action.astype(np.float64)) * -0.1
        return np.where(terminated, 100.0 + cost, cost), terminated

    def _compute_step(
        self, action: NDArray[np.float32], position: NDArray[Any], velocity: NDArray[Any]
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return the state [2, n] after a step, in the precision of `position`, and whether the goal is reached [n]."""
        slope_force = _SLOPE_GRAVITY * _cosines(3 * position)
        # In Gymnasium, an action clipped to its bound, -1 or 1, is a Python number; any other action is float32.
        push_at_bound = (np.where(action > 0, _MAX_FORCE, -_MAX_FORCE) - slope_force).astype(position.dtype)
        push_inside = action * np.float32(_MAX_FORCE) - slope_force.astype(np.float32)
        state = _move_car(position, velocity, np.where(np.abs(action) > 1, push_at_bound, push_inside))
        return state, (state[0] >= _CONTINUOUS_GOAL_POSITION) & (state[1] >= self._goal_velocity)


def _move_car(position: NDArray[Any], velocity: NDArray[Any], push: NDArray[Any]) -> NDArray[Any]:
    """Return position and velocity [2, n] after a push [n]; the car stops at the left end."""
    velocity = np.clip(velocity + push, -_MAX_CAR_VELOCITY, _MAX_CAR_VELOCITY)
    position = np.clip(position + velocity, _MIN_CAR_POSITION, _MAX_CAR_POSITION)
    velocity[(position == _MIN_CAR_POSITION) & (velocity < 0)] = 0
    return np.array((position, velocity))


def _cosines(angles: NDArray[Any]) -> NDArray[np.float64]:
    """Return cosines [n] with the C library, which Gymnasium uses; NumPy's cosine may differ in the last bit."""
    return np.array([*map(math.cos, angles.tolist())])
