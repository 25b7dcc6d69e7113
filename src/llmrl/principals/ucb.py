"""UCB1 over a grid."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import COARSE, fitting_grid


class UCBPrincipal(BanditPrincipal):
    """Every arm once, then the arm with the highest index `mean + coefficient * scale * sqrt(ln t / plays)`.

    Auer, Cesa-Bianchi & Fischer, Finite-time Analysis of the Multiarmed Bandit Problem (2002), figure 1, where payoffs
    lie in [0, 1], `coefficient` is sqrt(2) and `scale` 1. While there are unplayed arms this is a random search
    without repetition; with 1331 of them that may be the whole run.

    Args:
        space, seeds: what is proposed, and the source of randomness.
        coefficient: weight of the exploration bonus.
        scale: size of payoff differences, in units of the payoff; None is the range of the payoffs seen so far in the
            context, so that `coefficient` means the same in every environment. The published principal uses 1.
        points: values a number; None: as many as let each arm be played twice, at most the published
            11 for three numbers, 3 for five (1331 and 243 arms).
        arm_order: how unplayed arms are gone through: `shuffled` (an order of its own in each context), or `ascending`
            as in the published code.
        shared_counter: count t over all contexts, as published, instead of in each.
        proposals: that the run makes in all its contexts together; None: nobody knows.
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
        super().__init__(space, seeds, fitting_grid(space, points, COARSE, proposals))
        self.coefficient, self.scale, self.shared_counter = coefficient, scale, shared_counter
        rows, arms = self.counts.shape
        # Drawn from a stream of its own: the same after a resume without being saved.
        order = seeds.numpy("arm_order")
        self.order = np.stack(
            [order.permutation(arms) if arm_order == "shuffled" else np.arange(arms) for _ in range(rows)]
        )
        self.lowest = np.full(rows, np.inf)
        self.highest = np.full(rows, -np.inf)

    def index(self, row: int) -> np.ndarray:
        """The upper confidence bound of every arm in a context, [arms]; infinite for unplayed arms."""
        plays = self.counts.sum() if self.shared_counter else self.counts[row].sum()
        scale = self.scale
        if scale is None:
            scale = self.highest[row] - self.lowest[row] if plays else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = self.coefficient * scale * np.sqrt(np.log(plays) / self.counts[row])
        return np.where(self.counts[row] > 0, self.means[row] + bonus, np.inf)

    def _select(self, row: int, pending: np.ndarray) -> int:
        unplayed = ((self.counts[row] == 0) & ~pending)[self.order[row]]
        if unplayed.any():
            return int(self.order[row, unplayed.argmax()])
        return self._argmax(np.where(pending, -np.inf, self.index(row)))

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        self.lowest[row] = min(self.lowest[row], payoff)
        self.highest[row] = max(self.highest[row], payoff)

    def state_dict(self) -> State:
        return {**super().state_dict(), "lowest": self.lowest.copy(), "highest": self.highest.copy()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.lowest = np.array(state["lowest"])
        self.highest = np.array(state["highest"])
