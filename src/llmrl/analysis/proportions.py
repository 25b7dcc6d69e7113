"""Shares of successes, with intervals that hold for few episodes and for shares of 0 and 1, too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from llmrl.analysis.statistics import Interval

Z95 = 1.959963984540054
"""The normal distribution's 97.5% quantile."""


def proportion(successes: int, n: int, z: float = Z95) -> Interval:
    """The share of `successes` in `n` episodes with Wilson's score interval (Wilson 1927), within [0, 1].

    Raises:
        ValueError: there are no episodes, or more successes than episodes.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} episodes")
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Rounding must not leave the share outside.
    return Interval(p, min(max(centre - half, 0.0), p), max(min(centre + half, 1.0), p))


def mean_proportion(parts: Sequence[Interval]) -> Interval:
    """The mean of independent shares, each counting once, from their own intervals (the square-and-add limits of Zou &
    Donner 2008, Statistics in Medicine 27, eq. 3 for a sum).

    Raises:
        ValueError: there are none.
    """
    if not parts:
        raise ValueError("no shares")
    n = len(parts)
    estimate = sum(part.estimate for part in parts) / n
    below = math.sqrt(sum((part.estimate - part.low) ** 2 for part in parts)) / n
    above = math.sqrt(sum((part.high - part.estimate) ** 2 for part in parts)) / n
    return Interval(estimate, max(estimate - below, 0.0), min(estimate + above, 1.0))
