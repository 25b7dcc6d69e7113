"""CartPole as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices, render_frame

if TYPE_CHECKING:
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_POLE_MASS, _HALF_LENGTH, _TOTAL_MASS = 0.1, 0.5, 0.1 + 1.0
_POLE_MOMENT = _POLE_MASS * _HALF_LENGTH
_GRAVITY, _TAU, _FORCE = 9.8, 0.02, 10.0
_MAX_POSITION, _MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360


class CartPoleGames(ArrayGames):
    """Gymnasium's CartPole-v1, bit for bit: Barto, Sutton and Anderson (1983) in Euler steps of 0.02 s.

    Args:
        n: games.
        horizon: steps after which an episode is truncated; None: never.
        sutton_barto_reward: -1 when the pole falls and 0 else, instead of 1 for each step.
    """

    def __init__(self, n: int, horizon: int | None = None, sutton_barto_reward: bool = False) -> None:
        from gymnasium.envs.classic_control.cartpole import CartPoleEnv

        self._stock: CartPoleEnv = CartPoleEnv(sutton_barto_reward=sutton_barto_reward, render_mode="rgb_array")
        super().__init__(n, self._stock.observation_space, self._stock.action_space, horizon)
        self._sutton_barto_reward = sutton_barto_reward
        # Position and velocity of the cart, then angle and angular velocity of the pole.
        self._state = np.zeros((4, n))

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        for game, source in zip(indices.tolist(), sources, strict=True):
            self._state[:, game] = source.uniform(low=-0.05, high=0.05, size=(4,))

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Advance by Gymnasium's operations in the same order, so that rounding is equal."""
        _, x_dot, theta, theta_dot = self._state
        force = np.where(choices(actions, 2) == 1, _FORCE, -_FORCE)
        cos, sin = np.cos(theta), np.sin(theta)
        push = (force + _POLE_MOMENT * np.square(theta_dot) * sin) / _TOTAL_MASS
        resistance = _HALF_LENGTH * (4.0 / 3.0 - _POLE_MASS * np.square(cos) / _TOTAL_MASS)
        theta_acceleration = (_GRAVITY * sin - cos * push) / resistance
        x_acceleration = push - _POLE_MOMENT * theta_acceleration * cos / _TOTAL_MASS
        state = self._state + _TAU * np.array((x_dot, x_acceleration, theta_dot, theta_acceleration))
        self._state = state if playing is None else np.where(playing, state, self._state)
        terminated = (np.abs(state[0]) > _MAX_POSITION) | (np.abs(state[2]) > _MAX_ANGLE)
        return -terminated.astype(np.float64) if self._sutton_barto_reward else np.ones(self.n), terminated

    def observe(self) -> NDArray[np.float32]:
        return self._state.T.astype(np.float32, order="C")

    def render(self, index: int) -> NDArray[np.uint8]:
        self._stock.state = self._state[:, index].copy()
        return render_frame(self._stock)
