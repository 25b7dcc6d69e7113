"""Warnings about tasks whose scores carry little information."""

from pathlib import Path

import pytest

from llmrl.analysis.aggregate import summarize
from llmrl.analysis.report import ReportSettings
from run_folders import write_run


def read_section(root: Path, *groups: list[str]) -> str:
    for overrides in groups:
        write_run(root, "game", overrides, 0)
    [section] = summarize(root / "game", ReportSettings()).sections
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
