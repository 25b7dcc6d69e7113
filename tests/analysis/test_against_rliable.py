"""The numbers are those of rliable 1.2.0.

`golden/rliable.json` is what `rliable_reference.py` printed, in an environment with rliable 1.2.0, pandas below 3 and
arch below 8. With LLMRL_RLIABLE_PYTHON, the Python of such an environment, fresh scores are compared as well.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from llmrl.analysis.bootstrap import (
    Band,
    bootstrap_bands,
    improvement_matrix,
    performance_profile,
    probability_of_improvement,
)
from llmrl.analysis.statistics import Statistic, interquartile_mean, mean, median, optimality_gap, over_tasks

HERE = Path(__file__).parent
GOLDEN = json.loads((HERE / "golden" / "rliable.json").read_text())


def check(case: dict, thresholds: list[float]) -> None:
    """Estimates to rounding; bounds to the noise of a bootstrap, see `agree`."""
    tasks = {name: list(np.array(rows).T) for name, rows in case["scores"].items()}
    for name, scores in tasks.items():
        sizes = [len(task) for task in scores]
        statistics = {
            "mean": over_tasks(mean, sizes),
            "median": over_tasks(median, sizes),
            "iqm": interquartile_mean,
            "gap": partial(optimality_gap, target=case["target"]),
        }
        for statistic, function in statistics.items():
            agree(partial(band_of, np.concatenate(scores), function, sizes), case[name][statistic], noise=0.01)
    pair = [tasks["x"], tasks["y"]]
    assert probability_of_improvement(*pair) == pytest.approx(case["improvement"]["estimate"], rel=1e-12)
    agree(lambda level: entry(improvement_matrix(pair, level=level)), case["improvement"], noise=0.01)
    scores, sizes = np.concatenate(tasks["x"]), [len(task) for task in tasks["x"]]
    profile = partial(performance_profile, scores, np.array(thresholds), sizes)
    agree(lambda level: profile(level=level), case["profile"], noise=0.02)


def agree(ours: Callable[[float], Band], theirs: dict, noise: float) -> None:
    """Their 95% interval lies between our intervals of a little less and a little more.

    Comparing probabilities rather than bounds: the bootstrap of a few runs takes few values, and a bound may jump from
    one to the next. `noise`: in a tail's probability; three and more standard deviations of what so many resamples
    (5000 there for estimates, 1000 for profiles) make of 2.5%.
    """
    narrow, wide = ours(0.95 - 2 * noise), ours(0.95 + 2 * noise)
    assert narrow.estimate == pytest.approx(theirs["estimate"], rel=1e-12, abs=1e-12)
    low, high = np.array(theirs["interval"])
    rounding = 1e-9
    assert (wide.low - rounding <= low).all()
    assert (low <= narrow.low + rounding).all()
    assert (narrow.high - rounding <= high).all()
    assert (high <= wide.high + rounding).all()


def band_of(scores: np.ndarray, statistic: Statistic, sizes: list[int], level: float) -> Band:
    return bootstrap_bands(scores, {"": statistic}, sizes, level)[""]


def entry(band: Band) -> Band:
    return Band(band.estimate[0, 1], band.low[0, 1], band.high[0, 1])


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=["8 tasks", "ties", "few uneven runs"])
def test_against_stored_numbers(case: dict) -> None:
    check(case, GOLDEN["thresholds"])


@pytest.mark.slow
@pytest.mark.skipif("LLMRL_RLIABLE_PYTHON" not in os.environ, reason="LLMRL_RLIABLE_PYTHON names no environment")
def test_against_rliable_itself() -> None:
    rng = np.random.default_rng()
    cases = [
        {
            "x": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
            "y": rng.normal(size=(rng.integers(3, 8), tasks)).round(1).tolist(),
            "target": float(rng.normal()),
        }
        for tasks in (1, 4)
    ]
    given = {"cases": cases, "thresholds": np.linspace(-2, 2, 9).tolist()}
    reference = subprocess.run(
        [os.environ["LLMRL_RLIABLE_PYTHON"], HERE / "rliable_reference.py", "--cases", "-"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        check=True,
    )
    numbers = json.loads(reference.stdout)
    for case in numbers["cases"]:
        check(case, numbers["thresholds"])
