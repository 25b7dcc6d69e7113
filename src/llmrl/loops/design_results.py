"""Results of a design run: its measurements, recommendations and evaluations, and their summary."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.protocols import Proposer, Recommender
from llmrl.core.records import State
from llmrl.core.spaces import EnvSpec, ParameterSpace
from llmrl.loops.proposal_outcomes import DesignHistory
from llmrl.loops.recommendation import Confirmation, Context, RecommendationEvaluator, VectorEvaluation
from llmrl.run.artifacts import RESULT_EPISODES


class DesignResults:
    """Results of a design run so far.

    Args:
        spec: specification of the environment, which has a mechanism.
        episodes: validation episodes of a society in one measurement.
        societies: societies under each vector.

    Attributes:
        history: measurements of the principal's steps.
        confirmation: confirmation of leading candidates; None before it begins.
        recommendations: by number of measurements: the recommended vector of each context, [d].
        evaluator: evaluations of the recommendations; None before they begin.
    """

    def __init__(self, spec: EnvSpec, episodes: int, societies: int) -> None:
        assert spec.mechanism is not None
        self.mechanism = spec.mechanism
        self.contexts: list[Context] = list(range(len(spec.contexts))) or [None]
        self.societies = societies
        self.history = DesignHistory(spec, episodes)
        self.confirmation: Confirmation | None = None
        self.recommendations: dict[int, dict[Context, np.ndarray]] = {}
        self.evaluator: RecommendationEvaluator | None = None

    @property
    def evaluation_trials(self) -> int:
        return 0 if self.evaluator is None else self.evaluator.trials

    def ranking(self, principal: Proposer, context: Context) -> np.ndarray:
        """Return the candidates of a context by the principal's rule, best first, [m, d]."""
        return ranking(principal, self.mechanism, self.history.estimates, context)

    def recommend(self, principal: Proposer) -> None:
        """Record the principal's recommendation in each context, from all measurements so far."""
        if self.evaluator is None:
            self.recommendations[self.history.measurements] = {
                context: recommended(self.ranking(principal, context), principal, self.confirmation, context)
                for context in self.contexts
            }

    def summary(self, last: int) -> tuple[dict[str, Any], float]:
        """Return the scores, recommendations and measurements of a finished run as plain data, and its result.

        The result is the mean evaluated objective of the recommendations over contexts, or the online performance if
        they are not evaluated. The online performance is the mean objective of the last proposals.

        Args:
            last: number of proposals in the last fifth of the proposing steps.
        """
        history, evaluations, scores = self.history, self._evaluations(), dict[str, Any]()
        online = float(np.mean([row["objective"] for row in history.proposals[-last:]]))
        if self.evaluator is not None:
            final = self.evaluator.summary(history.measurements)
            scores["recommendation"] = final["objective"]
            scores["recommendation_standard_error"] = final.get("standard_error")
            episodes = [part for evaluation in evaluations.values() for part in evaluation.episodes]
        else:
            society_returns = [np.array_split(row["values"], self.societies) for row in history.proposals[-last:]]
            episodes = [np.concatenate(society).tolist() for society in zip(*society_returns, strict=True)]
        summary = {
            **scores,
            "online_performance": online,
            "proposals": len(history.proposals),
            "confirmed": len(history.confirmations),
            "measurements": history.measurements,
            "recommendations": self._recommendations(evaluations),
            "history": history.proposals,
            "confirmations": history.confirmations,
            RESULT_EPISODES: episodes,
        }
        return summary, float(scores.get("recommendation", online))

    def recommended_rows(self) -> list[dict[str, Any]]:
        """Return rows with the `mechanism` and `context` of each vector that the run recommends so far, best first.

        Before the end of the run these are the vectors with the highest mean of all measurements.
        """
        final = self.recommendations.get(self.history.measurements)
        if final is None:
            leading = [
                estimate for context in self.contexts if (estimate := self.history.estimates.best(context)) is not None
            ]
            vectors = [(np.array(estimate.vector), cast(Context, estimate.context)) for estimate in leading]
        else:
            vectors = [(vector, context) for context, vector in final.items()]
        ranked = sorted(vectors, key=lambda pair: self._rank(*pair), reverse=True)
        return [self.history.describe(vector, context) for vector, context in ranked]

    def _evaluations(self) -> dict[Context, VectorEvaluation]:
        """Return the evaluations of the last recommendations by context; empty if there are none."""
        n = self.history.measurements
        if self.evaluator is None or n not in self.evaluator.recommendations:
            return {}
        return self.evaluator.of(n)

    def _recommendations(self, evaluations: dict[Context, VectorEvaluation]) -> list[dict[str, Any]]:
        """Return the rows of `recommendations`, one for each context, best first."""
        rows = []
        estimates = self.history.estimates
        for context, vector in self.recommendations[self.history.measurements].items():
            evaluation, n = evaluations.get(context), estimates.count(vector, context)
            row = {
                "objective": None if evaluation is None else evaluation.mean,
                "standard_error": None if evaluation is None else evaluation.standard_error,
                "evaluations": 0 if evaluation is None else len(evaluation.values),
                "values": [] if evaluation is None else list(evaluation.values),
                "measurements": n,
                "measured": estimates.of(vector, context).value if n else None,
            }
            rows.append((self._rank(vector, context), self.history.describe(vector, context) | row))
        return [row for _, row in sorted(rows, key=lambda pair: pair[0], reverse=True)]

    def _rank(self, vector: np.ndarray, context: Context) -> tuple[bool, float]:
        """Return the sort key of a recommendation, highest first.

        Vectors that were proposed come before those of contexts without a proposal, then the higher estimate.
        """
        return self.history.estimates.count(vector, context) > 0, self._value(vector, context)

    def _value(self, vector: np.ndarray, context: Context) -> float:
        """Return the best estimate of a vector: its evaluations, else its measurements, else minus infinity."""
        evaluation = self._evaluations().get(context)
        if evaluation is not None and evaluation.values:
            return evaluation.mean
        estimates = self.history.estimates
        return estimates.of(vector, context).value if estimates.count(vector, context) else -np.inf

    def state_dict(self) -> State:
        """Return the results; evaluations of the run read `history` and `recommended`, too."""
        return {
            "history": self.history.proposals,
            "confirmations": self.history.confirmations,
            "confirmation": None if self.confirmation is None else self.confirmation.state_dict(),
            "recommendations": [
                [n, [[context, vector] for context, vector in vectors.items()]]
                for n, vectors in self.recommendations.items()
            ],
            "recommended": self.recommended_rows(),
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


def ranking(principal: Proposer, mechanism: ParameterSpace, estimates: PooledEstimates, context: Context) -> np.ndarray:
    """Return the candidates of a context, best first and each once, [m, d] with m >= 1.

    The candidates of the principal's own rule (`Recommender`) come first, then all measured vectors by the mean of
    their measurements. If there are none, the only candidate is the neutral vector.
    """
    vectors = [estimate.vector for estimate in estimates.ranked(context)]
    if isinstance(principal, Recommender):
        leading = np.asarray(principal.recommend(context, max(1, len(vectors)), estimates), dtype=np.float64)
        vectors = [*map(tuple, leading.tolist()), *vectors]
    vectors = list(dict.fromkeys(vectors)) or [tuple(mechanism.neutral.tolist())]
    return np.array(vectors, dtype=np.float64)


def recommended(
    candidates: np.ndarray, principal: Proposer, confirmation: Confirmation | None, context: Context
) -> np.ndarray:
    """Return the recommendation of a context, [d].

    Before confirmation it is the first of `candidates`, the ranking by the principal's rule. After confirmation it is
    one of the survivors: the first by the rule if the principal learned from the confirmations, otherwise the one with
    the highest mean of all measurements.
    """
    survivors = None if confirmation is None else confirmation.survivors(context)
    if survivors is None:
        return np.array(candidates[0])
    if getattr(principal, "learns_from_others", False):
        allowed = {tuple(vector) for vector in survivors.tolist()}
        for vector in candidates.tolist():
            if tuple(vector) in allowed:
                return np.array(vector)
    return np.array(survivors[0])
