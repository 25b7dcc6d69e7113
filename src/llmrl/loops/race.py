"""Measuring the best few vectors of a policy search again before one is named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.analysis.statistics import standard_error, standard_error_of_mean
from llmrl.core.records import State

CLEARLY = 3.0
"""Standard errors of the paired difference by which a contestant must be behind the leader to be dropped."""
FEWEST = 3
"""Pairs below which no standard error is trusted to drop anybody: chance leaves too few to be near their mean."""


class Race:
    """Rounds of fresh measurements of a few contestants, of which the clearly worse are dropped.

    The highest of many noisy estimates is the highest by luck as well (the winner's curse). So the best few are
    measured anew, all of a round with the same random numbers, and nothing of what made them contestants counts.
    Compared are paired differences to the leader, the highest mean so far (a race as in Maron & Moore 1997, "The racing
    algorithm", with normal bounds in place of Hoeffding's). The winner is the last one left, or the highest mean after
    all rounds. That mean is the highest of several, too: what a winner is worth is measured once more, by the caller.

    Args:
        vectors: contestants, [k, d], the most promising first, which of equals wins.
        rounds: at most.

    Attributes:
        left: indices of those that are still in it, in the order of `vectors`.
        round: rounds that are over.
        values: fresh measurements of each contestant, [k] lists of independent numbers.
    """

    def __init__(self, vectors: np.ndarray, rounds: int) -> None:
        self.vectors, self.rounds = np.asarray(vectors, dtype=np.float64), rounds
        self.left = list(range(len(self.vectors)))
        self.round = 0
        self.values: list[list[float]] = [[] for _ in self.left]

    @property
    def over(self) -> bool:
        return len(self.left) == 1 or self.round >= self.rounds

    @property
    def leader(self) -> int:
        """Index of the highest mean of those left; the winner's, when the race is over."""
        if not self.round:
            return self.left[0]
        return max(self.left, key=lambda i: (float(np.mean(self.values[i])), -i))

    def tell(self, values: Sequence[np.ndarray]) -> None:
        """A round's measurements of those left, in order, [m] each, entry by entry with the same random numbers."""
        for i, own in zip(self.left, values, strict=True):
            self.values[i] += np.asarray(own, dtype=np.float64).tolist()
        self.round += 1
        leader = self.leader
        self.left = [i for i in self.left if i == leader or not self._clearly_behind(i, leader)]

    def metrics(self, name: str) -> dict[str, float]:
        """race/left, contestants; race/<name>, fresh mean of the leader; race/standard_error of that."""
        error = standard_error_of_mean(np.array(self.values[self.leader]))
        found = {"race/left": float(len(self.left)), f"race/{name}": float(np.mean(self.values[self.leader]))}
        return found | ({} if error is None else {"race/standard_error": error})

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Of each contestant: vector, fresh mean as `name`, its standard_error, how many independent numbers these are
        of, and whether it was still in the race at its end. Empty where there was nothing to choose from."""
        return [
            {
                "vector": vector.tolist(),
                name: float(np.mean(own)),
                "standard_error": standard_error_of_mean(np.array(own)),
                "measured": len(own),
                "left": i in self.left,
            }
            for i, (vector, own) in enumerate(zip(self.vectors, self.values, strict=True))
            if own
        ]

    def state_dict(self) -> State:
        return {
            "vectors": self.vectors.copy(),
            "left": list(self.left),
            "round": self.round,
            "values": [list(own) for own in self.values],
        }

    @classmethod
    def from_state(cls, state: State, rounds: int) -> Race:
        race = cls(state["vectors"], rounds)
        race.left, race.round = list(state["left"]), state["round"]
        race.values = [list(own) for own in state["values"]]
        return race

    def _clearly_behind(self, i: int, leader: int) -> bool:
        behind = np.array(self.values[leader]) - np.array(self.values[i])
        return len(behind) >= FEWEST and float(behind.mean()) > CLEARLY * float(standard_error(behind))
