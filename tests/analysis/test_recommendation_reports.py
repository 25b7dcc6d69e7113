"""Studies whose score is the recommendation: two scores, curves of recommendations, and times to solution."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.report_files import write_report
from llmrl.analysis.report_tables import build_tables
from llmrl.core.errors import RunFolderError
from llmrl.results.principal_scores import SCORES_NOTE
from llmrl.results.table_format import ReportTable
from run_folders import SCRIPTED, write_run

REPORT: dict[str, Any] = {
    "question": "Which principals beat random search?",
    "unit": "apples",
    "x_axis": "proposals",
    "tail_fraction": None,
    "baselines": ["random"],
    "levels": ["fixed"],
    "best_known": 20.0,
    "published": {"llm": 47.4, "ucb": 49.7},
    "source": "a paper",
}
PLACES = (1, 2, 5, 10, 20)
CURVES = {
    "gp": (0.0, 4.0, 16.0, 19.0, 20.0),
    "ucb": (0.0, 2.0, 6.0, 12.0, 15.0),
    "llm": (0.0, 8.0, 9.0, 9.5, 19.5),
    "random": (0.0, 1.0, 3.0, 5.0, 9.0),
    "fixed": (0.0, 0.0, 0.0, 0.0, 0.0),
}
ONLINE_PERFORMANCE = {"gp": 10.0, "ucb": 14.0, "llm": 8.0, "random": 1.0, "fixed": 0.0}


def write_study(root: Path, report: dict[str, Any] | None, anytime: bool = True, runs: int = 6) -> Path:
    for principal, values in CURVES.items():
        for seed in range(runs):
            shift = 0.0 if principal == "fixed" else 0.1 * (seed - (runs - 1) / 2)
            points = {n: value + shift for n, value in zip(PLACES, values, strict=True)}
            write_run(
                root,
                "toy",
                [f"principal={principal}"],
                seed,
                np.linspace(0, ONLINE_PERFORMANCE[principal] + shift, 16).tolist(),
                llm=SCRIPTED if principal == "llm" else "",
                report=report,
                recommendations=points if anytime else {PLACES[-1]: points[PLACES[-1]]},
                online=ONLINE_PERFORMANCE[principal] + shift,
            )
    return root / "toy"


def analyze_study(folder: Path) -> GroupComparison:
    [section] = compute_report(folder, ReportSettings()).sections
    assert isinstance(section.study, GroupComparison)
    return section.study


def table(study: GroupComparison, name: str) -> ReportTable:
    return next(study_table for study_table in study.tables if study_table.name == name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"), REPORT)


@pytest.fixture(scope="module")
def study(folder: Path) -> GroupComparison:
    return analyze_study(folder)


def test_recommendations_rank_groups(study: GroupComparison) -> None:
    assert [trace.name for trace in study.traces] == ["gp", "llm", "ucb", "random", "fixed"]
    scores = table(study, "study_scores")
    assert scores.columns == ["group", "runs", "recommendation", "online performance"]
    rows = [dict(zip(map(str, scores.csv_rows[0]), line, strict=True)) for line in scores.csv_rows[1:]]
    assert rows[0]["score"] == pytest.approx(20.0) and rows[0]["online_performance"] == pytest.approx(10.0)
    assert rows[1]["group"] == "scripted rule"


def test_different_winners_are_explained(study: GroupComparison) -> None:
    assert SCORES_NOTE in study.sentences
    [sentence] = [
        sentence_candidate for sentence_candidate in study.sentences if "highest recommendation" in sentence_candidate
    ]
    assert sentence.startswith("gp ") and "ucb" in sentence


def test_curves_show_recommendations(study: GroupComparison) -> None:
    gp = study.traces[0]
    assert gp.anytime_curve is not None and gp.anytime_curve.x.tolist() == list(PLACES)
    assert gp.anytime_curve.band.estimate == pytest.approx(CURVES["gp"])
    # At the last measurement it is the score.
    assert gp.anytime_curve.band.estimate[-1] == pytest.approx(float(gp.score.estimate))
    [ucb] = [comparison for comparison in study.comparisons if comparison.group.name == "ucb"]
    assert ucb.onset == 2  # measurements, not proposals, which these runs log four at a time


def test_unsolved_runs_are_right_censoring(study: GroupComparison) -> None:
    times = table(study, "study_time_to_solution")
    rows = {str(line[0]): line[1:] for line in times.csv_rows[1:]}
    # 90 % of the distance from fixed (0) to 20 is 18.
    assert rows["gp"] == [6, 6, 10.0, 20.0, pytest.approx(18.0)]
    assert rows["scripted rule"][:3] == [6, 6, 20.0]
    assert rows["ucb"][:3] == [6, 0, None] and "fixed" not in rows
    assert dict(map(tuple, times.rows))["ucb"] == "> 20 (0 of 6 runs)"
    assert times.rows[0][0] == "gp"


def test_reference_results_have_table(study: GroupComparison) -> None:
    published_table = table(study, "study_published")
    assert published_table.csv_rows[1:] == [["ucb", 49.7], ["llm", 47.4]] and published_table.notes == ["a paper"]
    assert not any(
        "47.4" in cell
        for study_table in study.tables
        if study_table is not published_table
        for row in study_table.rows
        for cell in row
    )


def test_files(folder: Path, tmp_path: Path) -> None:
    report = compute_report(folder, ReportSettings())
    page = write_report(report, tmp_path)
    names = {path.name for path in (tmp_path / "figures").glob("*study*.png")}
    assert names == {"toy_study.png", "toy_study_online.png"}
    svg = (tmp_path / "figures" / "toy_study.svg").read_text()
    assert "scripted rule" in svg and "<!-- llm -->" not in svg
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("figures/toy_study_online.png") == 1 and SCORES_NOTE in summary
    text = page.read_text()
    assert text.count("<figure") >= 2 and text.index(REPORT["question"]) < text.index("a paper")
    with (tmp_path / "tables" / "toy_study_recommendations.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["group"] == "ucb" and row["seed"] == "0"]
    assert [float(row["objective"]) for row in rows] == pytest.approx([x - 0.25 for x in CURVES["ucb"]])
    with (tmp_path / "tables" / "runs.csv").open() as file:
        runs = [row for row in csv.DictReader(file) if row["group"] == "principal=ucb"]
    assert [float(row["online_performance"]) for row in runs] == pytest.approx(14 + 0.1 * (np.arange(6) - 2.5))


def test_report_with_no_recommendation_curves(tmp_path: Path) -> None:
    study = analyze_study(write_study(tmp_path, REPORT, anytime=False, runs=2))
    assert not study.has_anytime_curves and not study.online_caption
    assert "study_time_to_solution" not in {study_table.name for study_table in study.tables}
    assert table(study, "study_scores").columns[2:] == ["recommendation", "online performance"]


def test_rejects_invalid_optimum(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match=r"report\.best_known"):
        analyze_study(write_study(tmp_path, {**REPORT, "best_known": -1.0}, runs=1))


def test_plain_sweep_shows_both_scores(tmp_path: Path) -> None:
    report = compute_report(write_study(tmp_path, None, anytime=False, runs=3), ReportSettings())
    scores = next(report_table for report_table in build_tables(report) if report_table.name == "toy_scores")
    assert "online performance" in scores.columns and scores.notes[0] == SCORES_NOTE
    ranked = ["gp", "scripted rule", "ucb", "random", "fixed"]
    assert [row[0].removeprefix("principal=").split(",")[0] for row in scores.rows] == ranked
    lines = [dict(zip(map(str, scores.csv_rows[0]), line, strict=True)) for line in scores.csv_rows[1:]]
    ucb = next(line for line in lines if line["group"] == "principal=ucb")
    assert ucb["mean"] == pytest.approx(15) and ucb["online_performance"] == pytest.approx(14)
