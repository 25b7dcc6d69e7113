"""Race between the best vectors of a policy search: repeated measurements before the winner is selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.state_fields import StateFields
from llmrl.statistics.estimators import standard_error, standard_error_of_mean

ELIMINATION_ERRORS = 3.0
"""A contestant is dropped if the mean of the leader's paired differences to it exceeds this many standard errors."""
MIN_PAIRS = 3
"""Minimum number of pairs with which a contestant is dropped; standard errors of fewer pairs are unreliable."""


class Race(StateFields):
    """Rounds of fresh measurements of a few contestants; clearly worse contestants are dropped.

    The highest of many noisy estimates is biased upward (the winner's curse). So the contestants are measured again,
    all contestants of a round with the same random numbers; measurements before the race do not count. Contestants are
    compared by paired differences to the leader, which has the highest mean so far (a race as in Maron & Moore 1997,
    "The racing algorithm", with normal bounds in place of Hoeffding's). The winner is the last remaining contestant, or
    the one with the highest mean after all rounds. The winner's mean is again the highest of several and so biased;
    the caller evaluates the winner once more.

    Args:
        vectors: contestants, [k, d], in descending order of earlier estimates; if means are equal, the first one leads.
        max_rounds: maximum number of rounds.

    Attributes:
        remaining: indices of the remaining contestants, in the order of `vectors`.
        round: number of finished rounds.
        values: measurements of each contestant in the race, [k] lists.
    """

    _state_fields = ("vectors", "remaining", "round", "values")

    def __init__(self, vectors: np.ndarray, max_rounds: int) -> None:
        self.vectors, self.max_rounds = np.asarray(vectors, dtype=np.float64), max_rounds
        self.remaining = list(range(len(self.vectors)))
        self.round = 0
        self.values: list[list[float]] = [[] for _ in self.remaining]

    @property
    def is_finished(self) -> bool:
        return len(self.remaining) == 1 or self.round >= self.max_rounds

    @property
    def leader(self) -> int:
        """Index of the remaining contestant with the highest mean; after the race, it is the winner."""
        if not self.round:
            return self.remaining[0]
        return max(self.remaining, key=lambda i: (float(np.mean(self.values[i])), -i))

    def tell(self, values: Sequence[np.ndarray]) -> None:
        """Add a round of measurements, and drop contestants that are clearly behind the leader.

        Args:
            values: measurements of each remaining contestant, in the order of `remaining`, [m] each; measurements j of
                all contestants have the same random numbers.
        """
        for i, measurements in zip(self.remaining, values, strict=True):
            self.values[i] += np.asarray(measurements, dtype=np.float64).tolist()
        self.round += 1
        leader = self.leader
        self.remaining = [i for i in self.remaining if i == leader or not self._is_clearly_behind(i, leader)]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the race after a round.

        They are `race/remaining`, the number of remaining contestants; `race/return`, the leader's mean; and
        `race/standard_error`, the standard error of this mean, if it is known.
        """
        error = standard_error_of_mean(np.array(self.values[self.leader]))
        metrics = {
            "race/remaining": float(len(self.remaining)),
            "race/return": float(np.mean(self.values[self.leader])),
        }
        return metrics | ({} if error is None else {"race/standard_error": error})

    def summarize_contestants(self) -> list[dict[str, Any]]:
        """Return a row for each contestant that the race measured; none if there was only one contestant.

        Keys: `vector`; `return`, the mean of its measurements; `standard_error` of this mean; `measured`, the number of
        measurements; `remaining`, whether the contestant was never dropped.
        """
        return [
            {
                "vector": vector.tolist(),
                "return": float(np.mean(measurements)),
                "standard_error": standard_error_of_mean(np.array(measurements)),
                "measured": len(measurements),
                "remaining": i in self.remaining,
            }
            for i, (vector, measurements) in enumerate(zip(self.vectors, self.values, strict=True))
            if measurements
        ]

    def _is_clearly_behind(self, i: int, leader: int) -> bool:
        differences = np.array(self.values[leader]) - np.array(self.values[i])
        margin = ELIMINATION_ERRORS * float(standard_error(differences)) if len(differences) >= MIN_PAIRS else np.inf
        return float(differences.mean()) > margin
