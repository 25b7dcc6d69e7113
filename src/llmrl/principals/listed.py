"""Given vectors, one after the other: landscapes, tables and repeats of what somebody wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from llmrl.core.records import Outcome, State
from llmrl.core.spaces import ParameterSpace


class ListedPrincipal:
    """Proposes the vectors of a list in their order, and begins again at its end; learns nothing.

    With as many candidates a step as there are vectors, all are tried side by side in one batch.

    Args:
        space: what is proposed.
        vectors: what to try, [n, d].

    Raises:
        ConfigError: a wrong count of numbers, a number out of bounds or with more decimals than it may have.
    """

    parallel = True
    learns_from_others = True

    def __init__(self, space: ParameterSpace, vectors: Annotated[list[list[float]], MinLen(1)]) -> None:
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
