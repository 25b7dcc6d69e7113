"""The same vector in every generation: baselines, hand-made policies, pre-training without a mechanism."""

from __future__ import annotations

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.records import Outcome, State
from llmrl.core.spaces import EnvSpec
from llmrl.principals.governed import mechanism_of, n_rows, row_of


class FixedPrincipal:
    """Proposes constant values, learns nothing.

    Args:
        spec: the environment.
        values: one number a mechanism parameter; None sets every number to its lower bound (no tax, no payment).
        contexts: a list like `values` for each context, in the order of `spec.contexts`; instead of `values`.

    Raises:
        ConfigError: a wrong count of numbers or lists, a number out of bounds, or both `values` and `contexts` given.
    """

    def __init__(
        self, spec: EnvSpec, values: list[float] | None = None, contexts: list[list[float]] | None = None
    ) -> None:
        mechanism = mechanism_of(spec, "fixed")
        self.spec = spec
        if values is not None and contexts is not None:
            raise ConfigError("principal=fixed takes values, or contexts, not both")
        if contexts is not None:
            if len(contexts) != len(spec.contexts):
                raise ConfigError(
                    f"principal.contexts needs a list for each of the {len(spec.contexts)} contexts of env={spec.name} "
                    f"({', '.join(spec.contexts) or 'it has none: use principal.values'}), got {len(contexts)} lists"
                )
            self.table = np.stack([mechanism.check(row) for row in contexts])
        else:
            vector = mechanism.low if values is None else mechanism.check(values)
            self.table = np.tile(vector, (n_rows(spec), 1))

    def ask(self, context: int | None = None) -> np.ndarray:
        vector: np.ndarray = self.table[row_of(self.spec, context)]
        return vector.copy()

    def tell(self, outcome: Outcome) -> dict[str, float]:
        return {}

    def state_dict(self) -> State:
        """Empty: everything is in the configuration."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to restore."""
