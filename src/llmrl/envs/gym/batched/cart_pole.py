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
        # Cart position and pole angle, their velocities, and their accelerations.
        self._all = np.zeros((6, n))
        self._state = self._all[:4]
        self._work = _Work(self._all)

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        for game, source in zip(indices.tolist(), sources, strict=True):
            self._state[[0, 2, 1, 3], game] = source.uniform(low=-0.05, high=0.05, size=(4,))

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        previous = None if playing is None else self._state.copy()
        terminated = self._work.step(choices(actions, 2))
        if previous is not None:
            np.copyto(self._state, previous, where=~playing)  # type: ignore[operator]
        return -terminated.astype(np.float64) if self._sutton_barto_reward else self._work.ones, terminated

    def observe(self) -> NDArray[np.float32]:
        return self._work.observation.astype(np.float32, order="C").reshape(self.n, 4)

    def render(self, index: int) -> NDArray[np.uint8]:
        x, angle, x_speed, angle_speed = self._state[:, index]
        self._stock.state = np.array((x, x_speed, angle, angle_speed))
        return render_frame(self._stock)


class _Work:
    """One step of the equations, with Gymnasium's operations in the same order, so that rounding is equal.

    A call of NumPy costs more than its arithmetic on some dozens of games. So nothing is allocated, constants are
    arrays of the same shape, and equal operations on two rows are one call.

    Args:
        rows: [6, n], see `CartPoleGames`.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        n = rows.shape[1]
        self.state, self.rates = rows[:4], rows[2:]
        _, self.angle, _, self.turning, self.pull, self.turn = rows
        self.place = rows[:2]
        # (position, velocity) of the cart and then of the pole, for each game: the order of an observation.
        self.observation = rows[:4].reshape(2, 2, n).transpose(2, 1, 0)
        self.ones = np.ones(n)
        self.ones.flags.writeable = False
        self.forces = np.array([-_FORCE, _FORCE])
        self.waves = np.empty((2, n))
        self.sin, self.cos = self.waves
        self.three = np.empty((3, n))
        self.three[0] = _GRAVITY
        self.pulls, self.pair = self.three[:2], self.three[1:]
        _, self.push, self.drag = self.three
        self.moment_pole = np.repeat([[_POLE_MOMENT], [_POLE_MASS]], n, axis=1)
        self.totals, self.total, self.moment = (
            np.full((2, n), _TOTAL_MASS),
            np.full(n, _TOTAL_MASS),
            np.full(n, _POLE_MOMENT),
        )
        self.four_thirds, self.length, self.tau = np.full(n, 4.0 / 3.0), np.full(n, _HALF_LENGTH), np.full((4, n), _TAU)
        self.products = np.empty((2, n))
        self.term, self.product = self.products
        self.increment, self.distance = np.empty((4, n)), np.empty((2, n))
        self.limit, self.out_of_bounds = (
            np.repeat([[_MAX_POSITION], [_MAX_ANGLE]], n, axis=1),
            np.empty((2, n), dtype=bool),
        )
        self.cart_outside, self.pole_fallen = self.out_of_bounds

    def step(self, action: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Apply the forces of `action` [n]; return whether each episode is over, [n]."""
        mul, add, sub, div = np.multiply, np.add, np.subtract, np.divide
        sin, cos, push, pair, term, product = self.sin, self.cos, self.push, self.pair, self.term, self.product
        np.sin(self.angle, sin)
        np.cos(self.angle, cos)
        mul(self.turning, self.turning, push)
        mul(cos, cos, self.drag)
        mul(pair, self.moment_pole, pair)
        mul(push, sin, push)
        add(push, self.forces.take(action), push)
        div(pair, self.totals, pair)
        mul(self.waves, self.pulls, self.products)
        sub(term, product, term)
        sub(self.four_thirds, self.drag, product)
        mul(product, self.length, product)
        div(term, product, self.turn)
        mul(self.turn, self.moment, term)
        mul(term, cos, term)
        div(term, self.total, term)
        sub(push, term, self.pull)
        mul(self.rates, self.tau, self.increment)
        add(self.state, self.increment, self.state)
        np.abs(self.place, self.distance)
        np.greater(self.distance, self.limit, self.out_of_bounds)
        return self.cart_outside | self.pole_fallen
