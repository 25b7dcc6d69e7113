"""Standard errors in the plan of a design run."""

import re
from types import SimpleNamespace

import pytest

from experiments import compose, run
from llmrl.experiment.plan import (
    MAX_RELATIVE_STANDARD_ERROR,
    build_noise_rows,
    compute_relative_standard_error,
    increase_replicates,
)
from llmrl.loops.reference_measurements import References


def scan(objectives):
    """Return the history of a scan with two measurements of each vector."""
    return [
        {"mechanism": {"x": float(i)}, "context": None, "objective": value, "standard_error": None, "values": [value]}
        for i, pair in enumerate(objectives)
        for value in pair
    ]


def test_reference_lines_state_the_error():
    """Pairs that differ by 2 have a standard deviation of the square root of 2; the means have a range of 10."""
    references = References.from_histories(scan([(0.0, 2.0), (10.0, 12.0), (5.0, 7.0)]), [])
    assert references.compute_measurement_error(1) == pytest.approx(2**0.5)
    assert compute_relative_standard_error(references, 1) == pytest.approx(2**0.5 / 10)
    assert compute_relative_standard_error(references, 4) == pytest.approx(2**0.5 / 20)


def test_error_needs_repetitions_and_response():
    assert compute_relative_standard_error(None, 1) is None
    assert compute_relative_standard_error(References.from_histories(scan([(0.0, 2.0)]), []), 1) is None
    assert compute_relative_standard_error(References.from_histories(scan([(0.0, 2.0), (2.0, 0.0)]), []), 1) is None


@pytest.mark.parametrize(
    ("error", "candidates", "replicates", "expected"),
    [(0.2, 8, 1, (2, 4)), (0.11, 8, 1, (4, 2)), (0.9, 8, 1, (1, 8)), (0.05, 8, 1, (8, 1)), (0.14, 6, 2, (3, 4))],
)
def test_repetitions_keep_cost(error, candidates, replicates, expected):
    assert increase_replicates(error, candidates, replicates) == expected
    assert expected[0] * expected[1] == candidates * replicates
    remaining = error * (replicates / expected[1]) ** 0.5
    assert remaining <= MAX_RELATIVE_STANDARD_ERROR or expected[0] == 1


def plan(capsys, *overrides):
    run(*overrides, "dry_run=true")
    return " ".join(capsys.readouterr().out.replace("│", " ").split())


SMALL = ("env=escape_room", "principal=random", "env.n_envs=8", "design.candidates=4", "design.adapt_rounds=1")


def test_plan_advises_repetitions_of_noisy_measurements(capsys):
    text = plan(capsys, *SMALL, "regime_noise=0.2")
    assert re.search("standard error about 20 % .*regime=", text)
    assert "design.candidates=1 design.replicates=4: about 10 %" in text
    assert "about 10 %" in plan(capsys, *SMALL, "design.candidates=2", "design.replicates=4", "regime_noise=0.2")
    assert "standard error" not in plan(capsys, *SMALL, "regime_noise=null")


def test_fixed_agents_have_no_estimate():
    config = compose("env=escape_room", "regime_noise=0.2")
    assert build_noise_rows(config, SimpleNamespace(), []) == []
