"""Results of a mechanism design run: scores of vectors, history of measurements, recommendations, and summary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from llmrl.core.pooling import PooledEstimates, make_vector_key
from llmrl.core.protocols import Proposer, Recommender
from llmrl.core.records import Outcome, State
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.core.welfare_measures import Objective
from llmrl.loops.recommendation import Confirmation, Context, RecommendationEvaluator, VectorEvaluation
from llmrl.rollout.episode_summaries import compute_objective_from_welfare, compute_welfare
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.statistics.estimators import standard_error_of_mean


@dataclass
class TrialScore:
    """Score of a vector in one trial.

    Attributes:
        outcome: outcome that the principal receives.
        episodes: validation episodes.
        society_values: mean objective of each society, [n_societies].
        value_by_rounds: from the number of adaptation rounds before a validation to its objective, for every validation
            of the trial; empty without `design.validation_rounds`.
        kind_returns_by_rounds: from the same numbers to the mean return of each kind of players; empty unless the
            society has several kinds (`EnvSpec.kinds`).
    """

    outcome: Outcome
    episodes: list[Episode]
    society_values: list[float]
    value_by_rounds: dict[int, float] = field(default_factory=dict)
    kind_returns_by_rounds: dict[int, dict[str, float]] = field(default_factory=dict)

    def kind_returns(self, spec: EnvSpec) -> dict[str, float]:
        """Return the mean return of each kind of players, payments of the mechanism included; {} without kinds."""
        return {
            name: float(np.mean([episode.summaries[f"return_{name}"] for episode in self.episodes]))
            for name in spec.kinds
        }


def score_vector(
    vector: np.ndarray,
    rollouts: Sequence[Rollout],
    spec: EnvSpec,
    context: int | None,
    objective: Objective,
    spending_cost: float,
    n_societies: int = 1,
    draw: str | None = None,
) -> TrialScore:
    """Return the score of `vector` from the episodes that ended in `rollouts`.

    With several societies, the value is the mean of the societies' means, and its standard error is computed over
    societies instead of episodes, because episodes of one society are more similar than episodes of different ones.

    Args:
        vector: mechanism vector, [d].
        rollouts: rollouts under this vector: all of the first society, then equally many of the second, and so on.
        spec: specification of the environment.
        context: context index; None without contexts.
        objective: welfare measure of a society.
        spending_cost: loss of welfare for each unit of reward that the mechanism pays out beyond what it takes.
        n_societies: number of societies.
        draw: identifier of the random numbers of the measurement (`Outcome.draw`).
    """
    rollouts_per_society = len(rollouts) // n_societies
    society_rollouts = [rollouts[i : i + rollouts_per_society] for i in range(0, len(rollouts), rollouts_per_society)]
    society_episodes = [[episode for rollout in group for episode in rollout.episodes] for group in society_rollouts]
    episodes = [episode for group in society_episodes for episode in group]
    welfare = compute_welfare(episodes, objective)
    values = compute_objective_from_welfare(welfare, objective, spending_cost)
    society_ends, metric_names = np.cumsum([len(group) for group in society_episodes]), list(spec.principal_metrics)
    means = np.array([society_values.mean() for society_values in np.split(values, society_ends[:-1])])
    outcome = Outcome(
        vector=vector,
        value=float(means.mean()),
        values=values,
        standard_error=standard_error_of_mean(means if n_societies > 1 else values),
        context=context,
        returns=np.mean([episode.base_returns for episode in episodes], axis=0),
        net_returns=np.mean([episode.returns for episode in episodes], axis=0),
        trajectories={k: np.mean([rollout.info[k].mean(1) for rollout in rollouts], axis=0) for k in metric_names},
        summaries={k: float(np.mean([episode.summaries[k] for episode in episodes])) for k in metric_names},
        welfare={name: float(x.mean()) for name, x in welfare.items()},
        n_units=n_societies,
        draw=draw,
    )
    return TrialScore(outcome, episodes, means.tolist())


def compute_proposal_metrics(scores: Sequence[TrialScore], mechanism: ParameterSpace) -> dict[str, float]:
    """Return the metrics of the proposals of a step.

    Objectives (`principal/objective...`) and `welfare/...` are means over proposals; `principal/<parameter>` is the
    value of each mechanism parameter in the best proposal.
    """
    outcomes = [score.outcome for score in scores]
    best = max(outcomes, key=lambda outcome: outcome.value)
    metrics = {f"principal/{name}": float(x) for name, x in zip(mechanism.names, best.vector, strict=True)}
    metrics["principal/objective"] = float(np.mean([outcome.value for outcome in outcomes]))
    society_means = np.mean([score.society_values for score in scores], axis=0)
    if len(society_means) > 1:
        metrics |= {f"principal/objective_society_{i}": float(x) for i, x in enumerate(society_means)}
    metrics |= {f"welfare/{name}": float(np.mean([x.welfare[name] for x in outcomes])) for name in best.welfare}
    if len(outcomes) > 1:
        metrics["principal/best_of_step"] = best.value
    if best.context is not None:
        metrics["principal/context"] = float(best.context)
    return metrics


class DesignHistory:
    """Measurements of a run, and the pooled estimate of each vector in each context.

    Args:
        spec: specification of an environment that has a mechanism.
        n_episodes: number of validation episodes of each society in one measurement.

    Attributes:
        proposals: rows of `history` in `summary.json`, one for each proposal, in order of time.
        confirmations: rows of `confirmations` in `summary.json`, one for each measurement, in order of time.
        estimates: estimates pooled over the rows above, with context indices.
    """

    def __init__(self, spec: EnvSpec, n_episodes: int) -> None:
        self.spec, self.n_episodes = spec, n_episodes
        self.proposals: list[dict[str, Any]] = []
        self.confirmations: list[dict[str, Any]] = []
        self.estimates = PooledEstimates()

    @property
    def n_measurements(self) -> int:
        return len(self.proposals) + len(self.confirmations)

    def add(
        self, step: int, scores: Sequence[TrialScore], repetitions: Sequence[int], is_confirmation: bool = False
    ) -> None:
        """Record the scores of a step.

        Args:
            step: number of the step, from 1.
            scores: score of each candidate.
            repetitions: `Trial.draws`; of a proposal, the number of earlier candidates of the step with its vector.
            is_confirmation: whether the step measures leading candidates again instead of new proposals.
        """
        for i, (score, repetition) in enumerate(zip(scores, repetitions, strict=True)):
            outcome = score.outcome
            row = {
                "step": step,
                "candidate": i,
                "objective": outcome.value,
                "standard_error": outcome.standard_error,
                "values": outcome.values.tolist(),
                **({"societies": score.society_values} if len(score.society_values) > 1 else {}),
                **({"repetition": repetition} if repetition and not is_confirmation else {}),
                **(
                    {"validated": {str(n): value for n, value in score.value_by_rounds.items()}}
                    if score.value_by_rounds
                    else {}
                ),
                **(
                    {"kinds": {str(n): returns for n, returns in score.kind_returns_by_rounds.items()}}
                    if score.kind_returns_by_rounds
                    else {}
                ),
                **self.describe(outcome.vector, outcome.context),
            }
            self.add_row(row, is_confirmation)

    def describe(self, vector: Sequence[float] | np.ndarray, context: int | None) -> dict[str, Any]:
        """Return the keys `mechanism` and `context` that identify a vector in rows and summaries."""
        assert self.spec.mechanism is not None
        values = dict(zip(self.spec.mechanism.names, np.asarray(vector).tolist(), strict=True))
        return {"mechanism": values, "context": self.spec.get_context_name(context)}

    def compute_objective_range(self, context: int | None) -> float:
        """Return the difference between the highest and the lowest estimate of a context; 0 without estimates."""
        values = [estimate.value for estimate in self.estimates.ranked(context)]
        return max(values) - min(values) if values else 0.0

    def add_row(self, row: dict[str, Any], is_confirmation: bool) -> None:
        """Append a row of `history`, or of `confirmations`, and update the estimates."""
        (self.confirmations if is_confirmation else self.proposals).append(row)
        n_societies, vector = len(row.get("societies", [0])), list(row["mechanism"].values())
        context = None if row["context"] is None else self.spec.contexts.index(row["context"])
        # No two confirmations share random numbers, so each counts as an independent measurement.
        draw = None if is_confirmation else format_draw_name(row["step"], row.get("repetition", 0))
        measurement = (row["objective"], row["standard_error"], n_societies, n_societies * self.n_episodes)
        self.estimates.add(vector, *measurement, context, draw)


def format_draw_name(step: int, repetition: int) -> str:
    """Return the identifier of the random numbers with which a proposal is measured (`Outcome.draw`)."""
    return f"step {step}" + (f", repetition {repetition}" if repetition else "")


def count_earlier_occurrences(vectors: np.ndarray) -> list[int]:
    """Return the number of equal vectors before each vector of [n, d].

    >>> count_earlier_occurrences(np.array([[0.0], [1.0], [0.0], [0.0]]))
    [0, 0, 1, 2]
    """
    keys = [make_vector_key(vector) for vector in vectors]
    return [keys[:i].count(key) for i, key in enumerate(keys)]


class DesignResults:
    """Results of a design run so far.

    Args:
        spec: specification of an environment that has a mechanism.
        n_episodes: number of validation episodes of each society in one measurement.
        n_societies: number of societies under each vector.

    Attributes:
        history: measurements of the principal's steps.
        confirmation: confirmation of leading candidates; None before it begins.
        recommendations: from the number of measurements at the time of a recommendation to the vector of each context.
        evaluator: evaluations of the recommendations; None before they begin.
    """

    def __init__(self, spec: EnvSpec, n_episodes: int, n_societies: int) -> None:
        assert spec.mechanism is not None
        self.mechanism = spec.mechanism
        self.contexts: list[Context] = list(range(len(spec.contexts))) or [None]
        self.n_societies = n_societies
        self.history = DesignHistory(spec, n_episodes)
        self.confirmation: Confirmation | None = None
        self.recommendations: dict[int, dict[Context, np.ndarray]] = {}
        self.evaluator: RecommendationEvaluator | None = None

    @property
    def n_evaluation_trials(self) -> int:
        return 0 if self.evaluator is None else self.evaluator.n_trials

    def rank_candidates(self, principal: Proposer, context: Context) -> np.ndarray:
        """Return the ranking of a context (function `rank_candidates`) from all measurements so far, [m, d]."""
        return rank_candidates(principal, self.mechanism, self.history.estimates, context)

    def recommend(self, principal: Proposer) -> None:
        """Record the principal's recommendation in each context, from all measurements so far."""
        if self.evaluator is None:
            self.recommendations[self.history.n_measurements] = {
                context: choose_recommendation(
                    self.rank_candidates(principal, context), principal, self.confirmation, context
                )
                for context in self.contexts
            }

    def summary(self, n_last_proposals: int) -> tuple[dict[str, Any], float]:
        """Return the JSON-serializable summary of a finished run, and the result of the run.

        The result is the mean over contexts of the evaluated objective of the recommendations. Without evaluations it
        is the online performance, the mean objective of the last `n_last_proposals` proposals.

        Args:
            n_last_proposals: number of proposals in the last fifth of the steps in which the principal proposes.
        """
        history, evaluations, scores = self.history, self._get_final_evaluations(), dict[str, Any]()
        online_performance = float(np.mean([row["objective"] for row in history.proposals[-n_last_proposals:]]))
        if self.evaluator is not None:
            evaluation_summary = self.evaluator.summary(history.n_measurements)
            scores["recommendation"] = evaluation_summary["objective"]
            scores["recommendation_standard_error"] = evaluation_summary.get("standard_error")
            episodes = [returns for evaluation in evaluations.values() for returns in evaluation.episodes]
        else:
            values_by_proposal = [
                np.array_split(row["values"], self.n_societies) for row in history.proposals[-n_last_proposals:]
            ]
            episodes = [np.concatenate(society).tolist() for society in zip(*values_by_proposal, strict=True)]
        summary = {
            **scores,
            "online_performance": online_performance,
            "proposals": len(history.proposals),
            "confirmed": len(history.confirmations),
            "measurements": history.n_measurements,
            "recommendations": self._summarize_recommendations(evaluations),
            "history": history.proposals,
            "confirmations": history.confirmations,
            RESULT_EPISODES: episodes,
        }
        return summary, float(scores.get("recommendation", online_performance))

    def describe_recommendations(self) -> list[dict[str, Any]]:
        """Return the `mechanism` and `context` of the recommendation of each context, highest estimate first.

        If none was recorded after the last measurement, it is the vector with the highest mean over its measurements.
        """
        recommendations = self.recommendations.get(self.history.n_measurements)
        if recommendations is None:
            leading = [
                estimate for context in self.contexts if (estimate := self.history.estimates.best(context)) is not None
            ]
            vectors = [(np.array(estimate.vector), cast(Context, estimate.context)) for estimate in leading]
        else:
            vectors = [(vector, context) for context, vector in recommendations.items()]
        ranked = sorted(vectors, key=lambda pair: self._get_sort_key(*pair), reverse=True)
        return [self.history.describe(vector, context) for vector, context in ranked]

    def _get_final_evaluations(self) -> dict[Context, VectorEvaluation]:
        """Return the evaluations of the last recommendations by context; empty if there are none."""
        n = self.history.n_measurements
        if self.evaluator is None or n not in self.evaluator.recommendations:
            return {}
        return self.evaluator.evaluations_by_context(n)

    def _summarize_recommendations(self, evaluations: dict[Context, VectorEvaluation]) -> list[dict[str, Any]]:
        """Return the rows of `recommendations`, one for each context, best first."""
        rows = []
        estimates = self.history.estimates
        for context, vector in self.recommendations[self.history.n_measurements].items():
            evaluation, n_measurements = evaluations.get(context), estimates.count(vector, context)
            row = {
                "objective": None if evaluation is None else evaluation.mean,
                "standard_error": None if evaluation is None else evaluation.standard_error,
                "evaluations": 0 if evaluation is None else len(evaluation.values),
                "values": [] if evaluation is None else list(evaluation.values),
                "measurements": n_measurements,
                "measured": estimates.get(vector, context).value if n_measurements else None,
            }
            rows.append((self._get_sort_key(vector, context), self.history.describe(vector, context) | row))
        return [row for _, row in sorted(rows, key=lambda pair: pair[0], reverse=True)]

    def _get_sort_key(self, vector: np.ndarray, context: Context) -> tuple[bool, float]:
        """Return the descending sort key of a recommendation: measured vectors come first, then higher estimates."""
        return self.history.estimates.count(vector, context) > 0, self._get_best_estimate(vector, context)

    def _get_best_estimate(self, vector: np.ndarray, context: Context) -> float:
        """Return the mean of a vector's evaluations; without these, of its measurements; without both, -inf."""
        evaluation = self._get_final_evaluations().get(context)
        if evaluation is not None and evaluation.values:
            return evaluation.mean
        estimates = self.history.estimates
        return estimates.get(vector, context).value if estimates.count(vector, context) else -np.inf

    def state_dict(self) -> State:
        """Return the results. Besides resumed runs, `llmrl-evaluate` reads the keys `history` and `recommended`."""
        return {
            "history": self.history.proposals,
            "confirmations": self.history.confirmations,
            "confirmation": None if self.confirmation is None else self.confirmation.state_dict(),
            "recommendations": [
                [n, [[context, vector] for context, vector in vectors.items()]]
                for n, vectors in self.recommendations.items()
            ],
            "recommended": self.describe_recommendations(),
            "evaluator": None if self.evaluator is None else self.evaluator.state_dict(),
        }

    def load_state_dict(self, state: State) -> None:
        for name, is_confirmation in (("history", False), ("confirmations", True)):
            for row in state[name]:
                self.history.add_row(row, is_confirmation)
        if state["confirmation"] is not None:
            self.confirmation = Confirmation.from_state(state["confirmation"])
        self.recommendations = {n: dict(vectors) for n, vectors in state["recommendations"]}
        if state["evaluator"] is not None:
            self.evaluator = RecommendationEvaluator.from_state(state["evaluator"])


