"""Known good policies reach their stated returns over 100 episodes (benchmarks/known_policies.py)."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[3] / "benchmarks"
SPEC = importlib.util.spec_from_file_location("known_policies", FOLDER / "known_policies.py")
policies_module = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(policies_module)

# What each returns: at least the mean of the policies published with ProPS, or the optimum where there is one, and how
# far a mean over 100 episodes may lie below it by chance.
BARS = {
    "cartpole": (500.0, 0.0),
    "mountain_car": (-120.0, 0.0),
    "mountain_car_continuous": (95.0, 0.0),
    "inverted_pendulum": (1000.0, 0.0),
    "swimmer": (300.0, 0.0),
    "pong": (3.0, 0.0),
    "navigation": (2500.0, 400.0),
    "frozen_lake": (0.74, 0.14),
    "cliff_walking": (-13.0, 0.0),
    "cliff_walking is_slippery": (-63.0, 6.0),
    "maze": (1 - 0.3 / 9, 1e-9),
    "nim": (1.0, 0.0),
    "nim takes": (-1 / 9, 0.3),
}
SLOW = {"swimmer", "inverted_pendulum"}


def bar(entry):
    return BARS[" ".join([entry["env"], *entry.get("kwargs", {})])]


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            entry, id=f"{i}-{entry['env']}", marks=[pytest.mark.slow, pytest.mark.long] if entry["env"] in SLOW else []
        )
        for i, entry in enumerate(policies_module.POLICIES)
    ],
)
def test_reference_policy_reaches_return(entry):
    min_return, chance = bar(entry)
    done = policies_module.evaluate_policy(entry)
    assert done.returns.shape == (1, 100)
    assert done.returns.mean() >= min_return - chance


def test_exact_table_returns_match_text():
    exact_returns = {
        "frozen_lake": 0.7402,
        "cliff_walking": -13.0,
        "cliff_walking is_slippery": -63.0225,
        "maze": 0.9667,
    }
    for entry in policies_module.POLICIES:
        name = " ".join([entry["env"], *entry.get("kwargs", {})])
        if name in exact_returns:
            with policies_module.make_environment(entry).build_evaluator(True, None) as evaluator:
                games = evaluator._runner.games
                exact = games.table.expected_return(np.array(entry["parameters"]), games.horizon)
            assert exact == pytest.approx(exact_returns.pop(name), abs=5e-5)
            assert games.table.best_policy().tolist() == entry["parameters"]
    assert not exact_returns
