"""Principals that ignore outcomes: they propose given vectors, random vectors or a Sobol sequence."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.core.unit_cube import from_unit
from llmrl.principals.grid import make_grid_vectors


class _NonadaptivePrincipal(StateFields):
    """Base of principals that ignore the outcomes of proposals."""

    parallel = True
    learns_from_others = True

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}


class FixedPrincipal(_NonadaptivePrincipal):
    """Principal that proposes constant values.

    Args:
        space: parameter space of the proposals.
        values: constant vector, [d]; None: the lower bounds (no tax, no payment).
        contexts: instead of `values`, a constant vector for each context, [n_contexts][d], in the order of
            `space.contexts`.

    Raises:
        ConfigError: a wrong number of values or lists, a value out of bounds or with too many decimals, or both
            `values` and `contexts` are given.
    """

    def __init__(
        self, space: ParameterSpace, values: list[float] | None = None, contexts: list[list[float]] | None = None
    ) -> None:
        self.space = space
        if values is not None and contexts is not None:
            raise ConfigError("principal=fixed has both principal.values and principal.contexts; give only one of them")
        if contexts is not None:
            if len(contexts) != len(space.contexts):
                raise ConfigError(
                    f"principal.contexts needs a list for each of the {len(space.contexts)} contexts of {space.name} "
                    f"({', '.join(space.contexts) or 'it has none: use principal.values'}), got {len(contexts)} lists"
                )
            self.context_vectors = np.stack([space.check(row) for row in contexts])
        else:
            vector = space.low if values is None else space.check(values)
            self.context_vectors = np.tile(vector, (space.n_context_rows, 1))
        space.check_decimals(self.context_vectors, f"principal.{'values' if contexts is None else 'contexts'}")

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        return np.tile(self.context_vectors[self.space.find_context_row(context)], (n, 1))

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of a context, [1, d]; [0, d] for n = 0."""
        return np.array(self.context_vectors[self.space.find_context_row(context)][None][:n])


class ListedPrincipal(_NonadaptivePrincipal):
    """Principal that proposes the vectors of a list in order, cyclically.

    Args:
        space: parameter space of the proposals.
        vectors: vectors to propose, [n, d].
        grid: instead of `vectors`, a list of values for each parameter; all combinations are proposed, in the order of
            `itertools.product`.

    Raises:
        ConfigError: a wrong number of values or lists, a value out of bounds or with too many decimals, or not exactly
            one of `vectors` and `grid` is given.
    """

    _state_fields = ("n_proposed",)

    def __init__(
        self,
        space: ParameterSpace,
        vectors: Annotated[list[list[float]], MinLen(1)] | None = None,
        grid: list[Annotated[list[float], MinLen(1)]] | None = None,
    ) -> None:
        if (vectors is None) == (grid is None):
            raise ConfigError("principal=listed needs either principal.vectors or principal.grid")
        if grid is not None:
            if len(grid) != space.dim:
                raise ConfigError(
                    f"principal.grid needs a list of values for each of the {space.dim} numbers of {space.name} "
                    f"({', '.join(space.names)}), got {len(grid)} lists"
                )
            vectors = [list(vector) for vector in itertools.product(*grid)]
        self.vectors = space.check_decimals(space.check(vectors), f"principal.{'vectors' if grid is None else 'grid'}")
        self.n_proposed = 0

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        indices = (self.n_proposed + np.arange(n)) % len(self.vectors)
        self.n_proposed += n
        return self.vectors[indices].copy()


class RandomPrincipal(_NonadaptivePrincipal):
    """Principal that proposes uniformly distributed random vectors.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; proposals are drawn from its stream `principal`.
        points: number of evenly spaced values of each parameter, bounds included, >= 2; None: all values in the bounds.
    """

    _state_fields = ("rng",)

    def __init__(self, space: ParameterSpace, seeds: Seeds, points: PositiveInt | None = None) -> None:
        self.space = space
        self.vectors = None if points is None else make_grid_vectors(space, points)
        self.rng = seeds.numpy("principal")

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        if self.vectors is not None:
            return self.vectors[[int(self.rng.integers(len(self.vectors))) for _ in range(n)]]
        return from_unit(self.space, self.rng.random((n, self.space.dim)))


class SobolPrincipal(_NonadaptivePrincipal):
    """Principal that proposes the points of a scrambled Sobol sequence, one sequence per context.

    The points cover the space more evenly than random ones, and each is uniformly distributed because of the scrambling
    (Owen 1998, Scrambling Sobol' and Niederreiter-Xing points).

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; the scrambling of a context is drawn from its sub-tree `principal`.

    Raises:
        ConfigError: the space has more dimensions than there are direction numbers.
    """

    _state_fields = ("counts",)

    def __init__(self, space: ParameterSpace, seeds: Seeds) -> None:
        from scipy.stats.qmc import Sobol

        if space.dim > Sobol.MAXDIM:
            raise ConfigError(
                f"principal=sobol supports at most {Sobol.MAXDIM:,} numbers, but {space.name} has {space.dim:,}; "
                "use principal=random"
            )
        self.space, self.seeds = space, seeds.child("principal")
        self.counts = [0] * space.n_context_rows  # number of proposals so far in each context

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        from scipy.stats.qmc import Sobol

        row = self.space.find_context_row(context)
        engine = Sobol(self.space.dim, scramble=True, seed=self.seeds.integer(row))
        if self.counts[row]:
            engine.fast_forward(self.counts[row])
        self.counts[row] += n
        with warnings.catch_warnings():
            # SciPy warns that n is no power of two, which is irrelevant because the next `ask` continues the sequence.
            warnings.simplefilter("ignore", UserWarning)
            return from_unit(self.space, engine.random(n))
