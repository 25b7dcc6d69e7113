"""Evaluation of recommendations: evaluated vectors, numbers of episodes and shared evaluations."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.loops.recommendation import (
    ANYTIME_RELATIVE_ERROR,
    MAX_ANYTIME_EVALUATIONS,
    RecommendationEvaluator,
    count_max_trials,
)


def play(evaluator, evaluate, interrupt_at=None):
    """Evaluate all recommendations and return the trials."""
    trials = []
    while not evaluator.is_finished:
        if len(trials) == interrupt_at:
            evaluator = RecommendationEvaluator.from_state(evaluator.state_dict())
        context, vectors, draws = evaluator.next_trial
        values = [evaluate(context, vector, draw) for vector, draw in zip(vectors, draws, strict=True)]
        evaluator.add([[np.array([value, value])] for value in values], values, 0.5)
        trials.append((context, vectors.tolist(), list(draws)))
    return trials, evaluator


def noisy(context, vector, draw):
    return float(vector.sum()) + np.random.default_rng([draw, context or 0]).normal()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_vectors_get_equal_evaluations(minimum, slots, contexts):
    vectors = {i: np.array([i + 1.0]) for i in range(contexts)} or {None: np.array([1.0])}
    trials, evaluator = play(RecommendationEvaluator({10: vectors}, minimum, slots, None), noisy)
    n = -(-minimum // slots) * slots
    assert len(trials) == evaluator.n_trials == n // slots * len(vectors)
    assert {len(estimate.values) for estimate in evaluator.evaluations_by_context(10).values()} == {n}
    assert evaluator.summary(10)["objective"] == pytest.approx(
        np.mean([np.mean([noisy(c, v, draw) for draw in range(n)]) for c, v in vectors.items()])
    )
    assert evaluator.n_trials <= count_max_trials(minimum, slots, 1, False) * len(vectors)


def test_equal_vectors_share_evaluations():
    a, b = {None: np.array([1.0, 0.0])}, {None: np.array([0.0, 2.0])}
    trials, evaluator = play(RecommendationEvaluator({1: a, 5: b, 20: a}, 3, 1, None), noisy)
    assert [draws for _, _, draws in trials] == [[0], [1], [2]] * 2
    assert evaluator.evaluations_by_context(1)[None] is evaluator.evaluations_by_context(20)[None]
    assert evaluator.summary(1) == evaluator.summary(20) != evaluator.summary(5)


def test_evaluations_end_at_the_precision_or_the_limit():
    vectors = {1: {None: np.array([0.0])}, 2: {None: np.array([100.0])}}

    def evaluate(context, vector, draw):
        deviation = 1.0 if vector[0] else 30.0
        return deviation * (-1.0) ** draw

    _, evaluator = play(RecommendationEvaluator(vectors, 2, 1, {None: 20.0}), evaluate)
    assert len(evaluator.evaluations_by_context(1)[None].values) == MAX_ANYTIME_EVALUATIONS
    precise = evaluator.evaluations_by_context(2)[None]
    assert precise.standard_error < ANYTIME_RELATIVE_ERROR * 20.0 and 2 < len(precise.values) < MAX_ANYTIME_EVALUATIONS


def test_single_evaluation_uses_episode_error():
    _, evaluator = play(RecommendationEvaluator({4: {None: np.zeros(2)}}, 1, 1, None), noisy)
    assert evaluator.summary(4)["standard_error"] == 0.5


@given(st.integers(0, 12))
def test_evaluator_state_round_trip(pause):
    contexts = {0: np.array([1.0]), 1: np.array([2.0])}
    recommendations = {1: contexts, 2: {0: np.array([3.0]), 1: np.array([2.0])}}
    trials, evaluator = play(RecommendationEvaluator(recommendations, 2, 1, None), noisy)
    restored, reference = play(RecommendationEvaluator(recommendations, 2, 1, None), noisy, pause)
    assert trials == restored and [evaluator.summary(n) for n in (1, 2)] == [reference.summary(n) for n in (1, 2)]


def test_context_mean_error():
    contexts = {0: np.array([1.0]), 1: np.array([2.0])}
    _, evaluator = play(RecommendationEvaluator({3: contexts}, 8, 1, None), noisy)
    errors = [estimate.standard_error for estimate in evaluator.evaluations_by_context(3).values()]
    assert evaluator.summary(3)["standard_error"] == pytest.approx(np.hypot(*errors) / 2)
