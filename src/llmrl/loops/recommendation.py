"""Evaluation of a principal's recommendations on random numbers that are used for nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmrl.core.pooling import Key, key_of
from llmrl.core.records import State
from llmrl.statistics.estimators import standard_error_of_mean

ANYTIME_MEASUREMENTS = (1, 2, 5, 10, 20, 40, 80, 120)
"""Numbers of measurements after which recommendations are recorded if `design.anytime` is set."""
MAX_EVALUATIONS = 16
"""Maximum number of evaluations of a vector if `design.anytime` is set."""
PRECISION = 0.03
"""Standard error, as a fraction of the objective's range, at which evaluations end if `design.anytime` is set."""

Context = int | None


@dataclass
class VectorEvaluation:
    """The evaluations of one vector in one context.

    Attributes:
        values: objective of each evaluation.
        episodes: objectives of the episodes of each society of each evaluation.
        single_error: standard error of the first evaluation over its societies or episodes.
    """

    values: list[float] = field(default_factory=list)
    episodes: list[list[float]] = field(default_factory=list)
    single_error: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float | None:
        """Standard error of the mean over evaluations; of a single one, over its societies or episodes."""
        return self.single_error if len(self.values) == 1 else standard_error_of_mean(np.array(self.values))


class RecommendationEvaluator:
    """Evaluations of the vectors that a principal recommends.

    Evaluation e of any vector in a context draws the same random numbers, which nothing else draws. So recommendations
    of different principals and of different numbers of measurements are compared under common random numbers, and
    equal vectors share their evaluations.

    Args:
        recommendations: by number of measurements n: the vector of each context, [d], that the principal's rule makes
            from its first n measurements.
        minimum: evaluations of each vector, >= 1, rounded up to whole trials.
        slots: evaluations of a trial.
        ranges: by context: range of the objective, for the precision at which evaluations of a vector end; None: each
            vector is evaluated `minimum` times.
    """

    def __init__(
        self,
        recommendations: Mapping[int, Mapping[Context, np.ndarray]],
        minimum: int,
        slots: int,
        ranges: Mapping[Context, float] | None,
    ) -> None:
        self.recommendations = {n: dict(vectors) for n, vectors in recommendations.items()}
        self.minimum, self.slots = -(-minimum // slots) * slots, slots
        self.ranges = None if ranges is None else dict(ranges)
        self.trials = 0
        self._evaluations: dict[tuple[Context, Key], VectorEvaluation] = {}
        # The last recommendation first: it is the result of the run.
        for n in sorted(self.recommendations, reverse=True):
            for context, vector in self.recommendations[n].items():
                self._evaluations.setdefault((context, key_of(vector)), VectorEvaluation())

    @property
    def finished(self) -> bool:
        return self._next is None

    @property
    def trial(self) -> tuple[Context, np.ndarray, list[int]]:
        """Context, vectors of all slots [slots, d], and index of the evaluation of each slot, of the next trial."""
        pending = self._next
        assert pending is not None
        context, key = pending
        done = len(self._evaluations[pending].values)
        return context, np.tile(np.array(key), (self.slots, 1)), list(range(done, done + self.slots))

    def add(self, societies: Sequence[Sequence[np.ndarray]], values: Sequence[float], single: float | None) -> None:
        """Add the results of the next trial.

        Args:
            societies: for each slot, the objectives of the episodes of each society.
            values: objective of each slot.
            single: standard error of the first slot.
        """
        pending = self._next
        assert pending is not None
        evaluation = self._evaluations[pending]
        if not evaluation.values:
            evaluation.single_error = single
        evaluation.values += [float(value) for value in values]
        evaluation.episodes += [np.asarray(episodes).tolist() for slot in societies for episodes in slot]
        self.trials += 1

    def of(self, n: int) -> dict[Context, VectorEvaluation]:
        """Return the evaluations of the recommendations after n measurements, by context."""
        return {
            context: self._evaluations[context, key_of(vector)] for context, vector in self.recommendations[n].items()
        }

    def summary(self, n: int) -> dict[str, float]:
        """Return the summary of the recommendations after n measurements.

        Keys: `objective`, the mean over contexts; `standard_error`, if it is known; `evaluations`, the smallest number
        of a context.
        """
        evaluations = list(self.of(n).values())
        errors = [evaluation.standard_error for evaluation in evaluations]
        summary = {
            "objective": float(np.mean([evaluation.mean for evaluation in evaluations])),
            "evaluations": float(min(len(evaluation.values) for evaluation in evaluations)),
        }
        if all(error is not None for error in errors):
            squares = [float(error) ** 2 for error in errors if error is not None]
            summary["standard_error"] = float(np.sqrt(np.sum(squares)) / len(evaluations))
        return summary

    @property
    def _next(self) -> tuple[Context, Key] | None:
        """Context and vector of the next evaluation; None if all are complete."""
        return next((pair for pair in self._evaluations if not self._is_complete(pair)), None)

    def _is_complete(self, pair: tuple[Context, Key]) -> bool:
        evaluation = self._evaluations[pair]
        n = len(evaluation.values)
        if n < self.minimum:
            return False
        if self.ranges is None or n >= MAX_EVALUATIONS:
            return True
        error = evaluation.standard_error
        return error is not None and error < PRECISION * self.ranges[pair[0]]

    def state_dict(self) -> State:
        return {
            "recommendations": [
                [n, [[context, vector.copy()] for context, vector in vectors.items()]]
                for n, vectors in self.recommendations.items()
            ],
            "minimum": self.minimum,
            "slots": self.slots,
            "ranges": None if self.ranges is None else list(self.ranges.items()),
            "trials": self.trials,
            "evaluations": [
                [
                    context,
                    list(key),
                    list(evaluation.values),
                    [list(part) for part in evaluation.episodes],
                    evaluation.single_error,
                ]
                for (context, key), evaluation in self._evaluations.items()
            ],
        }

    @classmethod
    def from_state(cls, state: State) -> RecommendationEvaluator:
        """Return an object with the state that `state_dict` returned."""
        recommendations = {n: dict(vectors) for n, vectors in state["recommendations"]}
        ranges = None if state["ranges"] is None else dict(state["ranges"])
        evaluator = cls(recommendations, state["minimum"], state["slots"], ranges)
        evaluator.trials = state["trials"]
        for context, key, values, episodes, single_error in state["evaluations"]:
            evaluator._evaluations[context, tuple(key)] = VectorEvaluation(values, episodes, single_error)
        return evaluator


def max_trials(evaluations: int, slots: int, recommendations: int, anytime: bool) -> int:
    """Return the maximum number of trials that evaluate some recommendations of one context.

    Args:
        evaluations: evaluations of each recommendation, >= 0.
        slots: evaluations of a trial.
        recommendations: number of different recommendations.
        anytime: whether evaluations continue until they are precise enough, up to `MAX_EVALUATIONS`.
    """
    n_evaluations = max(evaluations, MAX_EVALUATIONS) if anytime and evaluations else evaluations
    return -(-n_evaluations // slots) * recommendations


def is_anytime(measurements: int, candidates: int) -> bool:
    """Return whether the last step, of `candidates` measurements, reached one of `ANYTIME_MEASUREMENTS`."""
    return any(measurements - candidates < n <= measurements for n in ANYTIME_MEASUREMENTS)
