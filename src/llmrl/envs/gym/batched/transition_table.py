"""Transition tables of games with few states as arrays, with their expected returns and best policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Outcome = tuple[float, int, float, bool]
"""Probability, next state, reward, and whether the episode terminates."""
Rules = Mapping[int, Mapping[int, Sequence[Outcome]]]
"""State -> action -> outcomes, the attribute `P` of Gymnasium's toy-text environments."""

_TOLERANCE = 1e-9
"""Maximum difference between the values of equally good actions."""


@dataclass(frozen=True)
class TransitionTable:
    """The outcome of each action in each state, for each class of the random number that is drawn.

    Gymnasium draws a number on [0, 1) and takes the first outcome whose cumulative probability exceeds it (the very
    first outcome if rounding leaves none). The cumulative probabilities of all states and actions divide [0, 1) into c
    classes. Numbers of one class have the same outcome.

    Attributes:
        n_states: number of states, 0 to n_states - 1.
        n_actions: number of actions, 0 to n_actions - 1.
        sums: boundaries between classes, [c - 1], ascending.
        state: next state, [n_states * n_actions, c].
        reward: reward, [n_states * n_actions, c].
        terminated: whether the episode terminates, [n_states * n_actions, c].
        start: cumulative probabilities of the start states, [n_states].
    """

    n_states: int
    n_actions: int
    sums: NDArray[np.float64]
    state: NDArray[np.int64]
    reward: NDArray[np.float64]
    terminated: NDArray[np.bool_]
    start: NDArray[np.float64]

    @classmethod
    def of(cls, rules: Rules, start: NDArray[np.float64]) -> TransitionTable:
        """Return the table of `rules`, for games that start in state i with probability `start[i]`."""
        n_states, n_actions = len(rules), len(rules[0])
        rows = [rules[state][action] for state in range(n_states) for action in range(n_actions)]
        cumulative = [np.cumsum([outcome[0] for outcome in row]) for row in rows]
        sums = np.unique(np.concatenate(cumulative))
        # Random numbers are below 1, so larger sums bound no class.
        sums = sums[sums < 1]
        lowest = np.append(0.0, sums)
        indices = [(limits[:, None] > lowest).argmax(axis=0).tolist() for limits in cumulative]
        outcomes = [[row[i] for i in outcome_indices] for row, outcome_indices in zip(rows, indices, strict=True)]
        return cls(
            n_states,
            n_actions,
            sums,
            np.array([[outcome[1] for outcome in row] for row in outcomes], dtype=np.int64),
            np.array([[outcome[2] for outcome in row] for row in outcomes], dtype=np.float64),
            np.array([[outcome[3] for outcome in row] for row in outcomes], dtype=bool),
            np.cumsum(start),
        )

    @property
    def chance(self) -> NDArray[np.float64]:
        """Probability of each class, [c]."""
        return np.diff(self.sums, prepend=0.0, append=1.0)

    def expected_return(self, policy: NDArray[np.int64], horizon: int) -> float:
        """Return the expected return of an episode of at most `horizon` steps, with action `policy[i]` in state i."""
        rows = np.arange(self.n_states) * self.n_actions + policy
        value = np.zeros(self.n_states)
        for _ in range(horizon):
            value = self._action_values(value)[rows]
        return float(np.diff(self.start, prepend=0.0) @ value)

    def best_policy(self, sweeps: int = 10_000, discount: float = 1 - 1e-6) -> NDArray[np.int64]:
        """Return the action of highest expected return in each state, [n_states], without a horizon.

        Value iteration, which ends after `sweeps`, or when no value changes by 1e-12 or more. Of equally good actions,
        the first is returned. With `discount` 1, waiting for ever would be as good as going to a reward.
        """
        value = np.zeros(self.n_states)
        for _ in range(sweeps):
            action_values = self._action_values(discount * value).reshape(self.n_states, self.n_actions)
            best = action_values.max(axis=1)
            done = bool(np.abs(best - value).max() < 1e-12)
            value = best
            if done:
                break
        policy: NDArray[np.int64] = (action_values >= best[:, None] - _TOLERANCE).argmax(axis=1)
        return policy

    def _action_values(self, value: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the expected reward plus next value of each action in each state, [n_states * n_actions]."""
        following = np.where(self.terminated, 0.0, value[self.state])
        return (self.reward + following) @ self.chance
