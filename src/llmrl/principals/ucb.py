"""UCB1 over a grid."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import COARSE, fitting_arms


class UCBPrincipal(BanditPrincipal):
    """UCB1: every arm once, then the arm with the highest index `mean + coefficient * scale * sqrt(ln t / plays)`.

    Auer, Cesa-Bianchi & Fischer, Finite-time Analysis of the Multiarmed Bandit Problem (2002), figure 1, where payoffs
    lie in [0, 1], `coefficient` is sqrt(2) and `scale` 1. While there are unplayed arms this is a random search
    without repetition; with 1331 of them that may be the whole run.

    The candidates of a step are chosen one after the other: pending plays count as plays in t and in the denominator,
    and leave the mean as it is, so an arm is chosen again if its index stays the highest (Desautels, Krause & Burdick,
    Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit Optimization, 2014, section 4, where
    pending points reduce the posterior variance only).

    Args:
        space, seeds: what is proposed, and the source of randomness.
        coefficient: weight of the exploration bonus.
        scale: size of payoff differences, in units of the payoff; None is the range of the payoffs seen so far in the
            context, so that `coefficient` means the same in every environment. The published principal uses 1.
        points: values per number of a grid of arms; None: the arms that fit `proposals` (`fitting_arms`), at most the
            published 11 for three numbers, 3 for five (1331 and 243 arms).
        arm_order: how unplayed arms are gone through: `shuffled` (an order of its own in each context), or `ascending`
            as in the published code.
        shared_counter: count t over all contexts, as published, instead of in each.
        proposals: number of the run's proposals in all contexts together; None: unknown.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        coefficient: NonNegativeFloat = 0.2,
        scale: PositiveFloat | None = None,
        points: PositiveInt | None = None,
        arm_order: Literal["shuffled", "ascending"] = "shuffled",
        shared_counter: bool = False,
        proposals: int | None = None,
    ) -> None:
        super().__init__(space, seeds, fitting_arms(space, points, COARSE, proposals))
        self.coefficient, self.scale, self.shared_counter = coefficient, scale, shared_counter
        rows, arms = self.counts.shape
        # Drawn from a stream of its own: the same after a resume without being saved.
        order = seeds.numpy("arm_order")
        self.order = np.stack(
            [order.permutation(arms) if arm_order == "shuffled" else np.arange(arms) for _ in range(rows)]
        )
        self.lowest = np.full(rows, np.inf)
        self.highest = np.full(rows, -np.inf)

    def index(self, row: int, pending: np.ndarray | None = None) -> np.ndarray:
        """Return the upper confidence bound of every arm in a context, [arms].

        Args:
            row: index of the context.
            pending: number of plays of each arm whose payoffs are not known yet, [arms] int64; None: there are none.

        The index of an arm without plays is infinite, of one with pending plays only minus infinity, because it has no
        mean yet.
        """
        played = self.counts[row] > 0
        plays = self.counts[row] if pending is None else self.counts[row] + pending
        total = plays.sum() + (self.counts.sum() - self.counts[row].sum() if self.shared_counter else 0)
        scale = self.scale
        if scale is None:
            scale = self.highest[row] - self.lowest[row] if played.any() else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = self.coefficient * scale * np.sqrt(np.log(total) / plays)
        return np.where(played, self.means[row] + bonus, np.where(plays > 0, -np.inf, np.inf))

    def _select(self, row: int, pending: np.ndarray) -> int:
        plays, order = (self.counts[row] + pending)[self.order[row]], self.order[row]
        # Unplayed arms first; while no arm has a payoff, the arm with the fewest pending plays.
        if (plays == 0).any() or not self.counts[row].any():
            return int(order[plays.argmin()])
        return self._argmax(self.index(row, pending))

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        self.lowest[row] = min(self.lowest[row], payoff)
        self.highest[row] = max(self.highest[row], payoff)

    def state_dict(self) -> State:
        return {**super().state_dict(), "lowest": self.lowest.copy(), "highest": self.highest.copy()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.lowest = np.array(state["lowest"])
        self.highest = np.array(state["highest"])
