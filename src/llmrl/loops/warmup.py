"""Random vectors that a search begins with."""

from __future__ import annotations

from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit import from_unit

Draw = Literal["uniform", "normal3_round1", "uniform3.5_round4"]


def warmup_vectors(space: ParameterSpace, draw: Draw, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` random vectors, [n, d].

    `uniform`: inside the bounds, every value a number can take equally likely. The others are those of two published
    codes of ProPS (arXiv 2511.21928), which heed neither bounds nor decimals: `normal3_round1` N(0, 3^2), rounded to
    one decimal, and `uniform3.5_round4` U(-3.5, 3.5), rounded to four.

    Raises:
        ConfigError: a published draw of whole numbers.
    """
    shape = (n, space.dim)
    if draw == "uniform":
        return from_unit(space, rng.random(shape))
    if any(p.decimals == 0 for p in space.parameters):
        raise ConfigError(f"search.warmup_draw={draw}: the numbers of a {space.name} are whole; use uniform")
    if draw == "normal3_round1":
        return rng.normal(0.0, 3.0, shape).round(1) + 0.0
    return rng.uniform(-3.5, 3.5, shape).round(4) + 0.0
