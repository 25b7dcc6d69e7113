"""Principal that proposes uniformly random vectors, the baseline for all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.core.unit_cube import from_unit
from llmrl.principals.grid import Arms, grid_vectors


class RandomPrincipal(StateFields):
    """Principal that proposes uniformly at random and learns nothing.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; proposals are drawn from its stream `principal`.
        points: values per number, evenly spaced including both bounds, >= 2; None: the whole range.
    """

    _state_fields = ("rng",)

    parallel = True
    learns_from_others = True

    def __init__(self, space: ParameterSpace, seeds: Seeds, points: PositiveInt | None = None) -> None:
        self.space = space
        self.grid = None if points is None else Arms(grid_vectors(space, points))
        self.rng = seeds.numpy("principal")

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        if self.grid is not None:
            return np.stack([self.grid.vector(int(self.rng.integers(self.grid.n_arms))) for _ in range(n)])
        return from_unit(self.space, self.rng.random((n, self.space.dim)))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}
