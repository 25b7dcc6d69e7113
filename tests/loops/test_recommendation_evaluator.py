"""Evaluation of recommendations: which vectors, how often, and what is shared."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.loops.recommendation import MAX_EVALUATIONS, PRECISION, RecommendationEvaluator, max_trials


def play(evaluator, value_of, interrupt_at=None):
    """Evaluate all; return the trials."""
    trials = []
    while not evaluator.finished:
        if len(trials) == interrupt_at:
            evaluator = RecommendationEvaluator.from_state(evaluator.state_dict())
        context, vectors, draws = evaluator.trial
        values = [value_of(context, vector, draw) for vector, draw in zip(vectors, draws, strict=True)]
        evaluator.add([[np.array([value, value])] for value in values], values, 0.5)
        trials.append((context, vectors.tolist(), list(draws)))
    return trials, evaluator


def noisy(context, vector, draw):
    return float(vector.sum()) + np.random.default_rng([draw, context or 0]).normal()


@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 3))
def test_without_a_range_each_vector_is_evaluated_equally_often(minimum, slots, contexts):
    vectors = {i: np.array([i + 1.0]) for i in range(contexts)} or {None: np.array([1.0])}
    trials, evaluator = play(RecommendationEvaluator({10: vectors}, minimum, slots, None), noisy)
    n = -(-minimum // slots) * slots
    assert len(trials) == evaluator.trials == n // slots * len(vectors)
    assert {len(each.values) for each in evaluator.of(10).values()} == {n}
    assert evaluator.summary(10)["objective"] == pytest.approx(
        np.mean([np.mean([noisy(c, v, draw) for draw in range(n)]) for c, v in vectors.items()])
    )
    assert evaluator.trials <= max_trials(minimum, slots, 1, False) * len(vectors)


def test_equal_vectors_share_their_evaluations_and_draws_count_from_zero():
    a, b = {None: np.array([1.0, 0.0])}, {None: np.array([0.0, 2.0])}
    trials, evaluator = play(RecommendationEvaluator({1: a, 5: b, 20: a}, 3, 1, None), noisy)
    assert [draws for _, _, draws in trials] == [[0], [1], [2]] * 2
    assert evaluator.of(1)[None] is evaluator.of(20)[None]
    assert evaluator.summary(1) == evaluator.summary(20) != evaluator.summary(5)


def test_evaluations_end_at_the_precision_or_the_limit():
    vectors = {1: {None: np.array([0.0])}, 2: {None: np.array([100.0])}}

    def value_of(context, vector, draw):
        spread = 1.0 if vector[0] else 30.0
        return spread * (-1.0) ** draw

    _, evaluator = play(RecommendationEvaluator(vectors, 2, 1, {None: 20.0}), value_of)
    assert len(evaluator.of(1)[None].values) == MAX_EVALUATIONS
    precise = evaluator.of(2)[None]
    assert precise.standard_error < PRECISION * 20.0 and 2 < len(precise.values) < MAX_EVALUATIONS


def test_a_single_evaluation_has_the_error_of_its_episodes():
    _, evaluator = play(RecommendationEvaluator({4: {None: np.zeros(2)}}, 1, 1, None), noisy)
    assert evaluator.summary(4)["standard_error"] == 0.5


@given(st.integers(0, 12))
def test_restored_evaluations_continue_alike(pause):
    contexts = {0: np.array([1.0]), 1: np.array([2.0])}
    recommendations = {1: contexts, 2: {0: np.array([3.0]), 1: np.array([2.0])}}
    trials, evaluator = play(RecommendationEvaluator(recommendations, 2, 1, None), noisy)
    resumed, other = play(RecommendationEvaluator(recommendations, 2, 1, None), noisy, pause)
    assert trials == resumed and [evaluator.summary(n) for n in (1, 2)] == [other.summary(n) for n in (1, 2)]


def test_the_mean_over_contexts_has_the_error_of_a_mean():
    contexts = {0: np.array([1.0]), 1: np.array([2.0])}
    _, evaluator = play(RecommendationEvaluator({3: contexts}, 8, 1, None), noisy)
    errors = [each.standard_error for each in evaluator.of(3).values()]
    assert evaluator.summary(3)["standard_error"] == pytest.approx(np.hypot(*errors) / 2)
