"""Planners: from the sentence of an abstract state to plans and how likely each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llmrl.core.records import State
from llmrl.teachers.domain import Domain
from llmrl.teachers.plans import Plan

Distribution = tuple[tuple[Plan, float], ...]
"""Distinct plans and their probabilities, which sum to 1; the likeliest first."""


class Planner(Protocol):
    """Plans for the states of one domain.

    A planner may also have `describe() -> dict[str, str]`, what `dry_run=true` says of it.
    """

    domain: Domain

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        """For each sentence, in order.

        Raises:
            LLMError: a language model failed for good, or may not be paid any more.
            ConfigError: a table has no plan for a sentence, and that was to be an error.
        """
        ...

    def metrics(self) -> dict[str, float]:
        """Counters since the start of the run."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class OraclePlanner:
    """The domain's own rule for what is best, as a planner: an upper bound, and a teacher that costs nothing."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def plans(self, sentences: Sequence[str]) -> list[Distribution]:
        return [((self.domain.best_plan(sentence), 1.0),) for sentence in sentences]

    def describe(self) -> dict[str, str]:
        return {"planner": "the domain's own rule"}

    def metrics(self) -> dict[str, float]:
        return {}

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """There is nothing to load."""


def distribution(weights: Sequence[tuple[Plan, float]]) -> Distribution:
    """Weights (counts) of plans as probabilities: equal plans are added up, the likeliest comes first."""
    sums: dict[Plan, float] = {}
    for plan, weight in weights:
        sums[plan] = sums.get(plan, 0.0) + weight
    total = sum(sums.values())
    ordered = sorted(sums.items(), key=lambda pair: -pair[1])
    return tuple((plan, weight / total) for plan, weight in ordered)
