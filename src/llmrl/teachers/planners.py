"""Planners, which map the sentence of a state to a distribution over plans.

Sentence: description of a state by a domain; states with equal sentences are one abstract state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from llmrl.core.ranges import UnitInterval
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.state_fields import StateFields
from llmrl.teachers.domain import Domain
from llmrl.teachers.plans import Plan, PlanStep

PlanDistribution = tuple[tuple[Plan, float], ...]
"""Distinct plans with their probabilities, which sum to 1, in descending order."""


class Planner(Protocol):
    """Source of plans for the states of one domain."""

    domain: Domain

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        """Return the distribution over plans for each sentence, in order.

        Raises:
            LLMError: a language model failed permanently, or the budget is exhausted.
            ConfigError: a plan table has no row for a sentence and `missing_state` is `error`.
        """
        ...

    def describe(self) -> dict[str, str]:
        """Return a description for the printed plan (`dry_run=true`)."""
        ...

    def metrics(self) -> dict[str, float]:
        """Return counters since the start of the run."""
        ...

    def state_dict(self) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class OraclePlanner(StateFields):
    """Planner with the domain's hand-written rule, for comparison with planners that need a language model."""

    def __init__(self, domain: Domain) -> None:
        self.domain = domain

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        return [((self.domain.best_plan(sentence), 1.0),) for sentence in sentences]

    def describe(self) -> dict[str, str]:
        return {"planner": "the domain's own rule"}

    def metrics(self) -> dict[str, float]:
        return {}


class ErroneousPlanner(StateFields):
    """Planner that replaces the plans of random sentences by one random step.

    Whether the plans of a sentence are replaced, and by which step, depends only on the sentence and the seed. The step
    is sampled uniformly from all pairs of a skill and an object of the sentence, so it may be right by chance.

    Args:
        planner: planner whose plans are replaced.
        error_rate: probability that the plans of a sentence are replaced.
        seeds: seed tree of the teacher.
    """

    _state_fields = ("planner",)

    def __init__(self, planner: Planner, error_rate: UnitInterval, seeds: Seeds) -> None:
        self.domain, self.planner, self.error_rate = planner.domain, planner, error_rate
        self._seeds = seeds.child("plan_errors")

    def plans(self, sentences: Sequence[str]) -> list[PlanDistribution]:
        return [
            self._sample_replacement_plan(sentence) or plans
            for sentence, plans in zip(sentences, self.planner.plans(sentences), strict=True)
        ]

    def describe(self) -> dict[str, str]:
        return self.planner.describe() | {"plan errors": f"{self.error_rate:.0%} of the states, one random step each"}

    def metrics(self) -> dict[str, float]:
        return self.planner.metrics()

    def _sample_replacement_plan(self, sentence: str) -> PlanDistribution | None:
        """Return the random plan that replaces the plans of a sentence; None if they are not replaced."""
        rng = self._seeds.numpy(sentence)
        if rng.random() >= self.error_rate:
            return None
        objects = self.domain.objects(sentence)
        candidate_steps = [
            PlanStep(skill.name, target)
            for skill in self.domain.skills
            for target in (objects if skill.takes_object else ("",))
        ]
        return (((candidate_steps[rng.integers(len(candidate_steps))],), 1.0),)


def normalize_weights(weighted_plans: Sequence[tuple[Plan, float]]) -> PlanDistribution:
    """Return the distribution over distinct plans that is proportional to the sum of each plan's weights."""
    weight_by_plan: dict[Plan, float] = {}
    for plan, weight in weighted_plans:
        weight_by_plan[plan] = weight_by_plan.get(plan, 0.0) + weight
    total = sum(weight_by_plan.values())
    return tuple((plan, weight / total) for plan, weight in sorted(weight_by_plan.items(), key=lambda pair: -pair[1]))
