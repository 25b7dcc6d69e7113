"""Estimates against closed forms and hand-computed values."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.statistics.estimators import (
    AnalysisOfVariance,
    Interval,
    analysis_of_variance,
    average_by_unit,
    interquartile_mean,
    mean,
    mean_proportion,
    median,
    proportion,
    standard_error,
    standard_error_of_mean,
    wilson_bounds,
)

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_reference_estimates() -> None:
    scores = np.array([2.0, 4, 4, 4, 5, 5, 7, 9])
    assert mean(scores) == 5
    assert standard_error(scores) == pytest.approx(math.sqrt(32 / 7) / math.sqrt(8))
    assert interquartile_mean(scores) == (4 + 4 + 5 + 5) / 4
    assert interquartile_mean(np.array([0.0, 1, 2, 3, 100])) == 2  # floor(5 / 4) = 1 dropped at either end
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3  # too few to drop any
    single = np.array([0.1, 0.2], np.float32)
    assert mean(single) == (np.float64(single[0]) + np.float64(single[1])) / 2, "sums have double precision"


def test_estimates_reduce_last_axis() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 4, 10))
    for statistic in (mean, standard_error, interquartile_mean):
        assert statistic(scores).shape == (3, 4)
        assert statistic(scores)[1, 2] == pytest.approx(float(statistic(scores[1, 2])))


@given(SCORES, st.floats(-100, 100), st.floats(0.1, 10))
def test_estimates_are_equivariant(scores: list[float], shift: float, scale: float) -> None:
    x = np.array(scores)
    for statistic in (mean, interquartile_mean):
        assert statistic(x * scale + shift) == pytest.approx(float(statistic(x)) * scale + shift, rel=1e-6, abs=1e-4)
    assert x.min() - 1e-6 <= interquartile_mean(x) <= x.max() + 1e-6


def test_standard_errors_of_small_samples() -> None:
    assert math.isnan(standard_error(np.array([3.0])))
    assert standard_error_of_mean(np.array([3.0])) is None


@pytest.mark.parametrize(
    "call",
    [
        lambda: mean(np.array([])),
        lambda: mean(np.array([1.0, np.nan])),
        lambda: standard_error(np.ones(3), [1, 2]),
    ],
)
def test_invalid_input_raises(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()


@given(SCORES, st.randoms(use_true_random=False))
def test_estimates_are_permutation_invariant(scores: list[float], random: object) -> None:
    shuffled = list(scores)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for statistic in (mean, median, interquartile_mean, standard_error):
        assert statistic(np.array(shuffled)) == pytest.approx(statistic(np.array(scores)), nan_ok=True, abs=1e-6)


def test_runs_are_averaged_per_unit() -> None:
    """Check that copies of runs add no information."""
    means, units = np.array([1.0, 4.0, 4.0, 7.0, 9.0]), [k for k in range(5) for _ in range(3)]
    assert average_by_unit(np.repeat(means, 3), units) == pytest.approx(means)
    assert standard_error(np.repeat(means, 3), units) == pytest.approx(float(standard_error(means)))
    assert standard_error(np.repeat(means, 3)) < 0.6 * standard_error(means)
    assert average_by_unit(np.array([[1.0, 5.0, 3.0]]), list("aba")).tolist() == [[2.0, 5.0]]


GROUPS = [
    np.array(scores_of_group, dtype=float)
    for scores_of_group in ([6, 8, 4, 5, 3, 4], [8, 12, 9, 11, 6, 8], [13, 9, 11, 8, 7, 12])
]


def test_analysis_of_variance_matches_textbook() -> None:
    variance_table = analysis_of_variance([GROUPS])
    assert variance_table.p == pytest.approx(0.0023987773293929083, rel=1e-9)  # F(2, 15) = 9.2647
    assert variance_table.spread == pytest.approx(np.std([5, 9, 10], ddof=1))
    assert variance_table.noise == pytest.approx(math.sqrt(68 / 15 / 6))


@pytest.mark.parametrize(
    ("df_between", "df_within", "ratio", "p"),
    [
        (1, 1, 1.0, 0.5),
        (5, 6, 4.387374, 0.05000000455179266),
        (5, 6, 0.5, 0.7680271846131065),
        (47, 48, 1.7, 0.03506413291451887),
        (200, 300, 1.05, 0.34947032355973817),
    ],
)
def test_f_distribution_tails(df_between: int, df_within: int, ratio: float, p: float) -> None:
    """Construct groups with F equal to `ratio` and the given degrees of freedom."""
    sizes = np.bincount(np.arange(df_between + 1 + df_within) % (df_between + 1))
    deviations = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in sizes]
    means = np.random.default_rng(0).normal(size=df_between + 1)
    mean_square = float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum()) / df_between
    scale = math.sqrt(
        ratio * sum(float((scores_of_group**2).sum()) for scores_of_group in deviations) / df_within / mean_square
    )
    scaled_groups = [scores_of_group + scale * m for scores_of_group, m in zip(deviations, means, strict=True)]
    assert analysis_of_variance([scaled_groups]).p == pytest.approx(p, rel=1e-6)


@given(shift=st.floats(-100, 100), scale=st.floats(0.01, 100), offset=st.floats(-50, 50))
def test_analysis_of_variance_is_stratified(shift: float, scale: float, offset: float) -> None:
    variance_table, scores_of_group = analysis_of_variance([GROUPS]), [shift + scale * group for group in GROUPS]
    shifted_table = analysis_of_variance([scores_of_group])
    assert variance_table.p is not None and variance_table.noise is not None
    assert shifted_table.p == pytest.approx(variance_table.p, rel=1e-4) and shifted_table.spread == pytest.approx(
        scale * variance_table.spread, rel=1e-4
    )
    twice = [analysis_of_variance([GROUPS, [group + step for group in GROUPS]]) for step in (0.0, offset)]
    assert twice[0].p == pytest.approx(twice[1].p, rel=1e-4) and twice[1].spread == pytest.approx(variance_table.spread)
    assert twice[1].noise == pytest.approx(variance_table.noise)


def test_degenerate_analysis_of_variance() -> None:
    assert analysis_of_variance([[np.array([1.0]), np.array([3.0])]]) == AnalysisOfVariance(math.sqrt(2), None, None)
    constant_groups = [np.array([1.0, 1.0]), np.array([3.0, 3.0])]
    assert (
        analysis_of_variance([constant_groups]).p == 0.0
        and analysis_of_variance([[constant_groups[0], constant_groups[0]]]).p == 1.0
    )
    with pytest.raises(ValueError, match="two groups"):
        analysis_of_variance([[np.array([1.0, 2.0])]])


def test_false_positive_rate_of_equal_groups() -> None:
    rng = np.random.default_rng(1)
    p_values = [analysis_of_variance([list(rng.normal(size=(6, 2)))]).p for _ in range(2000)]
    assert 0.035 < np.mean([p is not None and p < 0.05 for p in p_values]) < 0.065


def test_proportion_intervals() -> None:
    assert proportion(0, 10).low == 0 and proportion(10, 10).high == 1
    # Wilson's interval is where the score test would not reject.
    for successes, n in ((3, 20), (0, 7), (50, 100)):
        interval_estimate = proportion(successes, n)
        assert (interval_estimate.low > 0) == (
            successes > 0
        ) and interval_estimate.low <= interval_estimate.estimate == successes / n < interval_estimate.high < 1
        for bound in {interval_estimate.low, interval_estimate.high} - {0}:
            error = math.sqrt(bound * (1 - bound) / n)
            assert abs(interval_estimate.estimate - bound) / error == pytest.approx(1.959964, abs=1e-5)
    interval = Interval(0.5, 0.4, 0.7)
    assert mean_proportion([interval]) == interval
    four = mean_proportion([interval] * 4)
    assert (four.low, four.high) == (pytest.approx(0.45), pytest.approx(0.6))
    with pytest.raises(ValueError, match="of 0 episodes"):
        proportion(0, 0)


def test_mean_over_kinds_has_coverage() -> None:
    rng, shares, n_covered = np.random.default_rng(0), np.array([0.9, 0.5, 0.05, 0.0, 1.0]), 0
    for _ in range(400):
        interval_estimate = mean_proportion([proportion(int(rng.binomial(30, p)), 30) for p in shares])
        n_covered += interval_estimate.low <= shares.mean() <= interval_estimate.high
    assert 0.93 < n_covered / 400 <= 1.0


def test_wilson_bounds():
    """Compare with values computed by hand from Brown, Cai and DasGupta (2001): 8 of 10."""
    assert np.array(wilson_bounds(np.array(0.8), 10)) == pytest.approx([0.4901625, 0.9433178], abs=1e-6)
    assert np.array(wilson_bounds(np.array(0.0), 20)) == pytest.approx([0.0, 0.1611252], abs=1e-6)
    assert wilson_bounds(np.array(1.0), 20)[1] == 1.0
