"""Study sections of a report: figure, planned comparisons, landscape and sentences."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.group_comparison import GroupComparison
from llmrl.analysis.landscape import Landscape, _compute_unbiased_best
from llmrl.analysis.regret import TRANSFER_ROW_LABELS, GroupValues, compute_regret
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.report_figures import draw_study
from llmrl.analysis.report_files import write_report
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import SCRIPTED_NOTE
from llmrl.results.principal_scores import read_reference_lines
from llmrl.results.run_records import read_runs
from llmrl.results.study_settings import parse_study_settings, shorten_group_names
from llmrl.run.shared_factors import PRETRAINING
from run_folders import SCRIPTED, write_run

REPORT: dict[str, Any] = {
    "question": "Which principals beat random search?",
    "metric": "principal/objective",
    "unit": "apples",
    "x_axis": "proposals",
    "smooth": 2,
    "tail_fraction": 0.25,
    "baselines": ["random"],
    "levels": ["fixed"],
    "published": {"ucb": 49.7},
    "source": "a paper",
}
SOCIETIES, SEEDS, STEPS = 5, 2, 20


def grow(end: float, begin: int) -> np.ndarray:
    """Return 10 until step `begin`, then `end`."""
    return np.where(np.arange(STEPS) < begin, 10.0, end)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("study")
    rng = np.random.default_rng(0)
    society = rng.normal(0, 15, SOCIETIES)
    courses = {"random": grow(10, 0), "ucb": grow(30, 8), "gp": grow(10.5, 0), "fixed": grow(5, 0)}
    for principal, course in courses.items():
        for k in range(SOCIETIES):
            for seed in range(SEEDS):
                overrides = ["experiment=studies/toy", f"principal={principal}", f"agent.init_from_seed={k}"]
                values = (course + society[k] + rng.normal(0, 1, STEPS)).tolist()
                shared = {PRETRAINING: [f"pre/s{k}"]}
                write_run(root, "toy", overrides, seed, values, shared=shared, report=REPORT)
    overrides = ["experiment=studies/toy", "principal=llm", "llm=scripted"]
    write_run(root, "toy", overrides, 0, grow(40, 5).tolist(), llm=SCRIPTED, report=REPORT)
    return root / "toy"


@pytest.fixture(scope="module")
def result(study: Path) -> GroupComparison:
    [section] = compute_report(study, ReportSettings()).sections
    assert isinstance(section.study, GroupComparison)
    return section.study


def test_groups_are_labeled_by_sweep(result: GroupComparison) -> None:
    assert [trace.name for trace in result.traces] == ["llm", "ucb", "gp", "random", "fixed"]
    assert result.traces[0].display_name == "scripted rule"
    assert SCRIPTED_NOTE in result.sentences and "llm" not in result.sentences[0]


def test_pretraining_runs_form_level(result: GroupComparison) -> None:
    ucb = result.traces[1]
    assert (len(ucb.scores), ucb.n_pretrainings) == (SOCIETIES * SEEDS, SOCIETIES)


def test_shared_effects_cancel_in_comparisons(result: GroupComparison) -> None:
    verdicts = {comparison.group.name: comparison.verdict for comparison in result.comparisons}
    assert verdicts["ucb"] == "above" and verdicts["fixed"] == "below"
    [ucb] = [comparison for comparison in result.comparisons if comparison.group.name == "ucb"]
    assert ucb.is_paired and 18 < float(ucb.difference.low) < float(ucb.difference.high) < 22
    assert float(ucb.probability.estimate) == 1.0
    # Societies differ by far more than that.
    assert float(ucb.group.score.high - ucb.group.score.low) > 8


def test_reports_curve_crossing(result: GroupComparison) -> None:
    [ucb] = [comparison for comparison in result.comparisons if comparison.group.name == "ucb"]
    # Four proposals a step as these runs are written; the ninth step is the first better one.
    assert ucb.onset == 4 * 9
    assert any(re.search(r"random \(apples\): ucb \(\+19\.7", sentence) for sentence in result.sentences)


def test_single_run_group_is_not_tested(result: GroupComparison) -> None:
    [llm] = [comparison for comparison in result.comparisons if comparison.group.name == "llm"]
    assert (
        llm.verdict == "untested"
        and math.isnan(llm.p_adjusted)
        and math.isnan(float(llm.difference.low))
        and llm.onset is None
    )


def test_lines_are_levels(result: GroupComparison) -> None:
    assert [trace.name for trace in result.traces if trace.curve is None] == ["fixed"]


def test_curves_are_running_means(result: GroupComparison) -> None:
    ucb = result.traces[1]
    assert ucb.curve is not None
    step = ucb.curve.band.estimate[8] - ucb.curve.band.estimate[7]
    assert step == pytest.approx(10, abs=2)  # half of the jump, as two values are averaged


def test_files(study: Path, tmp_path: Path) -> None:
    page = write_report(compute_report(study, ReportSettings()), tmp_path)
    assert (tmp_path / "figures" / "toy_study.png").stat().st_size > 10_000
    text = page.read_text()
    assert text.index(REPORT["question"]) < text.index("<h3>Scores</h3>")
    summary = (tmp_path / "summary.md").read_text()
    assert "figures/toy_study.png" in summary and summary.count("figures/toy_study.png") == 1
    with (tmp_path / "tables" / "toy_study_comparisons.csv").open() as file:
        rows = {row["group"]: row for row in csv.DictReader(file)}
    assert rows["ucb"]["paired"] == "True" and float(rows["ucb"]["since"]) == 36
    with (tmp_path / "tables" / "toy_study_curves.csv").open() as file:
        assert [row["group"] for row in csv.DictReader(file)].count("ucb") == STEPS
    with (tmp_path / "tables" / "toy_study_scores.csv").open() as file:
        rows = {row["group"]: row for row in csv.DictReader(file)}
        assert "published" not in rows["ucb"] and {"scripted rule", "random"} <= rows.keys()
    with (tmp_path / "tables" / "toy_study_published.csv").open() as file:
        assert list(csv.DictReader(file)) == [{"group": "ucb", "published": "49.7"}]
    assert "†" not in text and not (tmp_path / "figures" / "toy_study_online.png").exists()


def test_settings_may_differ_from_stored_runs(study: Path) -> None:
    changed = parse_study_settings({**REPORT, "unit": "pears", "baselines": ["ucb"]}, "the study")
    [section] = compute_report(study, ReportSettings(study=changed)).sections
    assert section.study is not None and section.study.settings.unit == "pears"
    assert all("ucb (pears)" in sentence for sentence in section.study.sentences if sentence != SCRIPTED_NOTE)
    assert parse_study_settings({"question": None}, "") is None and parse_study_settings(None, "") is None


def test_pair_with_baseline_has_one_test(study: Path) -> None:
    settings = parse_study_settings(
        {**REPORT, "baselines": ["random"], "pairs": [["ucb", "random"], ["ucb", "fixed"]]}, ""
    )
    [section] = compute_report(study, ReportSettings(study=settings)).sections
    assert isinstance(section.study, GroupComparison)
    pairs = [(comparison.group.name, comparison.baseline.name) for comparison in section.study.comparisons]
    assert pairs.count(("ucb", "random")) == 1 and pairs[-1] == ("ucb", "fixed")


def test_reference_lines_average_pretraining_runs(tmp_path: Path) -> None:
    for k, value in enumerate((10.0, 20.0)):
        line = {"value": value, "standard_error": 1.0}
        landscape_table = {
            "contexts": [dict.fromkeys(("untrained", "no_mechanism", "scan_best"), line)],
            "warning": None,
        }
        overrides = ["principal=ucb", f"agent.init_from_seed={k}"]
        write_run(tmp_path, "toy", overrides, 0, shared={PRETRAINING: [f"pre/s{k}"]}, references=landscape_table)
    [section] = compute_report(tmp_path / "toy", ReportSettings()).sections
    first = section.references[0]
    assert (first.label, first.value, first.standard_error) == ("untrained agents", 15, 5)
    assert section.study is None
    assert read_reference_lines([]) == ((), ())


def test_group_names_are_unique() -> None:
    from llmrl.results.groups import Group, ReportTask

    labels = ("principal=llm, llm=scripted", "principal=llm, llm=gpt4o", "principal=ucb", "taught")
    names = shorten_group_names(ReportTask("t", {}, tuple(Group(label, ()) for label in labels)))
    assert list(names.values()) == ["llm, scripted", "llm, gpt4o", "ucb", "taught"]


MAP = {"question": "What pays?", "unit": "apples", "map": ["a", "b", "c"]}


def history(society: float, grid: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    return [
        {"mechanism": {"a": x, "b": y, "c": z}, "objective": society + 10 * x - 5 * (y - 1) ** 2 + z}
        for x, y, z in grid
    ]


def landscape(root: Path, grids: list[list[tuple[float, float, float]]]) -> Landscape:
    for k, grid in enumerate(grids):
        for seed in range(2):
            overrides = ["principal=listed", f"agent.init_from_seed={k}"]
            shared = {PRETRAINING: [f"pre/s{k}"]}
            write_run(root, "map", overrides, seed, shared=shared, report=MAP, history=history(k, grid))
    [section] = compute_report(root / "map", ReportSettings()).sections
    assert isinstance(section.study, Landscape)
    return section.study


N_GRID_POINTS = [(x, y, z) for x in (0.0, 1.0) for y in (0.0, 1.0, 2.0) for z in (0.0, 1.0)]


def test_landscape_averages_over_societies(tmp_path: Path) -> None:
    landscape_table = landscape(tmp_path, [N_GRID_POINTS, N_GRID_POINTS[::-1]])
    assert landscape_table.vectors[landscape_table.best_index].tolist() == [1, 1, 1]
    assert landscape_table.band.estimate[landscape_table.best_index] == pytest.approx(11.5)
    heat_maps = landscape_table.build_heat_maps()
    assert [title for title, *_ in heat_maps] == ["c = 0", "c = 1"]
    _, xs, ys, places = heat_maps[1]
    assert (xs.tolist(), ys.tolist(), places.shape) == ([0, 1], [0, 1, 2], (3, 2))
    assert landscape_table.vectors[places[1, 1]].tolist() == [1, 1, 1]
    assert "a 1, b 1, c 1, brings 11.5 apples" in landscape_table.sentences[0]
    assert " -4.5" in landscape_table.sentences[0]
    page = write_report(compute_report(tmp_path / "map", ReportSettings()), tmp_path / "report")
    assert (page.parent / "figures" / "map_study.svg").exists()
    assert len((page.parent / "tables" / "map_study_landscape.csv").read_text().splitlines()) == 1 + len(N_GRID_POINTS)


def test_landscape_per_round_count(tmp_path: Path) -> None:
    for k in range(2):
        rows = [{**row, "validated": {"0": 3.0, "5": row["objective"]}} for row in history(k, N_GRID_POINTS)]
        write_run(tmp_path, "map", ["principal=listed", f"agent.init_from_seed={k}"], 0, report=MAP, history=rows)
    [section] = compute_report(tmp_path / "map", ReportSettings()).sections
    assert isinstance(section.study, Landscape)
    assert list(section.study.band_by_n_rounds) == [0, 5]
    assert set(section.study.band_by_n_rounds[0].estimate) == {3.0}
    assert section.study.band_by_n_rounds[5].estimate.tolist() == section.study.band.estimate.tolist()
    page = write_report(compute_report(tmp_path / "map", ReportSettings()), tmp_path / "report")
    assert (page.parent / "figures" / "map_study.svg").exists()
    table = (page.parent / "tables" / "map_study_adaptation.csv").read_text().splitlines()
    assert table[0] == "a,b,c,rounds,mean,low,high" and len(table) == 1 + 2 * len(N_GRID_POINTS)


def test_landscape_compares_kinds_of_players(tmp_path: Path) -> None:
    for k in range(5):
        kinds = {"0": {"deviator": 1.0 * k, "others": 3.0}, "9": {"deviator": 2.0 + k, "others": 3.0 - k}}
        rows = [{**row, "kinds": kinds} for row in history(k, N_GRID_POINTS)]
        write_run(tmp_path, "map", ["principal=listed"], k, report=MAP, history=rows)
    [section] = compute_report(tmp_path / "map", ReportSettings()).sections
    study = section.study
    assert isinstance(study, Landscape) and study.player_kinds is not None
    [table] = [table for table in study.tables if table.name == "study_kinds"]
    header, *lines = table.csv_rows
    assert header == ["kind", "a", "b", "c", "after_0", "after_9", "change", "low", "high"]
    assert [line[0] for line in lines] == ["deviator"] * len(N_GRID_POINTS) + ["others"] * len(N_GRID_POINTS)
    assert lines[0][4:] == pytest.approx([2.0, 4.0, 2.0, 2.0, 2.0])
    assert lines[-1][4:7] == pytest.approx([3.0, 1.0, -2.0]) and lines[-1][7] < -2.0 < lines[-1][8]
    [figure] = draw_study(study, "study")
    for kind, change in study.player_kinds.change_by_kind.items():
        assert change.estimate.tolist() == [line[6] for line in lines if line[0] == kind]
        assert f"<!-- {kind} -->".encode() in figure.svg, "the legend"


REGRET_MAP = {**MAP, "baselines": ["none"], "recommendations": 5}


def test_landscape_has_regret_of_each_group(tmp_path: Path) -> None:
    for treatment, slope in (("none", 1.0), ("players_5", -1.0)):
        for k in range(5):
            rows = [{**row, "objective": slope * row["objective"]} for row in history(k, N_GRID_POINTS)]
            shared = {PRETRAINING: [f"{treatment}/s{k}"]}
            overrides = ["principal=listed", f"treatment={treatment}"]
            write_run(tmp_path, "map", overrides, k, shared=shared, report=REGRET_MAP, history=rows)
    [section] = compute_report(tmp_path / "map", ReportSettings()).sections
    study = section.study
    assert isinstance(study, Landscape) and study.regret is not None
    assert study.band.estimate.max() == pytest.approx(13.0), "the landscape is that of the baseline"
    assert study.regret.group_names == ("none", "players_5") and study.regret.row_labels[-3:] == TRANSFER_ROW_LABELS
    for band, sign in zip(study.regret.bands, (1.0, -1.0), strict=True):
        objective = sign * study.band.estimate
        assert band.estimate[:-3] == pytest.approx(objective.max() - objective)
    page = write_report(compute_report(tmp_path / "map", ReportSettings()), tmp_path / "report")
    table = (page.parent / "tables" / "map_study_regret.csv").read_text().splitlines()
    assert table[0] == "setting,group,regret,low,high" and len(table) == 1 + 2 * (len(N_GRID_POINTS) + 3)


def test_regret_is_chosen_by_other_units() -> None:
    values = np.array([[3.0, 0.0, 3.0], [1.0, 2.0, 1.0]])
    group = GroupValues(values, units=["a", "b", "c"], seeds=[0, 1, 2])
    assert group.regret.tolist() == [[0.0, 0.0, 0.0], [2.0, -2.0, 2.0]]
    matrix = compute_regret({"none": group, "other": group}, ["first", "second"], 2, "apples")
    assert matrix is not None and matrix.row_labels == ("first", "second"), "seed 2 has no recommendation"
    assert np.isnan(matrix.bands[0].low).all(), "three units have no interval"
    assert compute_regret({"none": group}, ["first", "second"], 2, "apples") is None


def test_best_setting_is_evaluated_on_held_out_runs() -> None:
    noise = np.random.default_rng(0).normal(0, 1, (500, 8))
    honest = _compute_unbiased_best(noise)
    assert noise.mean(axis=1).max() > 0.9 and honest is not None and abs(honest) < 1.0
    assert _compute_unbiased_best(noise[:, :1]) is None
    assert _compute_unbiased_best(noise + np.arange(500)[:, None]) == pytest.approx(499, abs=2)


def test_rejects_mismatched_settings(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="settings than"):
        landscape(tmp_path, [N_GRID_POINTS, N_GRID_POINTS[1:]])


def test_reports_invalid_section(tmp_path: Path) -> None:
    write_run(tmp_path, "toy", ["principal=ucb"], 0, report={"question": "?", "smooth": 0})
    with pytest.raises(RunFolderError, match="its config"):
        compute_report(tmp_path / "toy", ReportSettings(), read_runs(tmp_path / "toy"))
