"""Principals on functions with known maxima, compared with random search."""

import numpy as np
import pytest

from known_functions import CONTEXTUAL, FUNCTIONS, PRINCIPALS, find_lowest_regret, is_applicable, optimize
from llmrl.core.seeding import Seeds

pytestmark = pytest.mark.slow

STEPS = {"dual_rl": 600, "metagrad": 300}
"""Evaluations where 150 are not enough."""
"""Functions that `make test` tries; dual_rl takes twice as long in contexts, which test_dual_rl.py gives it."""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_match_definitions(name):
    function = FUNCTIONS[name]
    rng, step = np.random.default_rng(0), 1e-6
    low, high = np.array(function.low), np.array(function.high)
    for row, best in enumerate(function.best):
        context = row if function.contexts else None
        assert function.regret(low + best * (high - low), context) == 0
        regrets = [function.regret(vector, context) for vector in rng.uniform(low, high, (3000, len(low)))]
        assert min(regrets) > -1e-6 and max(regrets) <= 1 + 1e-3
        at = low + rng.random(len(low)) * (high - low)
        numeric = [
            function.range
            * (function.regret(at - step * e, context) - function.regret(at + step * e, context))
            / 2
            / step
            for e in np.eye(len(low))
        ]
        outcome = function.outcome(at, context, rng)
        assert np.allclose(outcome.gradient, numeric, atol=1e-5 * function.range)


def late_regret(principal, function, seed, evaluations):
    """Return the mean regret of the last fifth of the proposals."""
    regrets = optimize(function, PRINCIPALS[principal](function.spec, Seeds(seed)), seed, evaluations)
    return float(regrets[-evaluations // 5 :].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("principal", "function"),
    [
        pytest.param(p, f, marks=[pytest.mark.long] * (f != "contextual" or p not in ("cem", "metagrad")))
        for p in PRINCIPALS
        for f in FUNCTIONS
        if p not in ("random", "gp")
    ],
)
def test_learning_beats_chance(principal, function):
    """The last proposals are better than random ones; the best random one may be better than a coarse grid.

    GP has a separate test because it continues to explore at the optimum.
    """
    if not is_applicable(principal, FUNCTIONS[function]):
        pytest.skip("no grid has so many numbers")
    evaluations = STEPS.get(principal, 150)
    seeds = range(2 if principal in STEPS else 20)
    regrets = [late_regret(principal, FUNCTIONS[function], seed, evaluations) for seed in seeds]
    chance = [late_regret("random", FUNCTIONS[function], seed, evaluations) for seed in seeds]
    assert np.mean(regrets) < 0.75 * np.mean(chance), (regrets, chance)


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("function", FUNCTIONS)
def test_gp_beats_random_search(function):
    target_function = FUNCTIONS[function]

    def search_best(name, seed, n):
        return find_lowest_regret(
            target_function,
            optimize(target_function, PRINCIPALS[name](target_function.spec, Seeds(seed)), seed, 36, n),
            n,
        )

    gp, chance = ([search_best(name, seed, n) for n in (1, 4) for seed in range(2)] for name in ("gp", "random"))
    assert np.median(gp) < 0.7 * np.median(chance), (gp, chance)


def test_best_exists_in_all_contexts():
    regrets = np.array([0.5, 0.2, 0.9, 0.1, 0.4, 0.3])
    assert find_lowest_regret(CONTEXTUAL, regrets) == pytest.approx((0.1 + 0.2 + 0.3) / 3)
    assert find_lowest_regret(CONTEXTUAL, regrets, n=2) == pytest.approx((0.2 + 0.1 + 0.3) / 3)
