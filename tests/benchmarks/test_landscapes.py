"""Landscapes with known truth, and principals that search them."""

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
def test_interpolation_passes_through_the_measured_settings(name, columns):
    found = measured_landscape(name)
    table = np.loadtxt(DATA / f"landscape_{name}_landscape.csv", delimiter=",", skiprows=1)
    varied = [i for i in range(table.shape[1] - 3) if np.ptp(table[:, i]) > 0]
    assert len(varied) == columns == found.space.dim
    values = [found.value(row[varied]) for row in table]
    assert np.allclose(values, table[:, -3])
    assert found.score(np.zeros(columns)) == 0
    assert max(found.score(row[varied]) for row in table) == pytest.approx(1)
    # No value between the settings is above all of them.
    points = np.random.default_rng(0).random((2000, columns))
    assert max(found.score(vector) for vector in from_unit(found.space, points)) <= 1


@settings(max_examples=30)
@given(family=st.sampled_from(sorted(RANDOM_FAMILIES)), seed=st.integers(0, 2**20))
def test_random_landscapes_have_the_stated_range_and_noise(family, seed):
    found = landscape(family, seed)
    assert found.space.dim == 1 + seed % 4
    points = np.random.default_rng(seed).random((4000, found.space.dim))
    scores = (found.mean(points) - found.floor) / (found.best - found.floor)
    # The extremes are found numerically.
    assert scores.min() > -0.02 and scores.max() < 1.02
    assert found.best - found.floor == SCALE
    noise = found.noise(points)
    assert (noise == noise[0]).all() and 0.02 * SCALE <= noise[0] <= 0.15 * SCALE


@pytest.mark.parametrize("family", FAMILIES)
def test_measurements_are_unbiased_and_report_their_error(family):
    found, rng = landscape(family, 3), np.random.default_rng(0)
    vector = from_unit(found.space, np.full(found.space.dim, 0.4))
    outcomes = [found.measure(vector, rng) for _ in range(600)]
    values = np.array([each.value for each in outcomes])
    noise = float(found.noise(np.full((1, found.space.dim), 0.4))[0])
    assert abs(values.mean() - found.value(vector)) <= 4 * noise / np.sqrt(600)
    assert values.std() == pytest.approx(noise, rel=0.15)
    assert np.mean([each.standard_error**2 for each in outcomes]) == pytest.approx(noise**2, rel=0.25)


@pytest.mark.parametrize("family", RANDOM_FAMILIES)
def test_landscapes_of_a_family_differ_and_are_drawn_again_alike(family):
    points = np.random.default_rng(0).random((50, 2))
    first, again, other = (landscape.__wrapped__(family, seed).mean(points) for seed in (1, 1, 5))
    assert np.array_equal(first, again) and not np.allclose(first, other)


class Recommending:
    """A principal that recommends the vector measured first."""

    def recommend(self, context, n, estimates):
        return np.array([sorted(estimates.ranked(context), key=lambda each: each.first)[0].vector])[:n]


def test_rule_of_the_principal_is_scored_and_else_the_incumbent():
    estimates = PooledEstimates()
    for vector, value in (((0.0,), 1.0), ((1.0,), 3.0)):
        estimates.add(vector, value, None, 1, 1)
    assert recommendation(Recommending(), estimates).tolist() == [0.0]
    assert recommendation(object(), estimates).tolist() == [1.0]


@pytest.mark.parametrize("name", sorted(set(PRINCIPALS) - {"gp", "dual_rl"}))
def test_every_principal_is_scored_after_5_10_and_20_proposals(name):
    scores, seconds = search(name, "gate", 1, 20, 1, "scripted")
    assert list(scores) == [("gate", 1, n) for n in (5, 10, 20)]
    assert all(-0.02 < score < 1.02 for row in scores.values() for score in row.values()) and seconds > 0
    assert search(name, "gate", 1, 20, 1, "scripted")[0] == scores


def test_random_search_finds_more_with_more_proposals():
    rows = [search("random", "cleanup", run, 20, 1, "scripted")[0] for run in range(40)]
    mean = {n: np.mean([row["cleanup", run, n]["random"] for run, row in enumerate(rows)]) for n in (5, 20)}
    assert mean[20] > mean[5] + 0.1


def test_scores_are_written_and_read_back(tmp_path):
    path = tmp_path / "runs.csv"
    scores = {("gate", 1, 5): {"random": 0.25, "gp": 0.5}, ("harvest", 0, 20): {"random": 0.75}}
    landscapes.write_scores(path, scores)
    assert landscapes.read_scores(path) == scores and landscapes.read_scores(tmp_path / "none.csv") == {}
    cells = landscapes.collect_cells(scores)
    assert cells["random", "gate", 5].tolist() == [0.25] and ("gp", "harvest", 20) not in cells
    assert "0.75" in landscapes.format_tables(cells)
