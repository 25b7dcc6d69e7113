"""Warnings about tasks whose scores carry little information."""

from pathlib import Path

import pytest

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from run_folders import write_run


def warnings(root: Path, principal: str, *rates: list[float]) -> str:
    for seed, proposal_rate in enumerate(rates):
        history = [{"context": None, "mechanism": {"rate": rate}, "objective": 1.0 + seed} for rate in proposal_rate]
        write_run(root, "game", [f"principal={principal}"], seed, history=history)
    [section] = compute_report(root / "game", ReportSettings()).sections
    return " ".join(section.warnings)


def test_equal_proposals_across_seeds(tmp_path: Path) -> None:
    assert "all 2 seeds " in warnings(tmp_path, "ladder", [0.0, 1.0], [0.0, 1.0])


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
def test_normal_runs_have_no_warning(tmp_path: Path, principal: str, rates: tuple[list[float], ...]) -> None:
    assert "same vectors" not in warnings(tmp_path, principal, *rates)


def read_section(root: Path, *groups: list[str]) -> str:
    for overrides in groups:
        write_run(root, "game", overrides, 0)
    [section] = compute_report(root / "game", ReportSettings()).sections
    return " ".join(section.warnings)


def test_debug_preset_runs(tmp_path: Path) -> None:
    warned = read_section(tmp_path, ["principal=ucb", "+debug=quick"], ["principal=gp"])
    assert "debug=quick" in warned and "principal=ucb" in warned and "principal=gp" not in warned


@pytest.mark.parametrize("option", ["design.objective", "design.spending_cost"])
def test_groups_with_different_objectives(tmp_path: Path, option: str) -> None:
    assert option in read_section(tmp_path, ["principal=ucb", f"{option}=1"], ["principal=ucb", f"{option}=2"])
    assert option not in read_section(
        tmp_path / "equal", ["principal=ucb", f"{option}=1"], ["principal=gp", f"{option}=1"]
    )
