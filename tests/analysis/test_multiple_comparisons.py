"""p-values against scipy, and Holm's correction against an example computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from llmrl.statistics.intervals import adjust_p_values, p_value

SAMPLES = st.lists(st.floats(-100, 100), min_size=5, max_size=12)
P_VALUES = st.lists(st.floats(0, 1), max_size=12)


@given(SAMPLES, SAMPLES)
def test_independent_groups_use_welch(x: list[float], y: list[float]) -> None:
    if min(np.ptp(x), np.ptp(y)) > 1e-3:
        expected = stats.ttest_ind(x, y, equal_var=False).pvalue
        assert p_value(np.array(x), np.array(y)) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(st.lists(st.tuples(*[st.floats(-100, 100)] * 2), min_size=5, max_size=12))
def test_paired_groups_use_paired_test(pairs: list[tuple[float, float]]) -> None:
    x, y = np.array(pairs).T
    labels = list(range(len(x)))
    if np.ptp(x - y) > 1e-3:
        assert p_value(x, y, labels, labels) == pytest.approx(stats.ttest_rel(x, y).pvalue, rel=1e-6, abs=1e-12)


def test_runs_of_unit_count_once() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=6), rng.normal(1, 2, size=6)
    labels = list(range(6))
    twice = [label for label in labels for _ in range(2)]
    other_labels = [label + 100 for label in twice]
    assert p_value(np.repeat(x, 2), np.repeat(y, 2), twice, twice) == pytest.approx(p_value(x, y, labels, labels))
    assert p_value(np.repeat(x, 2), np.repeat(y, 2), twice, other_labels) == pytest.approx(p_value(x, y))


def test_small_samples_have_no_p_value() -> None:
    assert np.isnan(p_value(np.arange(4.0), np.arange(9.0)))
    assert np.isnan(p_value(np.arange(8.0), np.arange(8.0), [0, 0, 1, 1] * 2, [0, 0, 1, 1] * 2))


def test_constant_scores() -> None:
    assert p_value(np.full(5, 2.0), np.full(5, 1.0)) == 0
    assert p_value(np.full(5, 2.0), np.full(5, 2.0)) == 1


def test_holm_example() -> None:
    """Compute by hand: 4 * .005 = .02; 3 * .01 = .03; 2 * .03 = .06; 1 * .04 = .04, raised to .06."""
    assert adjust_p_values([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjust_p_values([0.5, 0.6]) == [1.0, 1.0]
    assert adjust_p_values([]) == []


def test_untestable_comparisons_are_excluded() -> None:
    adjusted = adjust_p_values([0.01, float("nan"), 0.04])
    assert np.isnan(adjusted[1]) and [adjusted[0], adjusted[2]] == pytest.approx([0.02, 0.04])


@given(P_VALUES)
def test_holm_is_monotone(p: list[float]) -> None:
    adjusted = adjust_p_values(p)
    for raw_p, adjusted_p in zip(p, adjusted, strict=True):
        assert raw_p <= adjusted_p <= min(1.0, len(p) * raw_p) + 1e-12
    order = np.argsort(p, kind="stable")
    assert (np.diff(np.array(adjusted)[order]) >= 0).all()


def test_holm_controls_familywise_error() -> None:
    rng = np.random.default_rng(1)
    false = [min(adjust_p_values(list(row))) < 0.05 for row in rng.uniform(size=(4000, 6))]
    assert 0.035 < np.mean(false) < 0.06