def rank_candidates(
    principal: Proposer, mechanism: ParameterSpace, estimates: PooledEstimates, context: Context
) -> np.ndarray:
    """Return the distinct candidates of a context, best first, [m, d] with m >= 1.

    Vectors that the principal recommends (`Recommender.recommend`) come first, in its order. All other measured vectors
    follow, by descending mean of their measurements. If there are none, the only candidate is the neutral vector.
    """
    vectors = [estimate.vector for estimate in estimates.ranked(context)]
    if isinstance(principal, Recommender):
        leading = np.asarray(principal.recommend(context, max(1, len(vectors)), estimates), dtype=np.float64)
        vectors = [*map(tuple, leading.tolist()), *vectors]
    vectors = list(dict.fromkeys(vectors)) or [tuple(mechanism.neutral.tolist())]
    return np.array(vectors, dtype=np.float64)


def choose_recommendation(
    candidates: np.ndarray, principal: Proposer, confirmation: Confirmation | None, context: Context
) -> np.ndarray:
    """Return the recommendation of a context, [d].

    Before confirmation it is the first of `candidates`, the ranking of `rank_candidates`. After confirmation it is a
    survivor: the first in this ranking if the principal has received the confirmations (`learns_from_others`),
    otherwise the survivor with the highest mean over all its measurements.
    """
    survivors = None if confirmation is None else confirmation.surviving_vectors(context)
    if survivors is None:
        return np.array(candidates[0])
    leading = candidates.tolist() if getattr(principal, "learns_from_others", False) else []
    return np.array(next((vector for vector in leading if vector in survivors.tolist()), survivors[0]))
