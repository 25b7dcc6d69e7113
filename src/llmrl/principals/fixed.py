"""Principals that propose given vectors: one for each context, or a list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.records import Outcome
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields


class FixedPrincipal(StateFields):
    """Principal that proposes constant values and learns nothing.

    Args:
        space: parameter space of the proposals.
        values: one number per parameter; None sets every number to its lower bound (no tax, no payment).
        contexts: a list like `values` for each context, in the order of `space.contexts`; instead of `values`.

    Raises:
        ConfigError: a wrong count of numbers or lists, a number out of bounds or with too many decimals, or both
            `values` and `contexts` given.
    """

    parallel = True
    learns_from_others = True

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
            self.table = np.stack([space.check(row) for row in contexts])
        else:
            vector = space.low if values is None else space.check(values)
            self.table = np.tile(vector, (space.n_rows, 1))
        space.exact(self.table, "principal.values")

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        return np.tile(self.table[self.space.row(context)], (n, 1))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the vector of a context, [1, d]; [0, d] for n = 0."""
        return np.array(self.table[self.space.row(context)][None][:n])


class ListedPrincipal(StateFields):
    """Principal that proposes the vectors of a list in order, cyclically, and learns nothing.

    With as many candidates per step as there are vectors, all are tried in one batch.

    Args:
        space: parameter space of the proposals.
        vectors: vectors to propose, [n, d].
        grid: instead of `vectors`, the values of each number, d lists; all their combinations are proposed, with the
            last number changing fastest.

    Raises:
        ConfigError: a wrong count of numbers or lists, a number out of bounds or with too many decimals, or not exactly
            one of `vectors` and `grid`.
    """

    _state_fields = ("asked",)

    parallel = True
    learns_from_others = True

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
        self.vectors = space.exact(space.check(vectors), "principal.vectors")
        self.asked = 0

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        indices = (self.asked + np.arange(n)) % len(self.vectors)
        self.asked += n
        return self.vectors[indices].copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}
