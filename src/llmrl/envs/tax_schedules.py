"""Bracketed income taxes: division of incomes into brackets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from llmrl.core.errors import ConfigError


def validate_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """Return the lower edges of tax brackets as floats.

    Raises:
        ConfigError: they do not start at 0, or do not increase.
    """
    bounds = tuple(float(edge) for edge in edges)
    rising = all(low < high for low, high in pairwise(bounds))
    if not bounds or bounds[0] != 0 or not rising or not np.isfinite(bounds).all():
        raise ConfigError(f"the brackets {list(edges)} of taxes must start at 0 and increase, e.g. [0, 3, 5]")
    return bounds


def bracket_incomes(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return the part of each income that falls into each of K brackets, [..., K]; parts add up to the income.

    `income` [...] >= 0 and the lower `edges` [K] have the same unit. A tax with marginal rates [K] is the sum of rate
    times part.
    """
    low = np.asarray(edges, dtype=np.float64)
    width = np.append(np.diff(low), np.inf)
    parts: np.ndarray = np.clip(np.asarray(income, dtype=np.float64)[..., None] - low, 0.0, width)
    return parts


def bracket_membership(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return whether each income ends in each of K brackets, [..., K] bool: exactly one is true.

    An income on an edge ends in the bracket below it, whose rate its last dollar was taxed at.
    """
    index = np.maximum(np.searchsorted(np.asarray(edges, dtype=np.float64), income, side="left") - 1, 0)
    return np.asarray(index[..., None] == np.arange(len(edges)))
