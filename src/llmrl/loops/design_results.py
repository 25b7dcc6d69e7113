"""Results of a design run: its measurements, recommendations and evaluations, and their summary."""

from __future__ import annotations

from typing import Any

import numpy as np

from llmrl.core.protocols import Proposer
from llmrl.core.records import State
from llmrl.core.spaces import EnvSpec
from llmrl.loops.confirmation import Confirmation
from llmrl.loops.proposal_outcomes import DesignHistory
from llmrl.loops.recommendation import Context, RecommendationEvaluator, VectorEvaluation
from llmrl.loops.recommendation_rule import ranking, recommended
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
            episodes = [part for each in evaluations.values() for part in each.episodes]
        else:
            played = [np.array_split(row["values"], self.societies) for row in history.proposals[-last:]]
            episodes = [np.concatenate(society).tolist() for society in zip(*played, strict=True)]
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
        """Return rows with `mechanism` and `context` of the vectors that the run recommends so far, best first.

        Before the end of the run these are the vectors with the highest mean of all measurements.
        """
        final = self.recommendations.get(self.history.measurements)
        if final is None:
            leading = [each for context in self.contexts if (each := self.history.estimates.best(context)) is not None]
            vectors = [(np.array(each.vector), _index(each.context)) for each in leading]
        else:
            vectors = [(vector, context) for context, vector in final.items()]
        ranked = sorted(vectors, key=lambda each: self._rank(*each), reverse=True)
        return [self.history.describe(vector, context) for vector, context in ranked]

    def _evaluations(self) -> dict[Context, VectorEvaluation]:
        """Return the evaluations of the last recommendations by context; empty if there are none."""
        n = self.history.measurements
        if self.evaluator is None or n not in self.evaluator.recommendations:
            return {}
        return self.evaluator.of(n)

    def _recommendations(self, evaluations: dict[Context, VectorEvaluation]) -> list[dict[str, Any]]:
        """Return the rows of `recommendations`, one a context, best first."""
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
        """Return the sort key of a recommendation: vectors that were proposed come before those of contexts without a
        proposal, then the higher estimate."""
        return self.history.estimates.count(vector, context) > 0, self._value(vector, context)

    def _value(self, vector: np.ndarray, context: Context) -> float:
        """Return the best estimate of a vector: its evaluations, else its measurements, else minus infinity."""
        evaluation = self._evaluations().get(context)
        if evaluation is not None and evaluation.values:
            return evaluation.mean
        estimates = self.history.estimates
        return estimates.of(vector, context).value if estimates.count(vector, context) else -np.inf

    def state_dict(self) -> State:
        """Return the results; `history` and `recommended` are read by evaluations of a run, too."""
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
        self.history.restore(state["history"], state["confirmations"])
        if state["confirmation"] is not None:
            self.confirmation = Confirmation.from_state(state["confirmation"])
        self.recommendations = {n: dict(vectors) for n, vectors in state["recommendations"]}
        if state["evaluator"] is not None:
            self.evaluator = RecommendationEvaluator.from_state(state["evaluator"])


def _index(context: int | str | None) -> Context:
    assert not isinstance(context, str)
    return context
