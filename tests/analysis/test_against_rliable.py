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

from llmrl.statistics.intervals import compute_estimates, probability_of_improvement

FOLDER = Path(__file__).parent
GOLDEN = json.loads((FOLDER / "golden" / "rliable.json").read_text())


def check(case: dict) -> None:
    """Compare estimates; rliable's percentile bootstrap intervals are not those of this module."""
    tasks = {name: list(np.array(rows).T) for name, rows in case["scores"].items()}
    for name, scores in tasks.items():
        # Over several tasks, theirs is the IQM of all scores, and the mean of the tasks' means.
        iqm, mean = (
            compute_estimates(np.concatenate(scores))["iqm"],
            np.mean([compute_estimates(x)["mean"].estimate for x in scores]),
        )
        assert iqm.estimate == pytest.approx(case[name]["iqm"]["estimate"], rel=1e-12, abs=1e-12)
        assert mean == pytest.approx(case[name]["mean"]["estimate"], rel=1e-12, abs=1e-12)
    probability = np.mean(
        [probability_of_improvement(x, y).estimate for x, y in zip(tasks["x"], tasks["y"], strict=True)]
    )
    assert probability == pytest.approx(case["improvement"]["estimate"], rel=1e-12)


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=["8 tasks", "ties", "few uneven runs"])
def test_against_stored_numbers(case: dict) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.skipif("LLMRL_RLIABLE_PYTHON" not in os.environ, reason="LLMRL_RLIABLE_PYTHON names no environment")
def test_matches_rliable() -> None:
    rng = np.random.default_rng()
    cases = [
        {
            "x": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
            "y": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
        }
        for tasks in (1, 4)
    ]
    reference = subprocess.run(
        [os.environ["LLMRL_RLIABLE_PYTHON"], FOLDER / "rliable_reference.py", "--cases", "-"],
        input=json.dumps({"cases": cases}),
        capture_output=True,
        text=True,
        check=True,
    )
    numbers = json.loads(reference.stdout)
    for case in numbers["cases"]:
        check(case)
