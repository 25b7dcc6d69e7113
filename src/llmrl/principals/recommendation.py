"""Recommendations of a principal whose rule names one vector: this vector first, then the incumbents."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.pooling import PooledEstimates, key_of


def followed_by_incumbents(
    first: Sequence[np.ndarray], context: int | None, n: int, estimates: PooledEstimates, dim: int
) -> np.ndarray:
    """Return `first` and then the highest estimates of a context, without duplicates, [<= n, dim].

    Args:
        first: vectors that the rule ranks above all others, best first, each [dim]; may be empty.
        context: index of the context; None if there are no contexts.
        n: largest number of vectors.
        estimates: pooled measurements.
        dim: number of parameters.
    """
    keys = [key_of(vector) for vector in first] + [estimate.vector for estimate in estimates.ranked(context)]
    return np.array(list(dict.fromkeys(keys))[:n], dtype=np.float64).reshape(-1, dim)
