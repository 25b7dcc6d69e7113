"""UCB1 over a grid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import COARSE, fitting_arms


@dataclass(frozen=True)
class UCBSettings:
    """Options of `UCBPrincipal`; meanings, units and ranges are in `conf/principal/_grid.yaml`.

    Attributes:
        scale: size of payoff differences; None: the range of the payoffs seen so far in the context, so that
            `coefficient` means the same in every environment. The published principal uses 1.
        points: values per number of a grid of arms; None: the arms that fit the number of proposals (`fitting_arms`).
    """

    coefficient: NonNegativeFloat
    scale: PositiveFloat | None
    points: PositiveInt | None
    arm_order: Literal["shuffled", "ascending"]
    shared_counter: bool


class UCBPrincipal(BanditPrincipal):
    """UCB1: every arm once, then the arm with the highest index `mean + coefficient * scale * sqrt(ln t / plays)`.

    Auer, Cesa-Bianchi & Fischer, Finite-time Analysis of the Multiarmed Bandit Problem (2002), figure 1, where payoffs
    lie in [0, 1], `coefficient` is sqrt(2) and `scale` 1. While there are unplayed arms this is a random search without
    repetition; with 1331 of them that may be the whole run.

    The candidates of a step are chosen one after the other: pending plays count as plays in t and in the denominator,
    and do not change the mean, so an arm is chosen again if its index stays the highest (Desautels, Krause & Burdick,
    Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit Optimization, 2014, section 4, where
    pending points reduce the posterior variance only).

    Args:
        settings: options.
        space: parameter space of the proposals.
        seeds: seed tree.
        proposals: number of the run's proposals in all contexts together; None: unknown.
    """

    _state_fields = (*BanditPrincipal._state_fields, "lowest", "highest")

    def __init__(
        self, settings: UCBSettings, space: ParameterSpace, seeds: Seeds, proposals: int | None = None
    ) -> None:
        super().__init__(space, seeds, fitting_arms(space, settings.points, COARSE, proposals))
        self.settings = settings
        rows, arms = self.counts.shape
        # Drawn from a separate stream, so it is the same after a resume without being saved.
        order = seeds.numpy("arm_order")
        self.order = np.stack(
            [order.permutation(arms) if settings.arm_order == "shuffled" else np.arange(arms) for _ in range(rows)]
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
        has_plays = self.counts[row] > 0
        plays = self.counts[row] if pending is None else self.counts[row] + pending
        total = plays.sum() + (self.counts.sum() - self.counts[row].sum() if self.settings.shared_counter else 0)
        scale = self.settings.scale
        if scale is None:
            scale = self.highest[row] - self.lowest[row] if has_plays.any() else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = self.settings.coefficient * scale * np.sqrt(np.log(total) / plays)
        return np.where(has_plays, self.means[row] + bonus, np.where(plays > 0, -np.inf, np.inf))

    def _select(self, row: int, pending: np.ndarray) -> int:
        plays, order = (self.counts[row] + pending)[self.order[row]], self.order[row]
        # Unplayed arms first; while no arm has a payoff, the arm with the fewest pending plays.
        if (plays == 0).any() or not self.counts[row].any():
            return int(order[plays.argmin()])
        return self._argmax(self.index(row, pending))

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        self.lowest[row] = min(self.lowest[row], payoff)
        self.highest[row] = max(self.highest[row], payoff)
