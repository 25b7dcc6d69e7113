"""Uniformly random vectors: the floor every other principal is measured against."""

from __future__ import annotations

import numpy as np

from llmrl.core.limits import PositiveInt
from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.principals.governed import mechanism_of
from llmrl.principals.grid import ActionGrid


class RandomPrincipal:
    """Proposes uniformly at random, learns nothing.

    Args:
        spec: the environment.
        seeds: of the proposals.
        points: values a number, evenly spaced with both bounds, >= 2; None draws from the whole range.
    """

    def __init__(self, spec: EnvSpec, seeds: Seeds, points: PositiveInt | None = None) -> None:
        self.mechanism = mechanism_of(spec, "random")
        self.grid = ActionGrid(self.mechanism, points) if points is not None else None
        self.rng = seeds.numpy("principal")

    def ask(self, context: int | None = None) -> np.ndarray:
        if self.grid is not None:
            return self.grid.vector(int(self.rng.integers(self.grid.n_arms)))
        return self.rng.uniform(self.mechanism.low, self.mechanism.high)

    def tell(self, outcome: Outcome) -> dict[str, float]:
        return {}

    def state_dict(self) -> State:
        return {"rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self.rng.bit_generator.state = state["rng"]
