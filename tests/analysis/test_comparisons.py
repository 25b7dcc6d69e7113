"""Bootstrap bands, comparisons, profiles: properties that hold for all scores, and slow references."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.analysis.bootstrap import (
    Band,
    bootstrap_bands,
    improvement_matrix,
    performance_profile,
    probability_of_improvement,
)
from llmrl.analysis.statistics import (
    Levels,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    over_tasks,
    standard_error,
    standard_error_over_tasks,
)

SCORES = st.lists(st.integers(-20, 20).map(float), min_size=1, max_size=12)
FEW_RESAMPLES = 300


def slow_probability(x: list[float], y: list[float]) -> float:
    return float(np.mean([1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(x, y)]))


@given(SCORES, SCORES)
def test_probability_of_improvement_is_the_share_of_pairs_won(x: list[float], y: list[float]) -> None:
    won = probability_of_improvement([np.array(x)], [np.array(y)])
    assert won == pytest.approx(slow_probability(x, y))
    assert won + probability_of_improvement([np.array(y)], [np.array(x)]) == pytest.approx(1)


@settings(max_examples=30)
@given(st.lists(st.tuples(SCORES, SCORES), min_size=1, max_size=4))
def test_matrix_agrees_with_single_pairs_and_mirrors_itself(groups: list[tuple[list[float], list[float]]]) -> None:
    """Two tasks, groups of uneven size."""
    scores = [[np.array(task) for task in group] for group in groups]
    band = improvement_matrix(scores, resamples=FEW_RESAMPLES)
    for i, j in itertools.product(range(len(scores)), repeat=2):
        expected = 0.5 if i == j else probability_of_improvement(scores[i], scores[j])
        assert band.estimate[i, j] == pytest.approx(expected)
        told = i != j and all(any(len(task) > 1 for task in scores[k]) for k in (i, j))
        assert np.isfinite(band.low[i, j]) == np.isfinite(band.high[i, j]) == told
        if told:
            assert 0 <= band.low[i, j] <= band.high[i, j] <= 1 + 1e-12
            assert band.low[i, j] == pytest.approx(1 - band.high[j, i])


def test_matrix_intervals_are_those_of_resampling_each_group() -> None:
    """Against a loop that draws runs, two tasks, 5000 resamples each: Monte-Carlo error of a bound is below 0.03."""
    rng = np.random.default_rng(0)
    x = [rng.normal(0.4, 1, 6), rng.normal(0, 1, 9)]
    y = [rng.normal(0, 1, 7), rng.normal(0, 1, 5)]
    drawn = [
        np.mean([slow_probability(rng.choice(a, len(a)), rng.choice(b, len(b))) for a, b in zip(x, y, strict=True)])
        for _ in range(5000)
    ]
    band = improvement_matrix([x, y], resamples=5000)
    assert [band.low[0, 1], band.high[0, 1]] == pytest.approx(np.quantile(drawn, [0.025, 0.975]), abs=0.03)


@settings(max_examples=40)
@given(SCORES, st.randoms(use_true_random=False))
def test_estimates_do_not_depend_on_the_order_of_runs(scores: list[float], random: object) -> None:
    shuffled = list(scores)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for statistic in (mean, median, interquartile_mean, standard_error):
        assert statistic(np.array(shuffled)) == pytest.approx(statistic(np.array(scores)), nan_ok=True)


@settings(max_examples=40)
@given(SCORES)
def test_interval_of_symmetric_scores_holds_their_centre(scores: list[float]) -> None:
    symmetric = np.array([*scores, *(-s for s in scores)])
    bands = bootstrap_bands(symmetric, {"mean": mean, "median": median, "iqm": interquartile_mean}, resamples=2000)
    for band in bands.values():
        assert band.estimate == pytest.approx(0, abs=1e-12)
        assert band.low <= 1e-12
        assert band.high >= -1e-12


def test_bands_are_those_of_a_loop_over_the_same_resamples() -> None:
    """A curve of 3 points and 2 + 5 runs in two tasks."""
    scores = np.random.default_rng(1).normal(size=(3, 7))
    seen: list[np.ndarray] = []

    def keeping(x: np.ndarray) -> np.ndarray:
        seen.append(x)
        return interquartile_mean(x)

    band = bootstrap_bands(scores, {"iqm": keeping}, [2, 5], resamples=200, seed=4)["iqm"]
    estimates = np.array([[interquartile_mean(row) for row in point] for point in seen[1]])
    assert estimates.shape == (3, 200)
    assert band.low == pytest.approx(np.quantile(estimates, 0.025, axis=1))
    assert band.high == pytest.approx(np.quantile(estimates, 0.975, axis=1))
    for point, sample in zip(scores, seen[1], strict=True):
        assert np.isin(sample[:, :2], point[:2]).all()
        assert np.isin(sample[:, 2:], point[2:]).all()
    # The points of a curve are resampled together.
    assert (np.argsort(scores[0])[np.searchsorted(np.sort(scores[0]), seen[1][0])] == 0).any()
    places = [np.argsort(p)[np.searchsorted(np.sort(p), s)] for p, s in zip(scores, seen[1], strict=True)]
    assert (places[0] == places[1]).all()
    assert (places[0] == places[2]).all()


def test_a_task_counts_once_however_many_runs_it_has() -> None:
    scores = np.array([0.0, 2, 10, 10, 10, 40, 60])  # tasks of means 1, 10 and 50
    sizes = [2, 3, 2]
    assert over_tasks(mean, sizes)(scores) == pytest.approx(61 / 3)
    assert over_tasks(median, sizes)(scores) == 10
    tasks = [np.array([1.0, 3]), np.array([5.0, 9])]
    assert standard_error_over_tasks(tasks) == pytest.approx(np.sqrt(1 + 4) / 2)
    assert np.isnan(standard_error_over_tasks([np.array([1.0]), np.array([5.0, 9])]))


@given(SCORES, st.floats(-30, 30))
def test_gap_counts_what_is_missing_and_nothing_else(scores: list[float], target: float) -> None:
    x = np.array(scores)
    assert optimality_gap(x, target) == pytest.approx(np.maximum(target - x, 0).mean())
    assert optimality_gap(x, float(x.min())) == 0


@settings(max_examples=40)
@given(SCORES)
def test_profile_falls_from_one_to_zero_and_lies_in_its_band(scores: list[float]) -> None:
    thresholds = np.array([-21.0, *np.unique(scores), 21])
    band = performance_profile(np.array(scores), thresholds, resamples=FEW_RESAMPLES)
    assert band.estimate[0] == 1
    assert band.estimate[-1] == 0
    assert (np.diff(band.estimate) <= 0).all()
    assert band.estimate == pytest.approx([np.mean([s > t for s in scores]) for t in thresholds])
    if len(scores) > 1:
        assert (np.diff(band.low) <= 0).all()
        assert (np.diff(band.high) <= 0).all()
        assert ((band.low <= band.estimate) & (band.estimate <= band.high)).all()
    else:
        assert np.isnan(band.low).all()


def test_what_runs_share_is_in_the_band_of_a_profile() -> None:
    scores, levels = np.repeat([0.0, 1.0, 2.0, 3.0], 5), [Levels(np.repeat(range(4), 5).tolist())]
    profile = performance_profile(scores, np.array([0.5]), levels=levels)
    above = bootstrap_bands((scores > 0.5)[None].astype(float), {"": mean}, resamples=2000, levels=levels)[""]
    assert (profile.low, profile.high) == (above.low, above.high)
    alone = performance_profile(scores, np.array([0.5]))
    assert profile.high - profile.low > 1.5 * (alone.high - alone.low)


def test_one_resample_and_no_groups_are_borne() -> None:
    band = bootstrap_bands(np.array([1.0, 3]), {"mean": mean}, resamples=1)["mean"]
    assert band.low == band.high
    one = improvement_matrix([[np.array([1.0, 3])], [np.array([2.0, 4])]], resamples=1)
    assert one.low[0, 1] == one.high[0, 1]
    assert improvement_matrix([]).estimate.shape == (0, 0)
    assert isinstance(improvement_matrix([[np.array([1.0])]]), Band)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_bands(np.ones(3), {}, [1, 1]), "tasks of"),
        (lambda: bootstrap_bands(np.ones(3), {"mean": mean}, resamples=0), "resamples"),
        (lambda: improvement_matrix([[np.array([np.nan])], [np.array([1.0])]]), "NaN"),
    ],
)
def test_nonsense_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]
