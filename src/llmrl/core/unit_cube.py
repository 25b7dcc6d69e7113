"""Conversion between points of the unit cube, which search methods use, and vectors of a parameter space."""

from __future__ import annotations

import numpy as np

from llmrl.core.spaces import ParameterSpace


def count_values(space: ParameterSpace) -> np.ndarray:
    """Return the number of values that each parameter can take, [d] float64; inf for a continuous one."""
    return np.array(
        [np.inf if p.decimals is None else round((p.high - p.low) * 10.0**p.decimals) + 1 for p in space.parameters]
    )


def from_unit(space: ParameterSpace, points: np.ndarray) -> np.ndarray:
    """Return the vectors [..., d] for `points` [..., d] of the unit cube, inside the bounds and rounded by the space.

    If a parameter can take k values, its axis is divided into k equal intervals, one per value. The integers 0 to 3 are
    then equally likely under a uniform draw, which rounding to the nearest integer would not achieve.
    """
    low, high, n_values = space.low, space.high, count_values(space)
    continuous_values = np.clip(low + points * (high - low), low, high)
    if np.isinf(n_values).all():
        return np.asarray(continuous_values)
    n_steps = np.where(np.isinf(n_values), 2.0, n_values)
    step_index = np.clip(np.floor(points * n_steps), 0.0, n_steps - 1.0)
    # Avoids 0 / 0 for a parameter with a single value.
    grid_points = low + step_index * (high - low) / np.maximum(n_steps - 1.0, 1.0)
    return space.round_values(np.where(np.isinf(n_values), continuous_values, grid_points))


def to_unit(space: ParameterSpace, vectors: np.ndarray) -> np.ndarray:
    """Return the points [..., d] of the unit cube for `vectors`; discrete values become centers of intervals."""
    low, high, n_values = space.low, space.high, count_values(space)
    positions: np.ndarray = (vectors - low) / np.where(high > low, high - low, 1.0)
    if np.isinf(n_values).all():
        return positions
    n_steps = np.where(np.isinf(n_values), 2.0, n_values)
    return np.where(np.isinf(n_values), positions, (positions * (n_steps - 1.0) + 0.5) / n_steps)
