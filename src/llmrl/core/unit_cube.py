"""The map between the unit cube, in which searches work, and the vectors of a parameter space."""

from __future__ import annotations

import numpy as np

from llmrl.core.spaces import ParameterSpace


def counts(space: ParameterSpace) -> np.ndarray:
    """Return the number of values that each parameter can take, [d] float64; inf for a continuous one."""
    return np.array(
        [np.inf if p.decimals is None else round((p.high - p.low) * 10.0**p.decimals) + 1 for p in space.parameters]
    )


def from_unit(space: ParameterSpace, unit: np.ndarray) -> np.ndarray:
    """Return the vectors [..., d] of points [..., d] of the unit cube, inside the bounds and rounded by the space.

    If a parameter can take k values, its edge is divided into k equal parts, one per value. The integers 0 to 3 are
    then equally likely under a uniform draw, which rounding to the nearest integer would not achieve.
    """
    low, high, n = space.low, space.high, counts(space)
    plain = np.clip(low + unit * (high - low), low, high)
    if np.isinf(n).all():
        return np.asarray(plain)
    steps = np.where(np.isinf(n), 2.0, n)
    part = np.clip(np.floor(unit * steps), 0.0, steps - 1.0)
    # Avoids 0 / 0 for a parameter with a single value.
    grid_points = low + part * (high - low) / np.maximum(steps - 1.0, 1.0)
    return space.rounded(np.where(np.isinf(n), plain, grid_points))


def to_unit(space: ParameterSpace, vectors: np.ndarray) -> np.ndarray:
    """Return the points [..., d] of the unit cube of `vectors`; for discrete values, the middle of the value's part."""
    low, high, n = space.low, space.high, counts(space)
    span = np.where(high > low, high - low, 1.0)
    plain: np.ndarray = (vectors - low) / span
    if np.isinf(n).all():
        return plain
    steps = np.where(np.isinf(n), 2.0, n)
    middle: np.ndarray = np.where(np.isinf(n), plain, (plain * (steps - 1.0) + 0.5) / steps)
    return middle
