"""A coarse scan of the box, then the best vector of it."""

from __future__ import annotations

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import ListedArms


class ScanPrincipal(BanditPrincipal):
    """Tries the vectors of the coarse scan, then proposes the one with the highest mean objective: explore, then commit
    (Lattimore & Szepesvári, Bandit Algorithms, 2020, chapter 6).

    Each context has a scan of its own. After the scan, all candidates of a step are the vector with the highest mean,
    which changes if its mean falls below another's.

    Args:
        space: what is proposed; its `coarse_scan` is tried, in that order.
        seeds: of the choices, of which none is left to chance here.
        repeats: times each vector is tried before the best is chosen.
    """

    def __init__(self, space: ParameterSpace, seeds: Seeds, repeats: PositiveInt = 1) -> None:
        super().__init__(space, seeds, ListedArms(space.coarse_scan))
        self.repeats = repeats

    def _select(self, row: int, pending: np.ndarray) -> int:
        tried, measured = self.counts[row] + pending, self.counts[row] > 0
        # A first step may have more candidates than the scan has vectors, and no payoff to choose by.
        if (tried < self.repeats).any() or not measured.any():
            return int(tried.argmin())
        return int(np.where(measured, self.means[row], -np.inf).argmax())
