"""Confirmation of the leading candidates of a design run or a search, and evaluation of recommended vectors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from llmrl.core.pooling import VectorKey, make_vector_key
from llmrl.core.records import State
from llmrl.core.state_fields import StateFields
from llmrl.statistics.estimators import standard_error_of_mean


class SuccessiveHalving(StateFields):
    """Successive halving of a few candidates within a fixed number of measurements.

    The highest of many noisy estimates is biased upwards. So the leading candidates are measured again with fresh
    random numbers, in rounds. After each round but the last, the half of the candidates with the higher means over all
    measurements remains (Karnin, Koren & Somekh 2013, "Almost optimal exploration in multi-armed bandits", figure 3).
    The number of candidates is the square root of the number of measurements, so each gets about as many measurements.

    Args:
        vectors: candidates, [m, d], best first. Only the first `count_candidates(steps, slots)` take part.
        steps: number of trials, >= 1.
        slots: number of measurements of a trial, which are made in parallel, >= 1.

    Attributes:
        vectors: candidates that take part.
        survivors: indices of the remaining candidates, best first.
        counts: number of fresh measurements of each candidate so far.
        step: number of finished trials.
    """

    _state_fields = ("vectors", "steps", "slots", "survivors", "counts", "step")

    def __init__(self, vectors: np.ndarray, steps: int, slots: int) -> None:
        self.vectors = np.asarray(vectors, dtype=np.float64)[: count_candidates(steps, slots)]
        self.steps, self.slots = steps, slots
        self.survivors = list(range(len(self.vectors)))
        self.counts = [0] * len(self.vectors)
        self.step = 0

    @property
    def is_finished(self) -> bool:
        return self.step >= self.steps

    @property
    def next_trial(self) -> list[tuple[int, int]]:
        """For each slot of the next trial: candidate index, and number of fresh measurements of it before the slot."""
        counts, slots = list(self.counts), []
        for _ in range(self.slots):
            candidate = min(self.survivors, key=lambda i: (counts[i], self.survivors.index(i)))
            slots.append((candidate, counts[candidate]))
            counts[candidate] += 1
        return slots

    def advance(self, get_value: Callable[[np.ndarray], float]) -> None:
        """Finish the trial; after every round except the last, drop the worse half of the candidates.

        Args:
            get_value: function from a candidate, [d], to the mean of all its measurements.
        """
        for candidate, _ in self.next_trial:
            self.counts[candidate] += 1
        self.step += 1
        self.survivors.sort(key=lambda i: (-get_value(self.vectors[i]), i))
        if not self.is_finished and self._get_round(self.step) > self._get_round(self.step - 1):
            self.survivors = self.survivors[: math.ceil(len(self.survivors) / 2)]

    def _get_round(self, step: int) -> int:
        rounds = max(1, min(self.steps, math.ceil(math.log2(max(2, len(self.vectors))))))
        return step * rounds // self.steps

    @classmethod
    def from_state(cls, state: State) -> SuccessiveHalving:
        """Return an object with the state that `state_dict` returned."""
        halving = cls(state["vectors"], state["steps"], state["slots"])
        halving.load_state_dict(state | {"vectors": halving.vectors})
        return halving


def count_candidates(steps: int, slots: int) -> int:
    """Return the number of candidates for `steps` trials of `slots` measurements: ceil(sqrt(steps * slots))."""
    return math.ceil(math.sqrt(steps * slots))


class Confirmation:
    """Successive halving in each context, one context after the other.

    Args:
        candidates: from context index (None without contexts) to the leading candidates, [m, d], best first.
        steps: number of trials of all contexts, >= the number of contexts.
        slots: number of measurements of a trial.

    Attributes:
        halvings: successive halving of each context that has more than one candidate.
    """

    def __init__(self, candidates: dict[int | None, np.ndarray], steps: int, slots: int) -> None:
        self.halvings: dict[int | None, SuccessiveHalving] = {}
        for i, (context, vectors) in enumerate(candidates.items()):
            n_steps = steps // len(candidates) + (i < steps % len(candidates))
            if len(vectors) > 1:
                self.halvings[context] = SuccessiveHalving(vectors, n_steps, slots)

    @property
    def context(self) -> int | None:
        """Context of the next trial.

        Raises:
            StopIteration: all trials are finished.
        """
        return next(context for context, halving in self.halvings.items() if not halving.is_finished)

    @property
    def is_finished(self) -> bool:
        return all(halving.is_finished for halving in self.halvings.values())

    def surviving_vectors(self, context: int | None) -> np.ndarray | None:
        """Return the candidates of a context that remain, best first, [m, d]; None before its first trial."""
        halving = self.halvings.get(context)
        return None if halving is None or not halving.step else halving.vectors[halving.survivors]

    def state_dict(self) -> State:
        return {"halvings": [[context, halving.state_dict()] for context, halving in self.halvings.items()]}

    @classmethod
    def from_state(cls, state: State) -> Confirmation:
        """Return an object with the state that `state_dict` returned."""
        confirmation = cls({}, 0, 0)
        confirmation.halvings = {
            context: SuccessiveHalving.from_state(halving_state) for context, halving_state in state["halvings"]
        }
        return confirmation


ANYTIME_MEASUREMENTS = (1, 2, 5, 10, 20, 40, 80, 120)
"""Numbers of measurements after which recommendations are recorded if `design.anytime` is set."""
MAX_ANYTIME_EVALUATIONS = 16
"""Maximum number of evaluations of a vector if `design.anytime` is set."""
ANYTIME_RELATIVE_ERROR = 0.03
"""Standard error, as a fraction of the objective's range, at which evaluations end if `design.anytime` is set."""

