"""Runs of different seeds that propose the same vectors produce a warning."""

from pathlib import Path

import pytest

from llmrl.analysis.aggregate import summarize
from llmrl.analysis.report_settings import ReportSettings
from run_folders import write_run


def warnings(root: Path, principal: str, *rates: list[float]) -> str:
    for seed, proposed in enumerate(rates):
        history = [{"context": None, "mechanism": {"rate": rate}, "objective": 1.0 + seed} for rate in proposed]
        write_run(root, "game", [f"principal={principal}"], seed, history=history)
    [section] = summarize(root / "game", ReportSettings()).sections
    return " ".join(section.warnings)


def test_equal_proposals_of_different_seeds(tmp_path: Path) -> None:
    assert "all 2 seeds proposed the same vectors" in warnings(tmp_path, "ladder", [0.0, 1.0], [0.0, 1.0])


@pytest.mark.parametrize(
    ("principal", "rates"),
    [
        ("ladder", ([0.0, 1.0], [1.0, 0.0])),
        ("ladder", ([1.0, 1.0], [1.0, 1.0])),
        ("ladder", ([0.0, 1.0],)),
        ("listed", ([0.0, 1.0], [0.0, 1.0])),
        ("ladder", ([], [])),
    ],
    ids=["other order", "one vector", "one seed", "given", "no proposals"],
)
def test_other_runs_have_no_warning(tmp_path: Path, principal: str, rates: tuple[list[float], ...]) -> None:
    assert "same vectors" not in warnings(tmp_path, principal, *rates)
