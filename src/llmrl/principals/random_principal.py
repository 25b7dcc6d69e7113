"""Principals that draw proposals and learn nothing: uniformly at random, or a Sobol sequence."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from llmrl.core.errors import ConfigError
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


class SobolPrincipal(StateFields):
    """Principal that proposes a scrambled Sobol sequence, one sequence per context, and learns nothing.

    The points fill the box more evenly than random ones. Scrambling makes each point uniformly distributed (Owen 1998,
    Scrambling Sobol' and Niederreiter-Xing points).

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; the scrambling of a context is drawn from its sub-tree `principal`.

    Raises:
        ConfigError: the space has more dimensions than there are direction numbers.
    """

    _state_fields = ("counts",)

    parallel = True
    learns_from_others = True

    def __init__(self, space: ParameterSpace, seeds: Seeds) -> None:
        from scipy.stats.qmc import Sobol

        if space.dim > Sobol.MAXDIM:
            raise ConfigError(
                f"principal=sobol supports at most {Sobol.MAXDIM:,} numbers, but {space.name} has {space.dim:,}; "
                "use principal=random"
            )
        self.space, self.seeds = space, seeds.child("principal")
        self.counts = [0] * space.n_rows

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        from scipy.stats.qmc import Sobol

        row = self.space.row(context)
        engine = Sobol(self.space.dim, scramble=True, seed=self.seeds.integer(row))
        if self.counts[row]:
            engine.fast_forward(self.counts[row])
        self.counts[row] += n
        with warnings.catch_warnings():
            # The number of proposals need not be a power of two: the sequence is continued by the next `ask`.
            warnings.simplefilter("ignore", UserWarning)
            return from_unit(self.space, engine.random(n))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}
