"""Estimates against closed forms and hand-computed values; intervals against what they promise."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.analysis.bootstrap import bootstrap_bands, bootstrap_interval, describe, describe_difference
from llmrl.analysis.statistics import (
    Interval,
    Levels,
    Variance,
    analysis_of_variance,
    interquartile_mean,
    mean,
    mean_proportion,
    proportion,
    standard_error,
    standard_error_over_tasks,
)

SCORES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=40)


def test_known_values() -> None:
    scores = np.array([2.0, 4, 4, 4, 5, 5, 7, 9])
    assert mean(scores) == 5
    assert standard_error(scores) == pytest.approx(math.sqrt(32 / 7) / math.sqrt(8))
    assert interquartile_mean(scores) == (4 + 4 + 5 + 5) / 4
    assert interquartile_mean(np.array([0.0, 1, 2, 3, 100])) == 2  # floor(5 / 4) = 1 dropped at either end
    assert interquartile_mean(np.array([1.0, 2, 6])) == 3  # too few to drop any
    single = np.array([0.1, 0.2], np.float32)
    assert mean(single) == (np.float64(single[0]) + np.float64(single[1])) / 2, "sums have double precision"


def test_estimates_are_over_the_last_axis() -> None:
    scores = np.random.default_rng(0).normal(size=(3, 4, 10))
    for statistic in (mean, standard_error, interquartile_mean):
        assert statistic(scores).shape == (3, 4)
        assert statistic(scores)[1, 2] == pytest.approx(float(statistic(scores[1, 2])))


@given(SCORES, st.floats(-100, 100), st.floats(0.1, 10))
def test_estimates_follow_shift_and_scale(scores: list[float], shift: float, scale: float) -> None:
    x = np.array(scores)
    for statistic in (mean, interquartile_mean):
        assert statistic(x * scale + shift) == pytest.approx(float(statistic(x)) * scale + shift, rel=1e-6, abs=1e-4)
    assert x.min() - 1e-6 <= interquartile_mean(x) <= x.max() + 1e-6


def test_one_run_has_no_error_bar() -> None:
    assert math.isnan(standard_error(np.array([3.0])))
    interval = bootstrap_interval(np.array([3.0]))
    assert interval.estimate == 3
    assert math.isnan(interval.low)
    assert math.isnan(interval.high)
    assert math.isnan(bootstrap_interval(np.array([[1.0], [2.0]])).low)


def test_bootstrap_of_the_mean_approaches_the_normal_interval() -> None:
    scores = np.random.default_rng(1).normal(10, 2, size=400)
    interval = bootstrap_interval(scores, statistic=mean, seed=3)
    half = 1.96 * float(standard_error(scores))
    assert interval.low == pytest.approx(interval.estimate - half, abs=0.03)
    assert interval.high == pytest.approx(interval.estimate + half, abs=0.03)


def test_bootstrap_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)
    covered = 0
    for i in range(200):
        interval = bootstrap_interval(rng.normal(size=30), statistic=mean, level=0.9, resamples=500, seed=i)
        covered += interval.low <= 0 <= interval.high
    assert 165 <= covered <= 194  # 180 expected, standard deviation 4.2


def test_stratification_keeps_the_share_of_each_group() -> None:
    """Groups far apart and without spread: within groups nothing varies, across groups almost everything."""
    scores = np.array([0.0, 0, 0, 100, 100, 100])
    assert bootstrap_interval(scores, mean, groups=list("aaabbb")) == Interval(50, 50, 50)
    assert bootstrap_interval(scores.reshape(2, 3), mean) == Interval(50, 50, 50)
    pooled = bootstrap_interval(scores, mean)
    assert pooled.low < 30
    assert pooled.high > 70


def test_groups_may_differ_in_size_and_come_in_any_order() -> None:
    scores = np.array([1.0, 5, 2, 5, 3, 5, 5])
    interval = bootstrap_interval(scores, mean, groups=[0, 1, 0, 1, 0, 1, 1])
    assert interval.estimate == pytest.approx(26 / 7)
    assert (3 + 20) / 7 <= interval.low < interval.high <= (9 + 20) / 7


def test_seed_decides_the_interval_and_chunks_do_not_change_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = np.random.default_rng(0).normal(size=20)
    assert bootstrap_interval(scores, seed=1) == bootstrap_interval(scores, seed=1)
    assert bootstrap_interval(scores, seed=1) != bootstrap_interval(scores, seed=2)
    counted = []

    def counting(x: np.ndarray) -> np.ndarray:
        if x.ndim == 2:
            counted.append(len(x))
        return mean(x)

    monkeypatch.setattr("llmrl.analysis.bootstrap._CHUNK", 20 * 300)
    bootstrap_interval(scores, counting, resamples=1000)
    assert counted == [300, 300, 300, 100]


def test_describe() -> None:
    row = describe(np.array([1.0, 2, 3, 6]))
    interval = bootstrap_interval(np.array([1.0, 2, 3, 6]), mean)
    assert row == {
        "mean": 3,
        "standard_error": pytest.approx(math.sqrt(14 / 3 / 4)),
        "low": interval.low,
        "high": interval.high,
        "min": 1,
        "max": 6,
    }
    assert 1 <= interval.low < 3 < interval.high <= 6
    one = describe(np.array([2.0]))
    assert (one["mean"], one["standard_error"], one["low"], one["max"]) == (2, None, None, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean(np.array([])), "no scores"),
        (lambda: mean(np.array([1.0, np.nan])), "NaN"),
        (lambda: bootstrap_interval(np.ones(3), groups=[1, 2]), "2 group labels for 3 scores"),
        *((partial(bootstrap_interval, np.ones(3), level=level), "level") for level in (95, 1, 0)),
        (lambda: standard_error_over_tasks([np.ones(2), np.ones(2)], [Levels()]), "shorter"),
        (lambda: bootstrap_interval(np.ones((2, 2, 2))), "shape"),
    ],
)
def test_nonsense_is_refused(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def nested(rng, pretrainings, runs, societies, episodes, spread=(1.0, 0.5, 0.5, 1.0)):
    """Values [pretrainings, runs, societies, episodes] whose mean is 0, with a standard deviation for each level."""
    shape = (pretrainings, runs, societies, episodes)
    return sum(s * rng.normal(size=(*shape[: i + 1], *(1,) * (3 - i))) for i, s in enumerate(spread)) + np.zeros(shape)


def levels_of(values):
    clusters = np.repeat(np.arange(len(values)), values.shape[1]).tolist()
    return Levels(clusters, [list(run) for run in values.reshape(-1, *values.shape[2:])])


@pytest.mark.slow
def test_what_runs_share_is_part_of_the_interval() -> None:
    """Five pre-training runs of three runs each: as fifteen independent ones they cover too rarely."""
    rng, covered = np.random.default_rng(5), {"flat": 0, "clusters": 0, "levels": 0}
    for _ in range(300):
        values = nested(rng, 5, 3, 2, 4)
        scores, levels = values.mean((2, 3)).ravel(), levels_of(values)
        for name, each in {"flat": None, "clusters": [Levels(levels.clusters)], "levels": [levels]}.items():
            band = bootstrap_bands(scores, {"": mean}, resamples=400, levels=each)[""]
            covered[name] += band.low <= 0 <= band.high
    assert covered["flat"] < 0.78 * 300 < 0.83 * 300 < covered["clusters"] <= covered["levels"]


@given(st.lists(st.lists(st.floats(-100, 100), min_size=1, max_size=4), min_size=1, max_size=5))
def test_runs_that_share_nothing_are_resampled_as_ever(grouped: list[list[float]]) -> None:
    scores = np.concatenate(grouped)
    own, one = [list(range(len(scores)))], ["same"] * len(scores)
    flat = bootstrap_bands(scores, {"": mean}, resamples=50)[""]
    for clusters in (own[0], one):
        band = bootstrap_bands(scores, {"": mean}, resamples=50, levels=[Levels(clusters)])[""]
        assert np.array_equal([flat.low, flat.high], [band.low, band.high], equal_nan=True)
        assert standard_error(scores, clusters) == pytest.approx(float(standard_error(scores)), nan_ok=True)
    shared = [label for label, part in enumerate(grouped) for _ in part]
    band = bootstrap_bands(scores, {"": mean}, resamples=50, levels=[Levels(shared)])[""]
    assert len(scores) == 1 or scores.min() - 1e-9 <= band.low <= band.high <= scores.max() + 1e-9


def test_standard_error_of_runs_that_share_something() -> None:
    """Runs that are copies of one another tell as much as one of each."""
    means = np.array([1.0, 4.0, 4.0, 7.0, 9.0])
    copies, clusters = np.repeat(means, 3), np.repeat(np.arange(5), 3).tolist()
    assert standard_error(copies, clusters) == pytest.approx(float(standard_error(means)))
    assert standard_error(copies) < 0.6 * standard_error(means)
    rng, errors, estimates = np.random.default_rng(0), [], []
    for _ in range(400):
        scores = nested(rng, 8, 3, 1, 1).mean((2, 3)).ravel()
        errors.append(float(standard_error(scores, np.repeat(np.arange(8), 3).tolist())) ** 2)
        estimates.append(scores.mean())
    assert np.mean(errors) == pytest.approx(np.var(estimates), rel=0.15)


def test_societies_and_episodes_are_resampled_within_their_run() -> None:
    """Two runs that scored the same: only what is inside them tells how far to trust that."""
    inside = [[np.array([0.0, 4.0]), np.array([2.0, 6.0])], [np.array([3.0, 3.0, 3.0])]]
    scores = np.array([3.0, 3.0])
    band = bootstrap_bands(scores, {"": mean}, resamples=4000, levels=[Levels(None, inside)])[""]
    assert band.low < 2.2 and band.high > 3.8 and band.estimate == 3
    still = bootstrap_bands(scores, {"": mean}, resamples=200, levels=[Levels(None, [inside[1]] * 2)])[""]
    assert (still.low, still.high) == (3, 3)
    with pytest.raises(ValueError, match="not the mean of its episodes"):
        bootstrap_bands(np.array([9.0, 3.0]), {"": mean}, resamples=10, levels=[Levels(None, inside)])
    # Of two episodes, each may be drawn twice; of many, their mean hardly moves.
    for episodes, half in (([0.0, 4.0], 2.0), ([0.0, 4.0] * 100, 0.2)):
        band = bootstrap_bands(
            np.full(2, 2.0), {"": mean}, resamples=4000, levels=[Levels(None, [[np.array(episodes)]] * 2)]
        )[""]
        assert (band.low, band.high) == (pytest.approx(2 - half, abs=0.03), pytest.approx(2 + half, abs=0.03))
    # Societies weigh the same, however many episodes each played.
    uneven = [[np.array([0.0]), np.array([1.0] * 30)]] * 2
    band = bootstrap_bands(np.array([0.5, 0.5]), {"": mean}, resamples=4000, levels=[Levels(None, uneven)])[""]
    assert (band.low, band.high) == (0, 1)


GROUPS = [np.array(own, dtype=float) for own in ([6, 8, 4, 5, 3, 4], [8, 12, 9, 11, 6, 8], [13, 9, 11, 8, 7, 12])]


def test_an_analysis_of_variance_as_a_textbook_has_it() -> None:
    found = analysis_of_variance([GROUPS])
    assert found.p == pytest.approx(0.0023987773293929083, rel=1e-9)  # F(2, 15) = 9.2647
    assert found.spread == pytest.approx(np.std([5, 9, 10], ddof=1))
    assert found.noise == pytest.approx(math.sqrt(68 / 15 / 6))


@pytest.mark.parametrize(
    ("between", "within", "ratio", "p"),
    [
        (1, 1, 1.0, 0.5),
        (5, 6, 4.387374, 0.05000000455179266),
        (5, 6, 0.5, 0.7680271846131065),
        (47, 48, 1.7, 0.03506413291451887),
        (200, 300, 1.05, 0.34947032355973817),
    ],
)
def test_tails_of_the_f_distribution(between: int, within: int, ratio: float, p: float) -> None:
    """Groups made such that F is `ratio`, with so many degrees of freedom."""
    sizes = np.bincount(np.arange(between + 1 + within) % (between + 1))
    deviations = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in sizes]
    means = np.random.default_rng(0).normal(size=between + 1)
    mean_square = float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum()) / between
    scale = math.sqrt(ratio * sum(float((own**2).sum()) for own in deviations) / within / mean_square)
    made = [own + scale * m for own, m in zip(deviations, means, strict=True)]
    assert analysis_of_variance([made]).p == pytest.approx(p, rel=1e-6)


@given(shift=st.floats(-100, 100), scale=st.floats(0.01, 100), apart=st.floats(-50, 50))
def test_an_analysis_of_variance_has_no_unit_and_compares_within_strata(
    shift: float, scale: float, apart: float
) -> None:
    found, own = analysis_of_variance([GROUPS]), [shift + scale * group for group in GROUPS]
    moved = analysis_of_variance([own])
    assert found.p is not None and found.noise is not None
    assert moved.p == pytest.approx(found.p, rel=1e-4) and moved.spread == pytest.approx(scale * found.spread, rel=1e-4)
    twice = [analysis_of_variance([GROUPS, [group + by for group in GROUPS]]) for by in (0.0, apart)]
    assert twice[0].p == pytest.approx(twice[1].p, rel=1e-4) and twice[1].spread == pytest.approx(found.spread)
    assert twice[1].noise == pytest.approx(found.noise)


def test_what_an_analysis_of_variance_cannot_tell() -> None:
    assert analysis_of_variance([[np.array([1.0]), np.array([3.0])]]) == Variance(math.sqrt(2), None, None)
    still = [np.array([1.0, 1.0]), np.array([3.0, 3.0])]
    assert analysis_of_variance([still]).p == 0.0 and analysis_of_variance([[still[0], still[0]]]).p == 1.0
    with pytest.raises(ValueError, match="two groups"):
        analysis_of_variance([[np.array([1.0, 2.0])]])


def test_groups_that_are_alike_are_rarely_taken_to_differ() -> None:
    rng = np.random.default_rng(1)
    found = [analysis_of_variance([list(rng.normal(size=(6, 2)))]).p for _ in range(2000)]
    assert 0.035 < np.mean([p is not None and p < 0.05 for p in found]) < 0.065


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.floats(-1e3, 1e3)), min_size=2, max_size=30), st.booleans())
def test_a_difference_is_that_of_the_means_and_turns_with_its_sides(pairs: list[tuple[float, float]], paired: bool):
    x, y = np.array(pairs).T
    row = describe_difference(x, y, paired)
    assert row["mean"] == pytest.approx(x.mean() - y.mean(), abs=1e-9)
    assert row["low"] - 1e-9 <= row["mean"] <= row["high"] + 1e-9
    back = describe_difference(y, x, paired)
    assert back["mean"] == pytest.approx(-row["mean"]) and back["standard_error"] == pytest.approx(
        row["standard_error"], abs=1e-9
    )


def test_pairs_are_resampled_together_and_others_apart() -> None:
    rng = np.random.default_rng(0)
    y = rng.normal(0, 5, 200)
    x = y + rng.normal(1, 0.5, 200)
    paired, apart = describe_difference(x, y, True, seed=3), describe_difference(x, y, False, seed=3)
    both = describe(x - y, seed=3)
    assert paired == {name: both[name] for name in ("mean", "standard_error", "low", "high")}
    error = math.sqrt(x.var(ddof=1) / 200 + y.var(ddof=1) / 200)
    assert apart["standard_error"] == pytest.approx(error)
    assert (apart["high"] - apart["low"]) / 2 == pytest.approx(1.96 * error, rel=0.1)
    assert apart["high"] - apart["low"] > 5 * (paired["high"] - paired["low"])
    fewer = describe_difference(x[:50], y, False)
    assert fewer["mean"] == pytest.approx(x[:50].mean() - y.mean())
    assert fewer["standard_error"] == pytest.approx(math.sqrt(x[:50].var(ddof=1) / 50 + y.var(ddof=1) / 200))


def test_a_difference_that_cannot_be_trusted_has_no_interval() -> None:
    one, few = np.array([1.0]), np.array([2.0, 4])
    for row in (
        describe_difference(few, one, False),
        describe_difference(one, one + 1, True),
        describe_difference(few, few[::-1], True, independent=False),
        describe_difference(few, few, False, independent=False),
    ):
        assert (row["standard_error"], row["low"], row["high"]) == (None, None, None)
    assert describe_difference(few, one, False)["mean"] == 2


def test_intervals_of_shares() -> None:
    assert proportion(0, 10).low == 0 and proportion(10, 10).high == 1
    # Wilson's interval is where the score test would not reject.
    for successes, n in ((3, 20), (0, 7), (50, 100)):
        found = proportion(successes, n)
        assert (found.low > 0) == (successes > 0) and found.low <= found.estimate == successes / n < found.high < 1
        for bound in {found.low, found.high} - {0}:
            error = math.sqrt(bound * (1 - bound) / n)
            assert abs(found.estimate - bound) / error == pytest.approx(1.959964, abs=1e-5)
    one = Interval(0.5, 0.4, 0.7)
    assert mean_proportion([one]) == one
    four = mean_proportion([one] * 4)
    assert (four.low, four.high) == (pytest.approx(0.45), pytest.approx(0.6))
    with pytest.raises(ValueError, match="of 0 episodes"):
        proportion(0, 0)


def test_the_mean_over_kinds_is_covered_as_often_as_said() -> None:
    rng, shares, covered = np.random.default_rng(0), np.array([0.9, 0.5, 0.05, 0.0, 1.0]), 0
    for _ in range(400):
        found = mean_proportion([proportion(int(rng.binomial(30, p)), 30) for p in shares])
        covered += found.low <= shares.mean() <= found.high
    assert 0.93 < covered / 400 <= 1.0
