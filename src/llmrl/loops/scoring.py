"""What the validation episodes of one proposal say: the outcome a proposer is told, and what is logged of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.records import Outcome
from llmrl.core.spaces import EnvSpec, Objective, ParameterSpace
from llmrl.learners.rollout import Episode, Rollout
from llmrl.loops.welfare import judged, measures


@dataclass
class Score:
    """A proposal's outcome, and the episodes it was measured in."""

    outcome: Outcome
    episodes: list[Episode]


def score(
    vector: np.ndarray,
    rollouts: Sequence[Rollout],
    spec: EnvSpec,
    context: int | None,
    objective: Objective,
    spending_cost: float,
) -> Score:
    """Score `vector` by the episodes that ended in `rollouts`, all played under it."""
    episodes = [episode for rollout in rollouts for episode in rollout.episodes]
    found = measures(episodes)
    values = judged(found, objective, spending_cost)
    outcome = Outcome(
        vector=vector,
        value=float(values.mean()),
        values=values,
        standard_error=standard_error_of_mean(values),
        context=context,
        returns=np.mean([episode.base_returns for episode in episodes], axis=0),
        trajectories={n: np.mean([r.info[n].mean(1) for r in rollouts], axis=0) for n in spec.metrics},
        summaries={n: float(np.mean([e.summaries[n] for e in episodes])) for n in spec.metrics},
        welfare={name: float(x.mean()) for name, x in found.items()},
    )
    return Score(outcome, episodes)


def proposal_metrics(scores: Sequence[Score], mechanism: ParameterSpace) -> dict[str, float]:
    """`principal/objective` and `welfare/...`, means over the proposals of a step, and the numbers of its best."""
    outcomes = [each.outcome for each in scores]
    best = max(outcomes, key=lambda outcome: outcome.value)
    metrics = {f"principal/{name}": float(x) for name, x in zip(mechanism.names, best.vector, strict=True)}
    metrics["principal/objective"] = float(np.mean([outcome.value for outcome in outcomes]))
    for name in best.welfare:
        metrics[f"welfare/{name}"] = float(np.mean([outcome.welfare[name] for outcome in outcomes]))
    if len(outcomes) > 1:
        metrics["principal/best_of_step"] = best.value
    if best.context is not None:
        metrics["principal/context"] = float(best.context)
    return metrics
