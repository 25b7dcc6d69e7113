"""Point estimates equal those of rliable 1.2.0.

`golden/rliable.json` is what `rliable_reference.py` printed, in an environment with rliable 1.2.0, pandas below 3 and
arch below 8. With LLMRL_RLIABLE_PYTHON, the Python of such an environment, fresh scores are compared as well.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from llmrl.statistics.intervals import estimates, improvement_matrix, performance_profile, probability_of_improvement

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "golden" / "rliable.json").read_text())


def check(case: dict, thresholds: list[float]) -> None:
    """Compare estimates; rliable's percentile bootstrap intervals are not those of this module."""
    tasks = {name: list(np.array(rows).T) for name, rows in case["scores"].items()}
    for name, scores in tasks.items():
        found = estimates(scores, [None] * len(scores), case["target"])
        for statistic, band in found.items():
            if statistic == "median" and len(scores) == 1:
                continue  # theirs is the mean of the only task
            assert band.estimate == pytest.approx(case[name][statistic]["estimate"], rel=1e-12, abs=1e-12)
    pair = [tasks["x"], tasks["y"]]
    assert probability_of_improvement(*pair) == pytest.approx(case["improvement"]["estimate"], rel=1e-12)
    assert improvement_matrix(pair).estimate[0, 1] == pytest.approx(case["improvement"]["estimate"], rel=1e-12)
    profile = performance_profile(tasks["x"], np.array(thresholds))
    assert profile.estimate == pytest.approx(case["profile"]["estimate"], rel=1e-12)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=["8 tasks", "ties", "few uneven runs"])
def test_against_stored_numbers(case: dict) -> None:
    check(case, GOLDEN["thresholds"])


@pytest.mark.slow
@pytest.mark.skipif("LLMRL_RLIABLE_PYTHON" not in os.environ, reason="LLMRL_RLIABLE_PYTHON names no environment")
def test_matches_rliable() -> None:
    rng = np.random.default_rng()
    cases = [
        {
            "x": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
            "y": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
            "target": float(rng.normal()),
        }
        for tasks in (1, 4)
    ]
    cases_input = {"cases": cases, "thresholds": np.linspace(-2, 2, 9).tolist()}
    reference = subprocess.run(
        [os.environ["LLMRL_RLIABLE_PYTHON"], FOLDER / "rliable_reference.py", "--cases", "-"],
        input=json.dumps(cases_input),
        capture_output=True,
        text=True,
        check=True,
    )
    numbers = json.loads(reference.stdout)
    for case in numbers["cases"]:
        check(case, numbers["thresholds"])
