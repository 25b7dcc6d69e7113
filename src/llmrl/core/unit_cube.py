"""The unit cube that searches move in, and the vectors its points stand for."""

from __future__ import annotations

import numpy as np

from llmrl.core.spaces import ParameterSpace


def counts(space: ParameterSpace) -> np.ndarray:
    """Values that each number can take, [d]; inf where it can take any between its bounds."""
    return np.array(
        [np.inf if p.decimals is None else round((p.high - p.low) * 10.0**p.decimals) + 1 for p in space.parameters]
    )


def from_unit(space: ParameterSpace, unit: np.ndarray) -> np.ndarray:
    """The vectors [..., d], inside the bounds and rounded as the space asks, of points [..., d] of the unit cube.

    Where a number can take k values the edge is cut into k equal parts, one a value: whole numbers from 0 to 3 are then
    equally likely under a uniform draw, as numbers rounded to the nearest would not be.
    """
    low, high, n = space.low, space.high, counts(space)
    plain = np.clip(low + unit * (high - low), low, high)
    if np.isinf(n).all():
        return np.asarray(plain)
    steps = np.where(np.isinf(n), 2.0, n)
    part = np.clip(np.floor(unit * steps), 0.0, steps - 1.0)
    # A number that can take one value only has no range to divide.
    cut = low + part * (high - low) / np.maximum(steps - 1.0, 1.0)
    return space.rounded(np.where(np.isinf(n), plain, cut))


def to_unit(space: ParameterSpace, vectors: np.ndarray) -> np.ndarray:
    """Points [..., d] of the unit cube that stand for `vectors`: the middle of a value's part, where values are cut."""
    low, high, n = space.low, space.high, counts(space)
    span = np.where(high > low, high - low, 1.0)
    plain: np.ndarray = (vectors - low) / span
    if np.isinf(n).all():
        return plain
    steps = np.where(np.isinf(n), 2.0, n)
    middle: np.ndarray = np.where(np.isinf(n), plain, (plain * (steps - 1.0) + 0.5) / steps)
    return middle
