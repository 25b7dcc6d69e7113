"""Intervals: coverage in simulations, closed forms from scipy, and cases without an interval."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from llmrl.statistics.estimators import standard_error
from llmrl.statistics.intervals import (
    MINIMUM_UNITS,
    Band,
    compare_means,
    compute_estimates,
    describe,
    describe_difference,
    difference_interval,
    improvement_matrix,
    mean_interval,
    probability_of_improvement,
)

SCORES = st.lists(st.integers(-20, 20).map(float), min_size=1, max_size=12)
EXPERIMENTS = 20_000
"""Simulated experiments; the standard error of a coverage of 95 % is 0.15 %."""


def coverage(band: Band, truth: float) -> float:
    return float(np.mean((band.low <= truth) & (truth <= band.high)))


def sample_clusters(rng: np.random.Generator, units: int, runs: int) -> np.ndarray:
    """Draw scores [experiments, units * runs] around 0 with equal variance between and within units."""
    noise = rng.normal(size=(EXPERIMENTS, units, runs))
    return (rng.normal(size=(EXPERIMENTS, units, 1)) + noise).reshape(EXPERIMENTS, -1)


def cover_mean(rng: np.random.Generator, n: int) -> float:
    return coverage(mean_interval(rng.normal(size=(EXPERIMENTS, n))), 0)


def cover_clustered_mean(rng: np.random.Generator, n: int) -> float:
    return coverage(mean_interval(sample_clusters(rng, n, 3), np.repeat(range(n), 3).tolist()), 0)


def cover_unpaired_difference(rng: np.random.Generator, n: int) -> float:
    x, y = rng.normal(2, 1, (EXPERIMENTS, n)), rng.normal(0, 3, (EXPERIMENTS, n + 3))
    return coverage(difference_interval(x, y), 2)


def cover_paired_difference(rng: np.random.Generator, n: int) -> float:
    shared, labels = rng.normal(0, 5, (EXPERIMENTS, n)), list(range(n))
    x, y = (shared + rng.normal(level, 1, (EXPERIMENTS, n)) for level in (2, 0))
    return coverage(difference_interval(x, y, labels, labels), 2)


def cover_clustered_difference(rng: np.random.Generator, n: int) -> float:
    shared, labels = np.repeat(rng.normal(0, 5, (EXPERIMENTS, n)), 2, axis=-1), np.repeat(range(n), 2).tolist()
    x, y = (shared + sample_clusters(rng, n, 2) for _ in range(2))
    return coverage(difference_interval(x, y, labels, labels), 0)


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize(
    "simulate",
    [
        cover_mean,
        cover_clustered_mean,
        cover_unpaired_difference,
        cover_paired_difference,
        cover_clustered_difference,
    ],
)
def test_normal_score_intervals_have_coverage(simulate: Callable[[np.random.Generator, int], float], n: int) -> None:
    assert 0.94 <= simulate(np.random.default_rng(n), n) <= 0.97


@pytest.mark.parametrize("n", [5, 10])
@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_improvement_intervals_have_coverage(n: int, shift: float) -> None:
    rng, truth, n_covered = np.random.default_rng(n), stats.norm.cdf(shift / math.sqrt(2)), 0
    for _ in range(2000):
        interval = probability_of_improvement(rng.normal(shift, 1, n), rng.normal(0, 1, n))
        n_covered += interval.low <= truth <= interval.high
    assert n_covered / 2000 > 0.935  # 94 % less a standard error of 0.5 %


def test_runs_of_unit_are_dependent() -> None:
    scores = sample_clusters(np.random.default_rng(0), 5, 3)
    assert coverage(mean_interval(scores), 0) < 0.85


@given(st.lists(st.floats(-100, 100), min_size=MINIMUM_UNITS, max_size=12))
def test_mean_interval_matches_t_test(scores: list[float]) -> None:
    band = mean_interval(np.array(scores))
    if np.ptp(scores) > 1e-6:
        reference = stats.ttest_1samp(scores, 0).confidence_interval()
        assert (float(band.low), float(band.high)) == pytest.approx((reference.low, reference.high), abs=1e-9)


SAMPLES = st.lists(st.floats(-100, 100), min_size=MINIMUM_UNITS, max_size=12)


@given(SAMPLES, SAMPLES)
def test_unpaired_interval_matches_welch(x: list[float], y: list[float]) -> None:
    if min(np.ptp(x), np.ptp(y)) > 1e-3:
        band = difference_interval(np.array(x), np.array(y))
        reference = stats.ttest_ind(x, y, equal_var=False).confidence_interval()
        assert (float(band.low), float(band.high)) == pytest.approx((reference.low, reference.high), rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=5, max_size=9), st.randoms(use_true_random=False))
def test_units_are_matched_by_label(pairs: list[tuple[float, float]], random: object) -> None:
    x, y = np.array(pairs).T
    order = list(range(len(pairs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    band = difference_interval(x, y[order], list(range(len(pairs))), order)
    expected = mean_interval(x - y)
    for actual, desired in ((band.estimate, expected.estimate), (band.low, expected.low), (band.high, expected.high)):
        assert float(actual) == pytest.approx(float(desired), abs=1e-9)


def test_shared_unit_effects_cancel() -> None:
    rng, labels = np.random.default_rng(0), np.repeat(range(5), 2).tolist()
    shared = np.repeat(rng.normal(0, 20, 5), 2)
    x, y = shared + 3 + rng.normal(0, 1, 10), shared + rng.normal(0, 1, 10)
    paired_interval, unpaired_interval = difference_interval(x, y, labels, labels), difference_interval(x, y)
    assert paired_interval.estimate == pytest.approx(float(unpaired_interval.estimate))
    assert unpaired_interval.high - unpaired_interval.low > 4 * (paired_interval.high - paired_interval.low)


def test_units_have_equal_weight() -> None:
    x, y = np.array([1.0, 1.0, 1.0, 5.0]), np.zeros(3)
    assert compare_means(x, y, list("aaab"), list("aab")).estimate == 3.0
    assert mean_interval(x, list("aaab")).estimate == 3.0


@pytest.mark.parametrize("units", [1, 2, MINIMUM_UNITS - 1])
def test_small_samples_have_no_interval(units: int) -> None:
    small, large = np.arange(float(units)), np.arange(10.0)
    labels = np.repeat(range(units), 4).tolist()
    bands = [
        mean_interval(small),
        mean_interval(np.arange(4.0 * units), labels),
        difference_interval(small, large),
        difference_interval(large, small),
        difference_interval(small, small + 1, list(range(units)), list(range(units))),
        compute_estimates(small)["mean"],
        improvement_matrix([small, large]),
    ]
    for band in bands:
        assert np.isfinite(band.estimate).all() and np.isnan(band.low).all() and np.isnan(band.high).all()
    assert math.isnan(probability_of_improvement(small, large).low)


def test_curve_points_have_separate_intervals() -> None:
    scores, labels = np.random.default_rng(1).normal(size=(7, 10)), np.repeat(range(5), 2).tolist()
    curve, point = mean_interval(scores, labels), mean_interval(scores[3], labels)
    assert curve.low.shape == (7,)
    for actual, desired in ((curve.estimate, point.estimate), (curve.low, point.low), (curve.high, point.high)):
        assert actual[3] == pytest.approx(float(desired))


def test_equal_scores_have_zero_width() -> None:
    band = difference_interval(np.full(5, 2.0), np.full(6, 1.5))
    assert (float(band.low), float(band.high)) == (0.5, 0.5)


def test_only_mean_has_interval() -> None:
    found = compute_estimates(np.array([40.0, 60, 50, 45, 60]))
    assert found["mean"].estimate == 51 and found["median"].estimate == 50
    assert found["iqm"].estimate == pytest.approx(155 / 3)
    assert np.isfinite(found["mean"].low) and np.isnan(found["iqm"].low) and np.isnan(found["median"].high)


def slow_probability(x: list[float], y: list[float]) -> float:
    return float(
        np.mean([1.0 if left > right else 0.5 if left == right else 0.0 for left, right in itertools.product(x, y)])
    )


@given(SCORES, SCORES)
def test_improvement_counts_pairs(x: list[float], y: list[float]) -> None:
    share = probability_of_improvement(np.array(x), np.array(y)).estimate
    assert share == pytest.approx(slow_probability(x, y))
    assert share + probability_of_improvement(np.array(y), np.array(x)).estimate == pytest.approx(1)


@settings(max_examples=30)
@given(st.lists(SCORES, min_size=1, max_size=4))
def test_matrix_matches_pairs(groups: list[list[float]]) -> None:
    """Use groups of different sizes."""
    scores = [np.array(group) for group in groups]
    band = improvement_matrix(scores)
    for i, j in itertools.product(range(len(scores)), repeat=2):
        expected = 0.5 if i == j else slow_probability(groups[i], groups[j])
        assert band.estimate[i, j] == pytest.approx(expected)
        has_units = i != j and all(len(scores[k]) >= MINIMUM_UNITS for k in (i, j))
        assert np.isfinite(band.low[i, j]) == np.isfinite(band.high[i, j]) == has_units
        if has_units:
            assert -1e-9 <= band.low[i, j] <= band.estimate[i, j] <= band.high[i, j] <= 1 + 1e-9
            assert band.low[i, j] == pytest.approx(1 - band.high[j, i])


def test_complete_separation_is_not_certainty() -> None:
    interval = probability_of_improvement(np.arange(5.0) + 10, np.arange(5.0))
    assert interval.estimate == interval.high == 1 and 0.4 < interval.low < 0.8


def test_improvement_uses_common_units() -> None:
    x, y, labels = np.array([1.1, 1.2, 9.1, 9.2]), np.array([1.0, 1.0, 9.0, 9.0]), list("aabb")
    assert probability_of_improvement(x, y, labels, labels).estimate == 1.0
    assert probability_of_improvement(x, y).estimate == 0.75


def test_describe() -> None:
    scores = np.array([1.0, 2, 3, 6, 3])
    row, band = describe(scores), mean_interval(scores)
    assert row == {
        "mean": 3,
        "standard_error": pytest.approx(float(standard_error(scores))),
        "low": pytest.approx(float(band.low)),
        "high": pytest.approx(float(band.high)),
        "min": 1,
        "max": 6,
    }
    small = describe(scores[:4])
    assert small["standard_error"] is not None and (small["low"], small["high"]) == (None, None)
    single = describe(np.array([2.0]))
    assert (single["mean"], single["standard_error"], single["low"], single["max"]) == (2, None, None, 2)
    assert describe(np.repeat(scores, 2), units=np.repeat(range(5), 2).tolist()) == row


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=5, max_size=30), st.booleans())
def test_difference_is_antisymmetric(pairs: list[tuple[float, float]], is_paired: bool):
    x, y = np.array(pairs).T
    row, reverse = describe_difference(x, y, is_paired), describe_difference(y, x, is_paired)
    assert row["mean"] == pytest.approx(x.mean() - y.mean(), abs=1e-9)
    assert row["low"] - 1e-9 <= row["mean"] <= row["high"] + 1e-9
    assert reverse["mean"] == pytest.approx(-row["mean"], abs=1e-9)
    assert reverse["standard_error"] == pytest.approx(row["standard_error"], abs=1e-9)


def test_unreliable_difference_has_no_interval() -> None:
    single, small = np.array([1.0]), np.array([2.0, 4])
    for row in (
        describe_difference(small, single, False),
        describe_difference(single, single + 1, True),
        describe_difference(small, small[::-1], True, independent=False),
        describe_difference(small, small, False, independent=False),
    ):
        assert (row["standard_error"], row["low"], row["high"]) == (None, None, None)
    assert describe_difference(small, single, False)["mean"] == 2
    assert describe_difference(small, small + 1, False)["standard_error"] is not None


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean_interval(np.array([])),
        lambda: mean_interval(np.array([1.0, np.nan])),
        lambda: mean_interval(np.ones(3), [1, 2]),
        lambda: improvement_matrix([np.array([np.nan]), np.array([1.0])]),
    ],
)
def test_invalid_input_raises(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize(("successes", "low", "high"), [(0, 0.0, 0.194), (15, 0.717, 0.989), (16, 0.806, 1.0)])
def test_proportion_interval_stays_in_range(successes, low, high):
    scores = np.array([1.0] * successes + [0.0] * (16 - successes))
    row = describe(scores, is_proportion=True)
    assert row["low"] == pytest.approx(low, abs=1e-3) and row["high"] == pytest.approx(high, abs=1e-3)
    assert describe(scores, independent=False, is_proportion=True)["low"] is None
