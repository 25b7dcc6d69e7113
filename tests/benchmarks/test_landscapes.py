"""Landscapes with known optimum, and principals that search them."""

import landscapes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from landscape_functions import DATA, FAMILIES, RANDOM_FAMILIES, SCALE, landscape, measured_landscape
from landscapes import PRINCIPALS, recommendation, search

from llmrl.core.pooling import PooledEstimates
from llmrl.core.unit_cube import from_unit


@pytest.mark.parametrize(("name", "columns"), [("harvest", 3), ("cleanup", 3), ("escape_room", 2)])
def test_interpolation_is_exact_at_measurements(name, columns):
    sampled = measured_landscape(name)
    table = np.loadtxt(DATA / f"landscape_{name}_landscape.csv", delimiter=",", skiprows=1)
    varied = [i for i in range(table.shape[1] - 3) if np.ptp(table[:, i]) > 0]
    assert len(varied) == columns == sampled.space.dim
    values = [sampled.value(row[varied]) for row in table]
    assert np.allclose(values, table[:, -3])
    assert sampled.score(np.zeros(columns)) == 0
    assert max(sampled.score(row[varied]) for row in table) == pytest.approx(1)
    # No value between the settings is above all of them.
    points = np.random.default_rng(0).random((2000, columns))
    assert max(sampled.score(vector) for vector in from_unit(sampled.space, points)) <= 1


@settings(max_examples=30)
@given(family=st.sampled_from(sorted(RANDOM_FAMILIES)), seed=st.integers(0, 2**20))
def test_random_landscapes_match_range_and_noise(family, seed):
    sampled = landscape(family, seed)
    assert sampled.space.dim == 1 + seed % 4
    points = np.random.default_rng(seed).random((4000, sampled.space.dim))
    scores = (sampled.mean(points) - sampled.floor) / (sampled.best - sampled.floor)
    # The extremes are found numerically.
    assert scores.min() > -0.02 and scores.max() < 1.02
    assert sampled.best - sampled.floor == SCALE
    noise = sampled.noise(points)
    assert (noise == noise[0]).all() and 0.02 * SCALE <= noise[0] <= 0.15 * SCALE


@pytest.mark.parametrize("family", FAMILIES)
def test_measurements_have_no_bias_and_report_error(family):
    sampled, rng = landscape(family, 3), np.random.default_rng(0)
    vector = from_unit(sampled.space, np.full(sampled.space.dim, 0.4))
    outcomes = [sampled.measure(vector, rng) for _ in range(600)]
    values = np.array([outcome.value for outcome in outcomes])
    noise = float(sampled.noise(np.full((1, sampled.space.dim), 0.4))[0])
    assert abs(values.mean() - sampled.value(vector)) <= 4 * noise / np.sqrt(600)
    assert values.std() == pytest.approx(noise, rel=0.15)
    assert np.mean([outcome.standard_error**2 for outcome in outcomes]) == pytest.approx(noise**2, rel=0.25)


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
def test_landscapes_are_distinct_and_reproducible(family):
    points = np.random.default_rng(0).random((50, 2))
    first, same_seed, different = (landscape.__wrapped__(family, seed).mean(points) for seed in (1, 1, 5))
    assert np.array_equal(first, same_seed) and not np.allclose(first, different)


class Recommending:
    """A principal that recommends the vector measured first."""

    def recommend(self, context, n, estimates):
        return np.array([sorted(estimates.ranked(context), key=lambda estimate: estimate.first_index)[0].vector])[:n]


def test_recommendation_or_incumbent_is_scored():
    estimates = PooledEstimates()
    for vector, value in (((0.0,), 1.0), ((1.0,), 3.0)):
        estimates.add(vector, value, None, 1, 1)
    assert recommendation(Recommending(), estimates).tolist() == [0.0]
    assert recommendation(object(), estimates).tolist() == [1.0]


@pytest.mark.parametrize("name", sorted(set(PRINCIPALS) - {"gp", "dual_rl"}))
def test_principals_are_scored_at_5_10_20_proposals(name):
    scores, seconds = search(name, "gate", 1, 20, 1, "scripted")
    assert list(scores) == [("gate", 1, n) for n in (5, 10, 20)]
    assert all(-0.02 < score < 1.02 for row in scores.values() for score in row.values()) and seconds > 0
    assert search(name, "gate", 1, 20, 1, "scripted")[0] == scores


def test_random_search_improves_with_proposals():
    rows = [search("random", "cleanup", run, 20, 1, "scripted")[0] for run in range(40)]
    mean = {n: np.mean([row["cleanup", run, n]["random"] for run, row in enumerate(rows)]) for n in (5, 20)}
    assert mean[20] > mean[5] + 0.1


def test_scores_round_trip(tmp_path):
    path = tmp_path / "runs.csv"
    scores = {("gate", 1, 5): {"random": 0.25, "gp": 0.5}, ("harvest", 0, 20): {"random": 0.75}}
    landscapes.write_scores(path, scores)
    assert landscapes.read_scores(path) == scores and landscapes.read_scores(tmp_path / "none.csv") == {}
    cells = landscapes.collect_cells(scores)
    assert cells["random", "gate", 5].tolist() == [0.25] and ("gp", "harvest", 20) not in cells
    assert "0.75" in landscapes.format_tables(cells)


def test_replicates_reduce_noise():
    """The mean of many societies leaves no luck: the incumbent of random search is the best of its proposals."""
    scores = [search("random", "cleanup", run, 20, 1, "scripted", n)[0] for n in (1, 10**8) for run in range(40)]
    single, many = (
        [row["cleanup", run, 20]["random"] for run, row in enumerate(part)] for part in (scores[:40], scores[40:])
    )
    assert np.mean(many) > np.mean(single)
