"""A space's vectors as the arms of a bandit."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ParameterSpace

FINE = {3: 21, 5: 6}
"""Points a number by dimension in the published epsilon-greedy principal: 9261 and 7776 arms."""
COARSE = {3: 11, 5: 3}
"""Points a number by dimension in the published UCB and Thompson principals: 1331 and 243 arms."""

MOST_ARMS = 4_000_000
"""Largest grid that is accepted: its tables of counts and means take 64 MB a context."""


class ActionGrid:
    """Arms 0 .. points^d - 1 of an evenly spaced grid over the box of a space, both bounds included.

    An arm's digits in base `points` are its coordinates, the first the most significant: arm 1 differs from arm 0 in
    the last coordinate. The grid itself is never held in memory.

    Raises:
        ConfigError: fewer than 2 points, or more arms than a table can hold.
    """

    def __init__(self, space: ParameterSpace, points: int) -> None:
        self.space, self.points = space, points
        self.shape = (points,) * space.dim
        self.n_arms = points**space.dim
        if points < 2:
            raise ConfigError(f"principal.points must be at least 2 (both bounds), got {points}")
        if self.n_arms > MOST_ARMS:
            raise ConfigError(
                f"principal.points={points} gives {self.n_arms:,} arms for the {space.dim} numbers of "
                f"{space.name}; at most {MOST_ARMS:,} fit a table: set principal.points to "
                f"{largest_points(space.dim, MOST_ARMS)} or less, or choose a principal without a grid (llm)"
            )

    def vector(self, arm: int) -> np.ndarray:
        """The values of an arm, [d]."""
        digits = np.array(np.unravel_index(arm, self.shape), dtype=np.float64)
        low, high = self.space.low, self.space.high
        # Weighted so that the last point is the upper bound itself, not a rounding error beside it.
        weight = digits / (self.points - 1)
        return low * (1.0 - weight) + high * weight

    def arm(self, vector: np.ndarray) -> int:
        """The arm at `vector`.

        Raises:
            ValueError: `vector` is not a point of the grid.
        """
        low, high = self.space.low, self.space.high
        exact = (np.asarray(vector, dtype=np.float64) - low) / (high - low) * (self.points - 1)
        digits = np.rint(exact)
        if np.any(np.abs(exact - digits) > 1e-6) or np.any((digits < 0) | (digits >= self.points)):
            raise ValueError(f"{np.asarray(vector).tolist()} is not on the grid of {self.points} points a number")
        return int(np.ravel_multi_index(tuple(digits.astype(np.int64)), self.shape))


def default_points(space: ParameterSpace, published: Mapping[int, int]) -> int:
    """The published number of points for the space's dimension.

    For a dimension that was not published: as many as give no more arms than the largest published grid, at most 101.
    """
    if space.dim in published:
        return published[space.dim]
    arms = max(points**dim for dim, points in published.items())
    return max(2, min(101, largest_points(space.dim, arms)))


def largest_points(dim: int, arms: int) -> int:
    """The largest n with n^dim <= arms."""
    n = int(arms ** (1.0 / dim)) + 1
    while n**dim > arms:
        n -= 1
    return n
