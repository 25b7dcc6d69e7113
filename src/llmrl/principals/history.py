"""What a principal that reads remembers of its proposals, and what of it goes into a prompt."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from llmrl.core.records import Outcome, State
from llmrl.core.spaces import EnvSpec

Policy = Literal["all", "last", "best"]

CURVE_POINTS = 4
"""A level is reported at this many evenly spaced moments of the episode, the last one included."""

MEANINGS = {"sum": "as the total of an episode", "mean": "as the mean over its steps", "last": "as a level"}
"""How `EnvSpec.metrics` sums up an episode, in words for the prompt."""


class History:
    """Outcomes in the order they were told, each as a plain record (see `_record`) that a checkpoint can hold."""

    def __init__(self, spec: EnvSpec) -> None:
        self.spec = spec
        self.records: list[dict[str, Any]] = []

    def add(self, outcome: Outcome) -> None:
        self.records.append(self._record(outcome))

    def select(self, policy: Policy, window: int) -> list[dict[str, Any]]:
        """The records to show, oldest first: `all`, or the `last` or `best` (highest payoff) of each context."""
        if policy == "all":
            return list(self.records)
        shown: list[dict[str, Any]] = []
        for context in {record["context"] for record in self.records}:
            own = self.in_context(context)
            # The sort is stable: of equal payoffs the earlier ones stay.
            by_payoff = sorted(own, key=lambda record: -record["payoff"])
            shown += by_payoff[:window] if policy == "best" else own[-window:]
        return sorted(shown, key=lambda record: int(record["generation"]))

    def trim(self, records: list[dict[str, Any]], policy: Policy, n: int) -> list[dict[str, Any]]:
        """The `n` records worth most to a reader who cannot take all, oldest first.

        The newest ones for `last` and the best for `best`; for `all` the best half of them, and the newest of the rest.
        """
        by_payoff = sorted(records, key=lambda record: -record["payoff"])
        n_best = {"all": -(-n // 2), "best": n, "last": 0}[policy]
        kept = {record["generation"] for record in by_payoff[:n_best]}
        rest = [record["generation"] for record in records if record["generation"] not in kept]
        kept |= set(rest[len(rest) - (n - len(kept)) :])
        return [record for record in records if record["generation"] in kept]

    def in_context(self, context: str | None) -> list[dict[str, Any]]:
        return [record for record in self.records if record["context"] == context]

    def best(self, context: str | None) -> np.ndarray | None:
        """The vector with the highest payoff in a context; None if there is none yet."""
        own = self.in_context(context)
        if not own:
            return None
        return np.array(max(own, key=lambda record: float(record["payoff"]))["vector"], dtype=np.float64)

    def measures(self) -> list[tuple[str, list[str]]]:
        """What the numbers beside a payoff are: (meaning, names), meanings without names left out."""
        grouped = [
            (meaning, [name for name, aggregate in self.spec.metrics.items() if aggregate == kind])
            for kind, meaning in MEANINGS.items()
        ]
        return [(meaning, names) for meaning, names in grouped if names]

    def state_dict(self) -> State:
        return {"records": [dict(record) for record in self.records]}

    def load_state_dict(self, state: State) -> None:
        self.records = [dict(record) for record in state["records"]]

    def _record(self, outcome: Outcome) -> dict[str, Any]:
        """Plain numbers, strings and lists. Curves are kept of levels (entries whose last value counts) only."""
        curves = {
            name: _sample(outcome.trajectories[name])
            for name, aggregate in self.spec.metrics.items()
            if aggregate == "last" and len(outcome.trajectories.get(name, ())) > 0
        }
        return {
            "generation": len(self.records) + 1,
            "context": None if outcome.context is None else self.spec.contexts[outcome.context],
            "vector": np.asarray(outcome.vector, dtype=np.float64).tolist(),
            "payoff": float(outcome.value),
            "standard_error": outcome.standard_error,
            "episodes": len(outcome.values),
            "curves": curves,
            # A curve ends with the level its summary would repeat.
            "summaries": {name: float(value) for name, value in outcome.summaries.items() if name not in curves},
            "returns": [float(value) for value in outcome.returns],
        }


def _sample(trajectory: np.ndarray) -> list[float]:
    """The values at a quarter, half, three quarters and the end of an episode."""
    ends = np.linspace(0, len(trajectory), CURVE_POINTS + 1)[1:]
    return [float(trajectory[max(round(end) - 1, 0)]) for end in ends]
