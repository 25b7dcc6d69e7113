"""A study of several tasks: one table and one figure of its groups in each."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.report_files import write_report
from llmrl.analysis.report_tables import TASK_COMPARISON_NAME, TaskComparison, build_slugs, compare_tasks
from run_folders import write_run

REPORT = {
    "question": "Which search is best?",
    "metric": "principal/objective",
    "unit": "points",
    "tail_fraction": None,
    "baselines": ["random"],
}
LEVELS = {"pole": {"random": 1.0, "cem": 5.0, "cmaes": 6.0}, "lake": {"random": 5.0, "cem": 1.0, "cmaes": 5.0}}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("tasks")
    for env, levels in LEVELS.items():
        for principal, level in levels.items():
            if (env, principal) == ("lake", "cmaes"):
                continue  # a search that was not run there
            for seed in range(5):
                overrides = ["experiment=studies/toy", f"env={env}", f"principal={principal}"]
                write_run(root, "toy", overrides, seed, [0.0, level + 0.1 * seed], report=REPORT)
    return root / "toy"


@pytest.fixture(scope="module")
def comparison(study: Path) -> TaskComparison:
    tasks_compared = compare_tasks(compute_report(study, ReportSettings()))
    assert tasks_compared is not None
    return tasks_compared


def test_table_has_task_rows(comparison: TaskComparison) -> None:
    assert comparison.titles == ("lake", "pole")
    assert list(comparison.tables[0].columns) == ["task", "cem", "cmaes", "random"]  # who is compared with comes last
    lake, pole = comparison.tables[0].rows
    assert lake[0] == "lake" and lake[1].startswith("1.20 [") and lake[2] == "-"
    assert pole[2].startswith("6.20 [")
    assert len(comparison.tables[0].csv_rows) == 1 + 5


def test_verdicts_are_counted_over_tasks(comparison: TaskComparison) -> None:
    [sentence] = comparison.sentences
    assert re.match("Against random, .*2 tasks: ", sentence)
    assert re.search(r"cem above in 1, below in 1, \D* 0", sentence) and "cmaes above in 1, below in 0" in sentence


def test_table_comes_first_in_report(study: Path, tmp_path: Path) -> None:
    report = compute_report(study, ReportSettings())
    page = write_report(report, tmp_path).read_text()
    assert page.index('id="tasks"') < page.index(f'id="{"toy"}')
    assert (tmp_path / "figures" / f"{TASK_COMPARISON_NAME}.png").stat().st_size > 10_000
    assert (tmp_path / "tables" / f"{TASK_COMPARISON_NAME}.csv").read_text().startswith("task,group,runs,score")
    assert f"figures/{TASK_COMPARISON_NAME}.png" in (tmp_path / "summary.md").read_text()


def test_single_task_study_has_no_table(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "toy", ["experiment=studies/toy", "principal=cem"], seed, [1.0], report=REPORT)
    assert compare_tasks(compute_report(tmp_path / "toy", ReportSettings())) is None


def test_slugs_are_unique() -> None:
    report: Any = SimpleNamespace(sections=[SimpleNamespace(title=title) for title in ("a", "a 2", "a", "a")])
    slugs = build_slugs(report)
    assert slugs[:2] == ["a", "a_2"] and len(set(slugs)) == 4