Context = int | None
"""Index of a context; None in environments without contexts."""


@dataclass
class VectorEvaluation:
    """Evaluations of one vector in one context.

    Attributes:
        values: objective of each evaluation.
        episodes: objectives of the episodes of each society; one list for each pair of evaluation and society.
        first_standard_error: standard error of the first evaluation over its societies or episodes; None if unknown.
    """

    values: list[float] = field(default_factory=list)
    episodes: list[list[float]] = field(default_factory=list)
    first_standard_error: float | None = None

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def standard_error(self) -> float | None:
        """Standard error of `mean` over evaluations; with one evaluation, over its societies or episodes."""
        return self.first_standard_error if len(self.values) == 1 else standard_error_of_mean(np.array(self.values))


class RecommendationEvaluator:
    """Evaluations of the vectors that a principal recommends.

    Evaluation e of any vector in a context draws the same random numbers, which are used for nothing else. So
    recommendations of different principals, and after different numbers of measurements, are compared under common
    random numbers. Equal vectors share their evaluations.

    Args:
        recommendations: from a number of measurements n to the vector of each context, [d], that is recommended after
            the first n measurements.
        min_evaluations: minimum number of evaluations of each vector, >= 1, rounded up to whole trials.
        slots: number of evaluations of a trial.
        ranges: range of the objective in each context. Evaluations of a vector continue until their standard error is
            less than `ANYTIME_RELATIVE_ERROR` of this range. None: each vector is evaluated `min_evaluations` times.
    """

    def __init__(
        self,
        recommendations: Mapping[int, Mapping[Context, np.ndarray]],
        min_evaluations: int,
        slots: int,
        ranges: Mapping[Context, float] | None,
    ) -> None:
        self.recommendations = {n: dict(vectors) for n, vectors in recommendations.items()}
        self.min_evaluations, self.slots = -(-min_evaluations // slots) * slots, slots
        self.ranges = None if ranges is None else dict(ranges)
        self.n_trials = 0
        self._evaluations_by_key: dict[tuple[Context, VectorKey], VectorEvaluation] = {}
        # The last recommendations are evaluated first, because they are the result of the run.
        for n in sorted(self.recommendations, reverse=True):
            for context, vector in self.recommendations[n].items():
                self._evaluations_by_key.setdefault((context, make_vector_key(vector)), VectorEvaluation())

    @property
    def is_finished(self) -> bool:
        return self._next_pending_key is None

    @property
    def next_trial(self) -> tuple[Context, np.ndarray, list[int]]:
        """Next trial: its context, the vector of each slot, [slots, d], and the evaluation index of each slot."""
        pending_key = self._next_pending_key
        assert pending_key is not None
        context, vector = pending_key
        n_finished = len(self._evaluations_by_key[pending_key].values)
        return context, np.tile(np.array(vector), (self.slots, 1)), list(range(n_finished, n_finished + self.slots))

    def add(
        self, society_values: Sequence[Sequence[np.ndarray]], values: Sequence[float], standard_error: float | None
    ) -> None:
        """Add the results of the trial that `next_trial` returns.

        Args:
            society_values: for each slot, the objectives of the episodes of each society.
            values: objective of each slot.
            standard_error: standard error of the objective of the first slot.
        """
        pending_key = self._next_pending_key
        assert pending_key is not None
        evaluation = self._evaluations_by_key[pending_key]
        if not evaluation.values:
            evaluation.first_standard_error = standard_error
        evaluation.values += [float(value) for value in values]
        evaluation.episodes += [np.asarray(episodes).tolist() for slot in society_values for episodes in slot]
        self.n_trials += 1

    def evaluations_by_context(self, n: int) -> dict[Context, VectorEvaluation]:
        """Return the evaluations of the recommendations after n measurements, by context."""
        return {
            context: self._evaluations_by_key[context, make_vector_key(vector)]
            for context, vector in self.recommendations[n].items()
        }

    def summary(self, n: int) -> dict[str, float]:
        """Return the summary of the recommendations after n measurements.

        Keys: `objective`, the mean over contexts; `standard_error` of this mean, if it is known; `evaluations`, the
        minimum over contexts of the number of evaluations.
        """
        evaluations = list(self.evaluations_by_context(n).values())
        errors = [evaluation.standard_error for evaluation in evaluations]
        summary = {
            "objective": float(np.mean([evaluation.mean for evaluation in evaluations])),
            "evaluations": float(min(len(evaluation.values) for evaluation in evaluations)),
        }
        if all(error is not None for error in errors):
            squared_errors = [float(error) ** 2 for error in errors if error is not None]
            summary["standard_error"] = float(np.sqrt(np.sum(squared_errors)) / len(evaluations))
        return summary

    @property
    def _next_pending_key(self) -> tuple[Context, VectorKey] | None:
        """Context and vector of the next evaluation; None if all are complete."""
        return next((key for key in self._evaluations_by_key if not self._is_complete(key)), None)

    def _is_complete(self, key: tuple[Context, VectorKey]) -> bool:
        evaluation = self._evaluations_by_key[key]
        n_evaluations = len(evaluation.values)
        if n_evaluations < self.min_evaluations:
            return False
        if self.ranges is None or n_evaluations >= MAX_ANYTIME_EVALUATIONS:
            return True
        error = evaluation.standard_error
        return error is not None and error < ANYTIME_RELATIVE_ERROR * self.ranges[key[0]]

    def state_dict(self) -> State:
        return {
            "recommendations": [
                [n, [[context, vector.copy()] for context, vector in vectors.items()]]
                for n, vectors in self.recommendations.items()
            ],
            "minimum": self.min_evaluations,
            "slots": self.slots,
            "ranges": None if self.ranges is None else list(self.ranges.items()),
            "trials": self.n_trials,
            "evaluations": [
                [
                    context,
                    list(key),
                    list(evaluation.values),
                    [list(values) for values in evaluation.episodes],
                    evaluation.first_standard_error,
                ]
                for (context, key), evaluation in self._evaluations_by_key.items()
            ],
        }

    @classmethod
    def from_state(cls, state: State) -> RecommendationEvaluator:
        """Return an object with the state that `state_dict` returned."""
        recommendations = {n: dict(vectors) for n, vectors in state["recommendations"]}
        ranges = None if state["ranges"] is None else dict(state["ranges"])
        evaluator = cls(recommendations, state["minimum"], state["slots"], ranges)
        evaluator.n_trials = state["trials"]
        for context, key, values, episodes, error in state["evaluations"]:
            evaluator._evaluations_by_key[context, tuple(key)] = VectorEvaluation(values, episodes, error)
        return evaluator


def count_max_trials(min_evaluations: int, slots: int, n_recommendations: int, anytime: bool) -> int:
    """Return the maximum number of trials that evaluate the recommendations of one context.

    Args:
        min_evaluations: minimum number of evaluations of each recommendation, >= 0.
        slots: number of evaluations of a trial.
        n_recommendations: number of different recommendations.
        anytime: whether evaluations continue until they are precise enough, up to `MAX_ANYTIME_EVALUATIONS`.
    """
    n_evaluations = max(min_evaluations, MAX_ANYTIME_EVALUATIONS) if anytime and min_evaluations else min_evaluations
    return -(-n_evaluations // slots) * n_recommendations


def reaches_anytime_measurement(n_measurements: int, n_candidates: int) -> bool:
    """Return whether one of the last `n_candidates` of `n_measurements` measurements is in `ANYTIME_MEASUREMENTS`."""
    return any(n_measurements - n_candidates < n <= n_measurements for n in ANYTIME_MEASUREMENTS)
