"""Epsilon-greedy over a grid."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import FINE, fitting_grid


class EpsilonGreedyPrincipal(BanditPrincipal):
    """With probability `epsilon` a uniformly random arm, else the one with the highest mean payoff in the context.

    Sutton & Barto, Reinforcement Learning (2nd ed.), section 2.4, with sample averages.

    Args:
        space, seeds: what is proposed, and the source of randomness.
        epsilon: chance of a random arm.
        points: values a number; None: as many as let each arm be played twice, at most the published
            21 for three numbers, 6 for five (9261 and 7776 arms).
        initial_value: payoff an unplayed arm is taken to have. None: the greedy choice is among played arms only.
            A value above what can be earned makes it try every arm first; one below, stay with the first good arm.
            The published principal uses 0, which is one or the other depending on the sign of the payoffs.
        ties: among equally good arms a random one, or the `first` as published.
        proposals: that the run makes in all its contexts together; None: nobody knows.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        epsilon: UnitInterval = 0.1,
        points: PositiveInt | None = None,
        initial_value: float | None = None,
        ties: Literal["random", "first"] = "random",
        proposals: int | None = None,
    ) -> None:
        super().__init__(space, seeds, fitting_grid(space, points, FINE, proposals))
        self.epsilon, self.initial_value, self.ties = epsilon, initial_value, ties

    def _select(self, row: int, pending: np.ndarray) -> int:
        if self.rng.random() < self.epsilon:
            return self._any(~pending)
        unplayed = -np.inf if self.initial_value is None else self.initial_value
        values = np.where(self.counts[row] > 0, self.means[row], unplayed)
        values[pending] = -np.inf
        if np.isneginf(values).all():
            return self._any(~pending)
        return int(values.argmax()) if self.ties == "first" else self._argmax(values)
