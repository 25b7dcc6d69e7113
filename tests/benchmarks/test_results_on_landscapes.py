"""The result of mechanism design on landscapes with known truth and noise: unbiased, and in the order of the truth."""

import itertools
from functools import cache

import numpy as np
import pytest
from landscape_functions import RANDOM_FAMILIES, SCALE, landscape
from landscapes import PRINCIPALS, build_principal, standard_error

from landscape_game import design

pytestmark = pytest.mark.slow

FAST = ("random", "sobol", "ucb", "cmaes")
SLOWER = tuple(name for name in PRINCIPALS if name not in (*FAST, "gp"))
"""`gp` takes minutes for so many runs; its recommendations are evaluated by the same code."""


@cache
def searches(name: str, runs: int) -> np.ndarray:
    """Result, true value of the recommendation, and highest measurement of each run, [runs, 3], shares of the range."""
    rows = []
    for run in range(runs):
        found = landscape(list(RANDOM_FAMILIES)[run % len(RANDOM_FAMILIES)], run // len(RANDOM_FAMILIES))
        summary = design(found, build_principal(name, found, run, 20, "scripted"), run)
        [recommended] = summary["recommendations"]
        assert summary["recommendation"] == recommended["objective"]
        truth = found.value(np.array(list(recommended["mechanism"].values())))
        highest = max(row["objective"] for row in summary["history"])
        rows.append((np.array([recommended["objective"], truth, highest]) - found.floor) / SCALE)
    return np.array(rows)


def deviation(differences: np.ndarray) -> float:
    """Mean in units of its standard error."""
    return float(differences.mean() / standard_error(differences))


def check_results(names: tuple[str, ...], runs: int) -> None:
    found = {name: searches(name, runs).T for name in names}
    for name, (result, truth, _) in found.items():
        assert abs(deviation(result - truth)) <= 2, name
    # What principals measured themselves is biased by the choice of the highest.
    assert deviation(np.mean([highest - truth for _, truth, highest in found.values()], axis=0)) > 3
    for one, other in itertools.combinations(names, 2):
        result, truth, _ = found[one] - found[other]
        if abs(deviation(truth)) > 3:
            assert np.sign(result.mean()) == np.sign(truth.mean()), (one, other)


def test_results_are_unbiased_and_ranked_like_the_truth():
    check_results(FAST, 40)


@pytest.mark.long
def test_results_of_all_principals_are_unbiased_and_ranked_like_the_truth():
    check_results((*FAST, *SLOWER), 200)
