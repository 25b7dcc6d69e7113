"""Kinds and counters of rows of metrics, and metrics of an episode that are derived from per-step metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

RowKind = Literal[
    "update", "adaptation", "proposal", "confirmation", "recommendation", "episode", "evaluation", "probe"
]
"""Kind of a row of metrics.

- update: one or several updates of an agent's weights, and the rollouts they used.
- adaptation: a round in which a society plays under a mechanism and is updated.
- proposal: the last proposals, their outcomes, and the metrics of the proposer.
- episode: all episodes so far of agents that only play; of a library's learner, the episodes since the last row.
- confirmation: a principal step that measured the leading candidates again; a repeated measurement of a search.
- recommendation: the evaluation of the vectors that a principal recommends after some measurements.
- evaluation: agents, or the result of a search, measured without learning.
- probe: probabilities of actions for a fixed set of observations.
"""
CounterName = Literal[
    "env_steps",
    "updates",
    "rounds",
    "proposals",
    "measurements",
    "principal_steps",
    "iterations",
    "episodes",
    "samples",
]
"""Counters of rows of metrics, from the beginning of the run.

- env_steps: environment steps, summed over games, that were played for learning or for evaluating proposals.
- updates: updates of an agent's weights.
- rounds: adaptation rounds, over all principal steps.
- proposals: vectors evaluated, including random ones before a search.
- measurements: vectors evaluated by the steps of a principal, confirmations included.
- principal_steps, iterations: calls of a principal's `ask`, in mechanism design and in policy search.
- episodes: finished episodes.
- samples: recorded steps that an imitator was trained on, counted with repetitions.
"""


StepMetrics = Mapping[str, Any]
"""Per-step metrics by name, arrays or tensors of one shape."""


@dataclass(frozen=True)
class RatioOfTotals:
    """Sum of one metric over an episode, divided by the sum of another."""

    numerator: str
    denominator: str

    def summands(self, rows: StepMetrics, step: Any) -> tuple[Any, Any]:
        """Return the summands of numerator and denominator, of the shape of `step` (index in the episode, from 0)."""
        return rows[self.numerator], rows[self.denominator]


@dataclass(frozen=True)
class WeightedMeanStep:
    """Mean index of the steps of an episode, from 1, weighted by a metric."""

    weight: str

    def summands(self, rows: StepMetrics, step: Any) -> tuple[Any, Any]:
        """Return the summands of numerator and denominator, as in `RatioOfTotals`."""
        return rows[self.weight] * (step + 1), rows[self.weight]


@dataclass(frozen=True)
class MeanWithinSteps:
    """Mean of a metric over the steps `start` <= t < `stop` of the episode, counted from 0."""

    metric: str
    start: int
    stop: int

    def summands(self, rows: StepMetrics, step: Any) -> tuple[Any, Any]:
        """Return the summands of numerator and denominator, as in `RatioOfTotals`."""
        mask = (step >= self.start) & (step < self.stop)
        return rows[self.metric] * mask, mask


DerivedMetric = RatioOfTotals | WeightedMeanStep | MeanWithinSteps


def derive_quarter_means(metric: str, horizon: int) -> dict[str, MeanWithinSteps]:
    """Return the means of a metric over the quarters of the horizon, as `<metric>_quarter_1` to `_4`."""
    edges = [horizon * k // 4 for k in range(5)]
    return {f"{metric}_quarter_{k + 1}": MeanWithinSteps(metric, edges[k], edges[k + 1]) for k in range(4)}
