"""What the validation episodes of one proposal say: the outcome a proposer is told, and what is logged of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.objectives import Objective
from llmrl.core.records import Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.loops.welfare import judged, measures


@dataclass
class Score:
    """A proposal's outcome, the episodes it was measured in, and the objective in each of its societies."""

    outcome: Outcome
    episodes: list[Episode]
    societies: list[float]


def score(
    vector: np.ndarray,
    rollouts: Sequence[Rollout],
    spec: EnvSpec,
    context: int | None,
    objective: Objective,
    spending_cost: float,
    societies: int = 1,
    draw: str | None = None,
) -> Score:
    """Score `vector` by the episodes that ended in `rollouts`, all played under it; `draw` names their random numbers.

    Rollouts of several societies come society by society, as many of each. Then the value is the mean over societies,
    each weighing the same, and its standard error is that of a mean of as many numbers: societies that learn under one
    proposal differ by more than chance among the episodes of any one of them.
    """
    each_of = len(rollouts) // societies
    starts = range(0, len(rollouts), each_of)
    played = [[episode for r in rollouts[i : i + each_of] for episode in r.episodes] for i in starts]
    episodes = [episode for each in played for episode in each]
    found = measures(episodes, objective)
    values = judged(found, objective, spending_cost)
    ends = np.cumsum([len(each) for each in played])
    means = np.array([part.mean() for part in np.split(values, ends[:-1])])
    outcome = Outcome(
        vector=vector,
        value=float(means.mean()),
        values=values,
        standard_error=standard_error_of_mean(means if societies > 1 else values),
        context=context,
        returns=np.mean([episode.base_returns for episode in episodes], axis=0),
        trajectories={n: np.mean([r.info[n].mean(1) for r in rollouts], axis=0) for n in spec.told},
        summaries={n: float(np.mean([e.summaries[n] for e in episodes])) for n in spec.told},
        welfare={name: float(x.mean()) for name, x in found.items()},
        units=societies,
        draw=draw,
    )
    return Score(outcome, episodes, means.tolist())


def proposal_metrics(scores: Sequence[Score], mechanism: ParameterSpace) -> dict[str, float]:
    """`principal/objective` (and that of each society, where there are several) and `welfare/...`, means over the
    proposals of a step, and the numbers of its best."""
    outcomes = [each.outcome for each in scores]
    best = max(outcomes, key=lambda outcome: outcome.value)
    metrics = {f"principal/{name}": float(x) for name, x in zip(mechanism.names, best.vector, strict=True)}
    metrics["principal/objective"] = float(np.mean([outcome.value for outcome in outcomes]))
    by_society = np.mean([each.societies for each in scores], axis=0)
    if len(by_society) > 1:
        metrics |= {f"principal/objective_society_{i}": float(x) for i, x in enumerate(by_society)}
    for name in best.welfare:
        metrics[f"welfare/{name}"] = float(np.mean([outcome.welfare[name] for outcome in outcomes]))
    if len(outcomes) > 1:
        metrics["principal/best_of_step"] = best.value
    if best.context is not None:
        metrics["principal/context"] = float(best.context)
    return metrics
