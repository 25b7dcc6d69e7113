"""Rules of games of few states as arrays, and what can be computed from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import choices
from llmrl.envs.gym.batched.generators import generators

Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, whether the game is over."""
Rules = Mapping[int, Mapping[int, Sequence[Outcome]]]
"""State -> action -> outcomes: what Gymnasium's toy-text environments call `P`."""

_LOOK = 8
"""Steps between two looks whether all episodes are over."""
_EQUAL = 1e-9
"""Values that differ by less are those of equally good actions."""


@dataclass(frozen=True)
class Table:
    """What an action in a state leads to, for each class of the number that is drawn.

    Gymnasium draws a number on [0, 1) and takes the first outcome whose probability, summed up with those before it,
    exceeds it (the very first if rounding leaves none). So all that matters of a number is which of those sums, of any
    state and action, it reaches: they divide [0, 1) into c classes.

    Attributes:
        n_states: states, 0 to n_states - 1.
        n_actions: actions, 0 to n_actions - 1.
        sums: where classes meet, [c - 1], ascending.
        state: the next state, [n_states * n_actions, c].
        reward: [n_states * n_actions, c].
        terminated: [n_states * n_actions, c].
        start: sums of the probabilities to start in each state and those before it, [n_states].
    """

    n_states: int
    n_actions: int
    sums: NDArray[np.float64]
    state: NDArray[np.int64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    start: NDArray[np.float64]

    @classmethod
    def of(cls, rules: Rules, start: NDArray[np.float64]) -> Table:
        """The arrays of `rules`, in games that start in state i with probability `start[i]`."""
        n_states, n_actions = len(rules), len(rules[0])
        rows = [rules[s][a] for s in range(n_states) for a in range(n_actions)]
        reached = [np.cumsum([outcome[0] for outcome in row]) for row in rows]
        sums = np.unique(np.concatenate(reached))
        # A sum of 1 or more is never reached.
        sums = sums[sums < 1]
        lowest = np.append(0.0, sums)
        drawn = [(limits[:, None] > lowest).argmax(axis=0).tolist() for limits in reached]
        picked = [[row[i] for i in which] for row, which in zip(rows, drawn, strict=True)]
        return cls(
            n_states,
            n_actions,
            sums,
            np.array([[outcome[1] for outcome in row] for row in picked], dtype=np.int64),
            np.array([[outcome[2] for outcome in row] for row in picked], dtype=np.float64),
            np.array([[outcome[3] for outcome in row] for row in picked], dtype=bool),
            np.cumsum(start),
        )

    @property
    def chance(self) -> NDArray[np.float64]:
        """Probability of each class, [c]."""
        return np.diff(self.sums, prepend=0.0, append=1.0)

    def expected_return(self, policy: NDArray[np.int64], horizon: int) -> float:
        """Expected return of an episode of at most `horizon` steps in which action `policy[i]` is taken in state i."""
        rows = np.arange(self.n_states) * self.n_actions + policy
        value = np.zeros(self.n_states)
        for _ in range(horizon):
            value = self._ahead(value)[rows]
        return float(np.diff(self.start, prepend=0.0) @ value)

    def best_policy(self, sweeps: int = 10_000, discount: float = 1 - 1e-6) -> NDArray[np.int64]:
        """The action of highest expected return in each state, [n_states], without a horizon: value iteration.

        Of equally good actions, the first. It ends after `sweeps`, or when no value changes by more than 1e-12. With
        `discount` 1 waiting for ever would be as good as going where a reward is.
        """
        value = np.zeros(self.n_states)
        for _ in range(sweeps):
            ahead = self._ahead(discount * value).reshape(self.n_states, self.n_actions)
            best = ahead.max(axis=1)
            done = bool(np.abs(best - value).max() < 1e-12)
            value = best
            if done:
                break
        first: NDArray[np.int64] = (ahead >= best[:, None] - _EQUAL).argmax(axis=1)
        return first

    def _ahead(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Expected reward and then value of each action in each state, [n_states * n_actions]."""
        following = np.where(self.terminated, 0.0, value[self.state])
        return (self.reward + following) @ self.chance


@dataclass(frozen=True)
class Episodes:
    """What became of whole episodes, all [n]: return, steps, highest reward of a step, whether it ended by itself."""

    returned: NDArray[np.float64]
    length: NDArray[np.int64]
    best_reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]


def play(table: Table, policies: NDArray[np.int64], seeds: NDArray[np.int64], horizon: int) -> Episodes:
    """Episodes of q policies [q, n_states] under k seeds each, [q * k], equal to playing them step by step.

    A policy of few states is known when its action in each is: so nobody needs to be asked in between, and a step is
    two look-ups.

    Args:
        table: the game.
        policies: the action that each takes in each state.
        seeds: what `env.reset` would be given, [k].
        horizon: steps after which an episode is truncated.

    Raises:
        ValueError: a policy takes an action that there is not.
    """
    q, n_states, c = len(policies), table.n_states, len(table.sums) + 1
    numbers = 1 + horizon * (c > 1)
    draws = np.array([source.random(numbers) for source in generators(seeds)])
    rows = np.arange(n_states) * table.n_actions + choices(policies, table.n_actions)
    # States are numbered c apart, so that a class is added and there is the outcome. Each policy has states of its own;
    # behind them all is one that an episode which is over never leaves.
    own, over = np.arange(q) * n_states * c, q * n_states * c
    following = np.where(table.terminated[rows], over, table.state[rows] * c + own[:, None, None])
    following = np.append(following, np.full(c, over))
    reward = np.append(table.reward[rows], np.zeros(c))
    state = (own[:, None] + (table.start > draws[:, :1]).argmax(axis=1) * c).ravel()
    if c > 1:
        drawn = np.tile(table.sums.searchsorted(draws[:, 1:], side="right").T, q)
    else:
        drawn = np.zeros((horizon, len(state)), dtype=np.int64)
    path = np.empty_like(drawn)
    for first in range(0, horizon, _LOOK):
        for taken, number in zip(path[first : first + _LOOK], drawn[first : first + _LOOK], strict=True):
            np.add(state, number, taken)
            state = following.take(taken)
        if np.count_nonzero(state == over) == len(state):
            path = path[: first + _LOOK]
            break
    rewards, played = reward.take(path), path < over
    return Episodes(
        # Added up step by step: any other order would round otherwise.
        np.cumsum(rewards, axis=0)[-1],
        np.count_nonzero(played, axis=0),
        np.where(played, rewards, -np.inf).max(axis=0),
        state == over,
    )
