"""CartPole as arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices, picture

if TYPE_CHECKING:
    from gymnasium.envs.classic_control.cartpole import CartPoleEnv

_POLE, _HALF_LENGTH, _TOTAL = 0.1, 0.5, 0.1 + 1.0
_MOMENT = _POLE * _HALF_LENGTH
_GRAVITY, _TAU, _FORCE = 9.8, 0.02, 10.0
_OUTSIDE, _FALLEN = 2.4, 12 * 2 * math.pi / 360


class CartPoleGames(ArrayGames):
    """Gymnasium's CartPole-v1, equal to it bit for bit: Barto, Sutton and Anderson (1983) in Euler steps of 0.02 s.

    Args:
        n: games.
        horizon: steps after which a game is truncated; None: never.
        sutton_barto_reward: -1 when the pole falls and 0 else, instead of 1 for each step.
    """

    def __init__(self, n: int, horizon: int | None = None, sutton_barto_reward: bool = False) -> None:
        from gymnasium.envs.classic_control.cartpole import CartPoleEnv

        self._stock: CartPoleEnv = CartPoleEnv(sutton_barto_reward=sutton_barto_reward, render_mode="rgb_array")
        super().__init__(n, self._stock.observation_space, self._stock.action_space, horizon)
        self._fall_costs = sutton_barto_reward
        # Place of the cart and angle of the pole, how fast each changes, and how fast that does.
        self._all = np.zeros((6, n))
        self._state = self._all[:4]
        self._work = _Work(self._all)

    def begin(self, chosen: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        for game, source in zip(chosen.tolist(), sources, strict=True):
            self._state[[0, 2, 1, 3], game] = source.uniform(low=-0.05, high=0.05, size=(4,))

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        before = None if playing is None else self._state.copy()
        terminated = self._work.step(choices(actions, 2))
        if before is not None:
            np.copyto(self._state, before, where=~playing)  # type: ignore[operator]
        return -terminated.astype(np.float64) if self._fall_costs else self._work.ones, terminated

    def observe(self) -> NDArray[np.float32]:
        return self._work.seen.astype(np.float32, order="C").reshape(self.n, 4)

    def render(self, index: int) -> NDArray[np.uint8]:
        x, angle, x_speed, angle_speed = self._state[:, index]
        self._stock.state = np.array((x, x_speed, angle, angle_speed))
        return picture(self._stock)


class _Work:
    """One step of the equations, in Gymnasium's operations and their order: any other would round otherwise.

    A call of NumPy costs more than its arithmetic on some dozens of games. So nothing is allocated, constants are
    arrays of the same shape, and what is done to two rows alike is done in one call.

    Args:
        rows: [6, n], see `CartPoleGames`.
    """

    def __init__(self, rows: NDArray[np.float64]) -> None:
        n = rows.shape[1]
        self.state, self.rates = rows[:4], rows[2:]
        _, self.angle, _, self.turning, self.pull, self.turn = rows
        self.place = rows[:2]
        # (place, speed) of the cart and then of the pole, for each game: the order of an observation.
        self.seen = rows[:4].reshape(2, 2, n).transpose(2, 1, 0)
        self.ones = np.ones(n)
        self.ones.flags.writeable = False
        self.forces = np.array([-_FORCE, _FORCE])
        self.waves = np.empty((2, n))
        self.sin, self.cos = self.waves
        self.three = np.empty((3, n))
        self.three[0] = _GRAVITY
        self.pulls, self.pair = self.three[:2], self.three[1:]
        _, self.push, self.drag = self.three
        self.moment_pole = np.repeat([[_MOMENT], [_POLE]], n, axis=1)
        self.totals, self.total, self.moment = np.full((2, n), _TOTAL), np.full(n, _TOTAL), np.full(n, _MOMENT)
        self.four_thirds, self.length, self.tau = np.full(n, 4.0 / 3.0), np.full(n, _HALF_LENGTH), np.full((4, n), _TAU)
        self.products = np.empty((2, n))
        self.a, self.b = self.products
        self.moved, self.distance = np.empty((4, n)), np.empty((2, n))
        self.limit, self.beyond = np.repeat([[_OUTSIDE], [_FALLEN]], n, axis=1), np.empty((2, n), dtype=bool)
        self.outside, self.fallen = self.beyond

    def step(self, action: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Push by `action` [n]; which games are over then, [n]."""
        mul, add, sub, div = np.multiply, np.add, np.subtract, np.divide
        sin, cos, push, pair, a, b = self.sin, self.cos, self.push, self.pair, self.a, self.b
        np.sin(self.angle, sin)
        np.cos(self.angle, cos)
        mul(self.turning, self.turning, push)
        mul(cos, cos, self.drag)
        mul(pair, self.moment_pole, pair)
        mul(push, sin, push)
        add(push, self.forces.take(action), push)
        div(pair, self.totals, pair)
        mul(self.waves, self.pulls, self.products)
        sub(a, b, a)
        sub(self.four_thirds, self.drag, b)
        mul(b, self.length, b)
        div(a, b, self.turn)
        mul(self.turn, self.moment, a)
        mul(a, cos, a)
        div(a, self.total, a)
        sub(push, a, self.pull)
        mul(self.rates, self.tau, self.moved)
        add(self.state, self.moved, self.state)
        np.abs(self.place, self.distance)
        np.greater(self.distance, self.limit, self.beyond)
        return self.outside | self.fallen
