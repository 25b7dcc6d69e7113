"""Groups compared within what they share."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.bootstrap import bootstrap_interval
from llmrl.analysis.crossed_bootstrap import Factors, difference, improvement, mean_band, stays_above
from llmrl.analysis.statistics import mean

SOCIETIES = [k for k in range(5) for _ in range(2)]
CROSSED = Factors(tuple(SOCIETIES), (0, 1) * 5)
NESTED = Factors(tuple(SOCIETIES), tuple(range(10)))


def alone(n: int, first: int = 0) -> Factors:
    """Runs that share nothing."""
    return Factors(tuple(range(first, first + n)), tuple(range(n)))


def test_what_societies_share_is_taken_out():
    rng = np.random.default_rng(0)
    society = np.repeat(rng.normal(0, 20, 5), 2)
    x, y = society + 3 + rng.normal(0, 1, 10), society + rng.normal(0, 1, 10)
    paired = difference(x, y, NESTED, NESTED)
    apart = difference(x, y, alone(10), alone(10, 10))
    assert paired.estimate == pytest.approx(apart.estimate)
    assert 0 < paired.low < 3.5 and paired.high - paired.low < 4
    assert apart.high - apart.low > 5 * (paired.high - paired.low)


def test_it_holds_the_truth_as_often_as_few_societies_let_it():
    rng, held, n = np.random.default_rng(1), 0, 300
    for _ in range(n):
        society, effect = np.repeat(rng.normal(0, 20, 5), 2), np.repeat(rng.normal(2, 2, 5), 2)
        x, y = society + effect + rng.normal(0, 1, 10), society + rng.normal(0, 1, 10)
        band = difference(x, y, NESTED, NESTED, resamples=500)
        held += bool(band.low <= 2 <= band.high)
    assert 0.75 < held / n < 0.97  # a percentile bootstrap of five units: 83 % where nothing is within them


def test_clusters_count_alike_however_many_runs_they_have():
    x, y = np.array([1.0, 1.0, 1.0, 5.0]), np.zeros(3)
    band = difference(x, y, Factors(tuple("aaab"), (0, 1, 2, 0)), Factors(tuple("aab"), (0, 1, 0)))
    assert band.estimate == 3.0
    assert (float(band.low), float(band.high)) == pytest.approx((1.0, 5.0))


def test_curves_are_resampled_together():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(7, 10)), rng.normal(size=(7, 10))
    whole = difference(x, y, CROSSED, CROSSED)
    one = difference(x[3], y[3], CROSSED, CROSSED)
    assert whole.low[3] == pytest.approx(float(one.low)) and whole.estimate[3] == pytest.approx(float(one.estimate))


def test_one_run_of_a_group_has_no_interval():
    band = difference(np.array([1.0]), np.array([0.0, 2.0]), alone(1), alone(2, 1))
    assert band.estimate == 0.0 and np.isnan(band.low)
    assert np.isnan(improvement(np.array([1.0]), np.zeros(2), alone(1), alone(2, 1)).high)


@given(st.lists(st.integers(0, 3), min_size=10, max_size=10), st.lists(st.integers(0, 3), min_size=10, max_size=10))
def test_probabilities_of_both_directions_add_up_to_one(x, y):
    one, other = (
        improvement(np.array(a, float), np.array(b, float), CROSSED, CROSSED, resamples=200)
        for a, b in ((x, y), (y, x))
    )
    assert float(one.estimate + other.estimate) == pytest.approx(1.0)
    assert 0 <= one.low <= one.high <= 1


def test_improvement_is_within_societies():
    # Either of y's societies has one run of x above it, though x's lower runs are below y's higher society.
    x, y = np.array([1.1, 1.2, 9.1, 9.2]), np.array([1.0, 1.0, 9.0, 9.0])
    both = Factors(tuple("aabb"), (0, 1, 0, 1))
    assert improvement(x, y, both, both).estimate == 1.0
    assert improvement(x, y, alone(4), alone(4, 4)).estimate == 0.75


def test_seeds_that_all_societies_have_are_one_draw_each():
    """What a seed brings it brings in every society: ten runs tell as much of it as two."""
    luck = np.array([-10.0, 10.0] * 5)
    crossed, nested = mean_band(luck, CROSSED), mean_band(luck, NESTED)
    assert (float(crossed.low), float(crossed.high)) == (-10, 10)
    assert float(nested.high - nested.low) < 14
    # Both groups have it, so it is no difference between them.
    apart = difference(luck + 1, luck, CROSSED, CROSSED)
    assert float(apart.low) == pytest.approx(1) and float(apart.high) == pytest.approx(1)


def test_an_interval_of_runs_that_share_nothing_is_the_plain_bootstrap():
    values = np.random.default_rng(3).normal(size=20)
    band, plain = mean_band(values, alone(20)), bootstrap_interval(values, mean)
    assert (float(band.low), float(band.high)) == pytest.approx((plain.low, plain.high), abs=0.03)


def test_the_first_place_from_which_on_it_stays():
    places = np.arange(5.0)
    assert stays_above(places, np.array([1, 1, 1, 1, 1.0])) == 0
    assert stays_above(places, np.array([1, 0, 1, 1, 1.0])) == 2
    assert stays_above(places, np.array([1, 1, 1, 1, np.nan])) is None
