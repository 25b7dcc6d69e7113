"""Principal that tries a coarse scan of the box and then commits to its best vector."""

from __future__ import annotations

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import Arms


class ScanPrincipal(BanditPrincipal):
    """Explore-then-commit principal (Lattimore & Szepesvári, Bandit Algorithms, 2020, chapter 6).

    It tries the vectors of the coarse scan, then proposes the one with the highest mean objective. Each context has its
    own scan. After the scan, all candidates of a step are the vector with the highest mean, which changes if its mean
    falls below another's.

    Args:
        space: parameter space of the proposals; its `coarse_scan` is tried in order.
        seeds: seed tree; unused, since choices are deterministic.
        repeats: number of trials of each vector before the best is chosen.
    """

    def __init__(self, space: ParameterSpace, seeds: Seeds, repeats: PositiveInt = 1) -> None:
        super().__init__(space, seeds, Arms(space.coarse_scan))
        self.repeats = repeats

    def _select(self, row: int, pending: np.ndarray) -> int:
        plays, has_mean = self.counts[row] + pending, self.counts[row] > 0
        # A first step may have more candidates than the scan has vectors, and no payoff to choose by.
        if (plays < self.repeats).any() or not has_mean.any():
            return int(plays.argmin())
        return int(np.where(has_mean, self.means[row], -np.inf).argmax())
