"""The same vector in every generation: baselines, hand-made policies, pre-training without a mechanism."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.errors import ConfigError
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

    def state_dict(self) -> State:
        """Empty: everything is in the configuration."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to restore."""
