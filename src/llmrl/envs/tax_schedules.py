"""Bracketed income taxes: division of incomes into brackets, and the US federal schedule."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from llmrl.core.errors import ConfigError

FEDERAL_EDGES = (0.0, 11.6, 47.15, 100.525, 191.95, 243.725, 609.35)
"""Lower edges of the brackets of the US federal income tax of 2024 for single filers, thousand dollars a year
(Internal Revenue Service, Rev. Proc. 2023-34)."""
FEDERAL_RATES = (0.10, 0.12, 0.22, 0.24, 0.32, 0.35, 0.37)
"""Their marginal rates."""


def validate_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """Return the lower edges of tax brackets as floats.

    Raises:
        ConfigError: they do not start at 0, or do not increase.
    """
    bounds = tuple(float(edge) for edge in edges)
    rising = all(low < high for low, high in pairwise(bounds))
    if not bounds or bounds[0] != 0 or not rising or not np.isfinite(bounds).all():
        raise ConfigError(f"env.brackets={list(edges)} of taxes must start at 0 and increase, e.g. [0, 47.15, 100.525]")
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


def federal_rates(edges: Sequence[float]) -> list[float]:
    """Return marginal rates that tax as `FEDERAL_RATES` do, averaged over each bracket, [K].

    `edges` [K] are in thousand dollars a year. Incomes on an edge pay exactly the federal tax. The last bracket ends
    at the highest federal edge, or has the highest rate if it begins there or above.
    """
    rates = []
    for low, high in zip(edges, [*edges[1:], max(FEDERAL_EDGES)], strict=True):
        if high <= low:
            rates.append(FEDERAL_RATES[-1])
            continue
        parts = bracket_incomes(np.array([low, high]), FEDERAL_EDGES) @ np.array(FEDERAL_RATES)
        rates.append(float((parts[1] - parts[0]) / (high - low)))
    return rates
