"""Principals that propose what they were given: one vector for each context, or a list of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.records import Outcome, State
from llmrl.core.spaces import ParameterSpace


class FixedPrincipal:
    """Proposes constant values, learns nothing.

    Args:
        space: what is proposed.
        values: one number a parameter; None sets every number to its lower bound (no tax, no payment).
        contexts: a list like `values` for each context, in the order of `space.contexts`; instead of `values`.

    Raises:
        ConfigError: a wrong count of numbers or lists, a number out of bounds or with more decimals than it may have,
            or both `values` and `contexts` given.
    """

    parallel = True
    learns_from_others = True

    def __init__(
        self, space: ParameterSpace, values: list[float] | None = None, contexts: list[list[float]] | None = None
    ) -> None:
        self.space = space
        if values is not None and contexts is not None:
            raise ConfigError("principal=fixed takes values, or contexts, not both")
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

    def state_dict(self) -> State:
        """Empty: everything is in the configuration."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to restore."""


class ListedPrincipal:
    """Proposes the vectors of a list in their order, and begins again at its end; learns nothing.

    With as many candidates a step as there are vectors, all are tried side by side in one batch.

    Args:
        space: what is proposed.
        vectors: what to try, [n, d].
        grid: instead of `vectors`, the values of each number, [d] lists: all their combinations, the last number first.

    Raises:
        ConfigError: a wrong count of numbers or lists, a number out of bounds or with more decimals than it may have,
            or not one of `vectors` and `grid`.
    """

    parallel = True
    learns_from_others = True

    def __init__(
        self,
        space: ParameterSpace,
        vectors: Annotated[list[list[float]], MinLen(1)] | None = None,
        grid: list[Annotated[list[float], MinLen(1)]] | None = None,
    ) -> None:
        if (vectors is None) == (grid is None):
            raise ConfigError("principal=listed takes principal.vectors, or principal.grid: one of them")
        if grid is not None:
            if len(grid) != space.dim:
                raise ConfigError(
                    f"principal.grid needs a list of values for each of the {space.dim} numbers of {space.name} "
                    f"({', '.join(space.names)}), got {len(grid)} lists"
                )
            vectors = [list(each) for each in itertools.product(*grid)]
        self.vectors = space.exact(space.check(vectors), "principal.vectors")
        self.asked = 0

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        places = (self.asked + np.arange(n)) % len(self.vectors)
        self.asked += n
        return self.vectors[places].copy()

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        return {}

    def state_dict(self) -> State:
        return {"asked": self.asked}

    def load_state_dict(self, state: State) -> None:
        self.asked = state["asked"]
