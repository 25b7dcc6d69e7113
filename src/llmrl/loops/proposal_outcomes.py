"""What proposals of a design run score in their validation episodes: the outcome that a proposer is told, what is
logged of it, and the history of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.pooling import PooledEstimates
from llmrl.core.records import Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import judged, measures


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
        net_returns=np.mean([episode.returns for episode in episodes], axis=0),
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


class DesignHistory:
    """The rows of a summary's `history`, and what all measurements say of each vector in each context.

    Args:
        spec: of the environment, which has a mechanism.
        episodes: of a society that a measurement is the mean over.

    Attributes:
        rows: one a proposal, in their order.
        pool: of what the rows say; follows from them.
    """

    def __init__(self, spec: EnvSpec, episodes: int) -> None:
        self.spec, self.episodes = spec, episodes
        self.rows: list[dict[str, Any]] = []
        self.pool = PooledEstimates()

    def add(self, step: int, scores: Sequence[Score]) -> None:
        """Write down what the proposals of `step`, counted from 1, scored."""
        for i, each in enumerate(scores):
            outcome = each.outcome
            row = {
                "step": step,
                "candidate": i,
                "objective": outcome.value,
                "standard_error": outcome.standard_error,
                "values": outcome.values.tolist(),
                **({"societies": each.societies} if len(each.societies) > 1 else {}),
                "mechanism": self._mechanism(outcome.vector),
                "context": None if outcome.context is None else self.spec.contexts[outcome.context],
            }
            self.restore([row])

    def restore(self, rows: Sequence[dict[str, Any]]) -> None:
        """Take in rows as they were written down."""
        for row in rows:
            self.rows.append(row)
            units, vector = len(row.get("societies", [0])), list(row["mechanism"].values())
            told = (row["objective"], row["standard_error"], units, units * self.episodes)
            self.pool.add(vector, *told, row["context"], f"step {row['step']}")

    def row(self, vector: Sequence[float] | np.ndarray, context: int | str | None) -> dict[str, Any]:
        """What every row of a summary says of a vector."""
        return {"mechanism": self._mechanism(np.asarray(vector)), "context": context}

    def best(self) -> list[dict[str, Any]]:
        """The best proposal of each context by what the steps measured."""
        found = [best for context in self.pool.contexts if (best := self.pool.best(context)) is not None]
        return [
            self.row(each.vector, each.context)
            | {"objective": each.value, "standard_error": each.standard_error, "measurements": each.measurements}
            for each in found
        ]

    def contestants(self, n: int) -> dict[int | str | None, list[Sequence[float]]]:
        """The vectors of the `n` highest estimates of each context, highest first."""
        return {c: [each.vector for each in self.pool.ranked(c)[:n]] for c in self.pool.contexts}

    @property
    def several(self) -> bool:
        """Whether there is something to choose from in a context."""
        return any(len(self.pool.ranked(context)) > 1 for context in self.pool.contexts)

    def _mechanism(self, vector: np.ndarray) -> dict[str, float]:
        assert self.spec.mechanism is not None
        return dict(zip(self.spec.mechanism.names, vector.tolist(), strict=True))
