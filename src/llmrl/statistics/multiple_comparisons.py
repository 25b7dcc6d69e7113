"""Tests of planned comparisons of two groups, corrected for the number of comparisons."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from llmrl.statistics.intervals import MINIMUM_UNITS, Units, difference_of_means

SIGNIFICANCE = 0.05
"""Probability below which an adjusted p-value counts as a difference."""


def p_value(x: np.ndarray, y: np.ndarray, units_x: Units = None, units_y: Units = None) -> float:
    """Return the two-sided p-value of equal means; NaN if a group has fewer than `MINIMUM_UNITS` top-level units.

    It is that of a paired t test of unit means if both groups have the same units, else that of Welch's t test.

    Args:
        x: scores [n].
        y: scores [m].
        units_x: labels of the top-level units of `x`; None: each run is a unit.
        units_y: labels of the top-level units of `y`.
    """
    from scipy.special import stdtr  # lazy: importing it takes longer than most commands

    difference = difference_of_means(x, y, units_x, units_y)
    if difference.units < MINIMUM_UNITS:
        return math.nan
    estimate, error = float(difference.estimate), float(difference.standard_error)
    if error == 0:
        return 0.0 if estimate else 1.0
    return float(2 * stdtr(difference.degrees, -abs(estimate / error)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number, in the same order (Holm, 1979, Scand. J. Statistics 6: 65).

    The k-th smallest of m is multiplied by m - k + 1, and is at least the one before it and at most 1. NaN, a
    comparison that could not be tested, stays NaN and does not count.

    Args:
        p_values: p-values of one family of comparisons, in [0, 1] or NaN.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, dtype=np.float64)
    tested = np.flatnonzero(~np.isnan(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    adjusted = np.full(len(p), np.nan)
    adjusted[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return adjusted.tolist()
