"""Scores of vectors in the validation episodes of a design run: outcomes for the proposer, metrics, and the history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llmrl.core.pooling import PooledEstimates, key_of
from llmrl.core.records import Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import judged, measures
from llmrl.statistics.estimators import standard_error_of_mean


@dataclass
class Score:
    """The score of a vector in one trial.

    Attributes:
        outcome: outcome for the proposer.
        episodes: validation episodes.
        societies: objective of each society.
        validated: objective by number of adaptation rounds, with the last; empty without `design.validation_rounds`.
    """

    outcome: Outcome
    episodes: list[Episode]
    societies: list[float]
    validated: dict[int, float] = field(default_factory=dict)


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
    """Return the score of `vector` from the episodes that ended in `rollouts`, all played under it.

    Rollouts of several societies come society by society, as many of each. Then the value is the mean over societies,
    each with equal weight, and its standard error is that of a mean over societies: societies that learn under one
    proposal differ by more than the episodes of any one of them.

    Args:
        vector: mechanism vector, [d].
        rollouts: validation rollouts.
        spec: specification of the environment.
        context: context index; None without contexts.
        objective: welfare measure of a society.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        societies: number of societies.
        draw: name of the random numbers (`Outcome.draw`).
    """
    group_size = len(rollouts) // societies
    starts = range(0, len(rollouts), group_size)
    groups = [[episode for r in rollouts[i : i + group_size] for episode in r.episodes] for i in starts]
    episodes = [episode for group in groups for episode in group]
    welfare = measures(episodes, objective)
    values = judged(welfare, objective, spending_cost)
    ends = np.cumsum([len(group) for group in groups])
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
        welfare={name: float(x.mean()) for name, x in welfare.items()},
        units=societies,
        draw=draw,
    )
    return Score(outcome, episodes, means.tolist())


def proposal_metrics(scores: Sequence[Score], mechanism: ParameterSpace) -> dict[str, float]:
    """Return the metrics of the proposals of a step: means over proposals, and the vector of the best one.

    They are `principal/objective` (also of each society, if there are several) and `welfare/...`.
    """
    outcomes = [proposal.outcome for proposal in scores]
    best = max(outcomes, key=lambda outcome: outcome.value)
    metrics = {f"principal/{name}": float(x) for name, x in zip(mechanism.names, best.vector, strict=True)}
    metrics["principal/objective"] = float(np.mean([outcome.value for outcome in outcomes]))
    by_society = np.mean([proposal.societies for proposal in scores], axis=0)
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
    """The measurements of a run, and the pooled estimate of each vector in each context.

    Args:
        spec: specification of an environment that has a mechanism.
        episodes: validation episodes of a society in one measurement.

    Attributes:
        proposals: rows of a summary's `history`, one a proposal, in order.
        confirmations: rows of a summary's `confirmations`, in order.
        estimates: pooled estimates of all rows, by context index; they follow from the rows.
    """

    def __init__(self, spec: EnvSpec, episodes: int) -> None:
        self.spec, self.episodes = spec, episodes
        self.proposals: list[dict[str, Any]] = []
        self.confirmations: list[dict[str, Any]] = []
        self.estimates = PooledEstimates()

    @property
    def measurements(self) -> int:
        return len(self.proposals) + len(self.confirmations)

    def add(self, step: int, scores: Sequence[Score], repetitions: Sequence[int], confirmed: bool = False) -> None:
        """Record the scores of a step.

        Args:
            step: number of the step, from 1.
            scores: score of each candidate.
            repetitions: for each score, how many earlier candidates of the step have the same vector.
            confirmed: whether the step confirms candidates.
        """
        for i, (proposal, repetition) in enumerate(zip(scores, repetitions, strict=True)):
            outcome = proposal.outcome
            row = {
                "step": step,
                "candidate": i,
                "objective": outcome.value,
                "standard_error": outcome.standard_error,
                "values": outcome.values.tolist(),
                **({"societies": proposal.societies} if len(proposal.societies) > 1 else {}),
                **({"repetition": repetition} if repetition and not confirmed else {}),
                **(
                    {"validated": {str(n): value for n, value in proposal.validated.items()}}
                    if proposal.validated
                    else {}
                ),
                "mechanism": self._mechanism(outcome.vector),
                "context": None if outcome.context is None else self.spec.contexts[outcome.context],
            }
            self.add_row(row, confirmed)

    def describe(self, vector: Sequence[float] | np.ndarray, context: int | None) -> dict[str, Any]:
        """Return the fields `mechanism` and `context` of a vector's rows."""
        name = None if context is None else self.spec.contexts[context]
        return {"mechanism": self._mechanism(np.asarray(vector)), "context": name}

    def objective_range(self, context: int | None) -> float:
        """Return the range of the estimates of a context; 0 without estimates."""
        values = [estimate.value for estimate in self.estimates.ranked(context)]
        return max(values) - min(values) if values else 0.0

    def add_row(self, row: dict[str, Any], is_confirmation: bool) -> None:
        """Add a row of `history`, or of `confirmations`."""
        (self.confirmations if is_confirmation else self.proposals).append(row)
        units, vector = len(row.get("societies", [0])), list(row["mechanism"].values())
        context = None if row["context"] is None else self.spec.contexts.index(row["context"])
        # Confirmations draw random numbers of their own.
        draw = None if is_confirmation else draw_name(row["step"], row.get("repetition", 0))
        numbers = (row["objective"], row["standard_error"], units, units * self.episodes)
        self.estimates.add(vector, *numbers, context, draw)

    def _mechanism(self, vector: np.ndarray) -> dict[str, float]:
        assert self.spec.mechanism is not None
        return dict(zip(self.spec.mechanism.names, vector.tolist(), strict=True))


def draw_name(step: int, repetition: int) -> str:
    """Return the name of the random numbers of a proposal's measurement (`Outcome.draw`)."""
    return f"step {step}" + (f", repetition {repetition}" if repetition else "")


def n_earlier_occurrences(vectors: np.ndarray) -> list[int]:
    """Return, for each vector of [n, d], how many earlier vectors are equal to it.

    >>> n_earlier_occurrences(np.array([[0.0], [1.0], [0.0], [0.0]]))
    [0, 0, 1, 2]
    """
    counts: dict[tuple[float, ...], int] = {}
    repetitions = []
    for vector in vectors:
        key = key_of(vector)
        repetitions.append(counts.get(key, 0))
        counts[key] = repetitions[-1] + 1
    return repetitions
