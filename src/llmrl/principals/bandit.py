"""Base class of bandits, with the number and mean of every arm's payoffs in each context."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.principals.grid import Arms


class BanditPrincipal(StateFields, ABC):
    """Base of the tabular bandits; a subclass chooses an arm in `_select`.

    The candidates of a step are chosen one after the other and may be the same arm, which is then measured several
    times. The recommendation is the incumbent unless a subclass overrides it (`llmrl.core.protocols.Recommender`).

    Attributes:
        counts: plays of each arm, [contexts or 1, arms] int64.
        means: mean payoff of each arm, [contexts or 1, arms] float64; 0 for arms that were never played.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; choices are drawn from its stream `principal`.
        grid: the arms.
    """

    _state_fields: ClassVar[tuple[str, ...]] = ("counts", "means", "rng")

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds, grid: Arms) -> None:
        self.space, self.grid = space, grid
        self.rng = seeds.numpy("principal")
        shape = (space.n_rows, self.grid.n_arms)
        self.counts = np.zeros(shape, dtype=np.int64)
        self.means = np.zeros(shape, dtype=np.float64)

    @property
    def n_arms(self) -> int:
        return self.grid.n_arms

    @abstractmethod
    def _select(self, row: int, pending: np.ndarray) -> int:
        """Return the index of the arm to play in a context.

        `pending` [arms] int64 counts how often each arm was already chosen in this step. Their payoffs are not known
        yet.
        """

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        """Update further statistics of a subclass; called before counts and means are updated."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row, arms = self.space.row(context), list[int]()
        pending = np.zeros(self.grid.n_arms, dtype=np.int64)
        for _ in range(n):
            arms.append(self._select(row, pending))
            pending[arms[-1]] += 1
        return self.grid.vectors[arms]

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update counts and means; return metrics of the last outcome's context.

        They are principal/arms_played (number of arms played) and principal/best_mean (highest mean payoff of an arm).
        """
        for outcome in outcomes:
            row, arm = self.space.row(outcome.context), self.grid.arm(outcome.vector)
            self._learn(row, arm, outcome.value)
            self.counts[row, arm] += 1
            self.means[row, arm] += (outcome.value - self.means[row, arm]) / self.counts[row, arm]
        has_plays = self.counts[row] > 0
        return {
            "principal/arms_played": float(has_plays.sum()),
            "principal/best_mean": float(self.means[row, has_plays].max()),
        }

    def _argmax(self, values: np.ndarray) -> int:
        """Return an arm with the highest value; ties are broken at random."""
        return int(self.rng.choice(np.flatnonzero(values == values.max())))
