"""What the bandits share: a grid of arms and, for each context, the count and mean of what every arm paid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.principals.governed import mechanism_of, n_rows, row_of
from llmrl.principals.grid import ActionGrid, default_points


class BanditPrincipal(ABC):
    """Base of the tabular bandits; a subclass chooses an arm in `_select`.

    Attributes:
        counts: plays of each arm, [contexts or 1, arms] int64.
        means: mean payoff of each arm, [contexts or 1, arms] float64; 0 where it was never played.

    Args:
        name: of the option, for messages.
        points: values a number; None is the published count for the mechanism's dimension.
        published: that count by dimension.
    """

    def __init__(
        self, spec: EnvSpec, seeds: Seeds, name: str, points: int | None, published: Mapping[int, int]
    ) -> None:
        mechanism = mechanism_of(spec, name)
        self.spec = spec
        self.grid = ActionGrid(mechanism, default_points(mechanism, published) if points is None else points)
        self.rng = seeds.numpy("principal")
        shape = (n_rows(spec), self.grid.n_arms)
        self.counts = np.zeros(shape, dtype=np.int64)
        self.means = np.zeros(shape, dtype=np.float64)

    @abstractmethod
    def _select(self, row: int) -> int:
        """The arm to play in a context."""

    def _learn(self, row: int, arm: int, payoff: float) -> None:  # noqa: B027  (a hook, not a duty)
        """More to learn than counts and means; called before they are updated."""

    def ask(self, context: int | None = None) -> np.ndarray:
        return self.grid.vector(self._select(row_of(self.spec, context)))

    def tell(self, outcome: Outcome) -> dict[str, float]:
        """Metrics: arms_played (different arms, in this context), best_mean (highest mean payoff of an arm, in it)."""
        row, arm = row_of(self.spec, outcome.context), self.grid.arm(outcome.vector)
        self._learn(row, arm, outcome.value)
        self.counts[row, arm] += 1
        self.means[row, arm] += (outcome.value - self.means[row, arm]) / self.counts[row, arm]
        played = self.counts[row] > 0
        return {
            "principal/arms_played": float(played.sum()),
            "principal/best_mean": float(self.means[row, played].max()),
        }

    def state_dict(self) -> State:
        return {"counts": self.counts.copy(), "means": self.means.copy(), "rng": self.rng.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        self.counts = np.array(state["counts"])
        self.means = np.array(state["means"])
        self.rng.bit_generator.state = state["rng"]

    def _argmax(self, values: np.ndarray) -> int:
        """An arm with the highest value; ties are broken at random."""
        return int(self.rng.choice(np.flatnonzero(values == values.max())))
