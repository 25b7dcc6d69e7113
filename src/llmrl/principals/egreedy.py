"""Epsilon-greedy bandit over a grid of vectors."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import FINE, fitting_arms


class EpsilonGreedyPrincipal(BanditPrincipal):
    """Epsilon-greedy principal: a random arm with probability `epsilon`, else the arm with the best mean payoff.

    Means are sample averages per context (Sutton & Barto, Reinforcement Learning, 2nd ed., section 2.4). The candidates
    of a step are independent draws.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; choices are drawn from its stream `principal`.
        epsilon: probability of a uniformly random arm.
        points: values per number of a grid of arms; None: the arms that fit `proposals` (`fitting_arms`), at most the
            published 21 for three numbers, 6 for five (9261 and 7776 arms).
        initial_value: assumed payoff of an unplayed arm. None: the greedy choice is among played arms only.
            A value above all payoffs makes the principal try every arm first; one below, stay with the first good arm.
            The published principal uses 0, which is one or the other depending on the sign of the payoffs.
        ties: choice among equally good arms: a `random` one, or the `first` as published.
        proposals: number of the run's proposals in all contexts together; None: unknown.
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
        super().__init__(space, seeds, fitting_arms(space, points, FINE, proposals))
        self.epsilon, self.initial_value, self.ties = epsilon, initial_value, ties

    def _select(self, row: int, pending: np.ndarray) -> int:
        explores = self.rng.random() < self.epsilon
        unplayed = -np.inf if self.initial_value is None else self.initial_value
        values = np.where(self.counts[row] > 0, self.means[row], unplayed)
        if explores or np.isneginf(values).all():
            return int(self.rng.integers(self.n_arms))
        return int(values.argmax()) if self.ties == "first" else self._argmax(values)
