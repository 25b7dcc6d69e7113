"""What a report shows of a study: its figure, its planned comparisons, its landscape, and what they say in words."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmrl.analysis.aggregate import summarize
from llmrl.analysis.group_comparison import GroupsCompared
from llmrl.analysis.groups import SCRIPTED_NOTE
from llmrl.analysis.landscape import Landscape, _chosen_by_half
from llmrl.analysis.reference_lines import references_of
from llmrl.analysis.report_files import write_report
from llmrl.analysis.report_settings import ReportSettings
from llmrl.analysis.runs import read_runs
from llmrl.analysis.study_settings import names_of, settings_from
from llmrl.core.errors import RunFolderError
from llmrl.run.shared_factors import PRETRAINING
from run_folders import SCRIPTED, write_run

REPORT: dict[str, Any] = {
    "question": "Which principals beat random search?",
    "metric": "principal/objective",
    "unit": "apples",
    "over": "proposals",
    "smooth": 2,
    "last_fraction": 0.25,
    "against": ["random"],
    "lines": ["fixed"],
    "published": {"ucb": 49.7},
    "source": "a paper",
}
SOCIETIES, SEEDS, STEPS = 5, 2, 20


def grow(end: float, begin: int) -> np.ndarray:
    """10 until step `begin`, then `end`."""
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
                typed = ["experiment=studies/toy", f"principal={principal}", f"agent.init_from_seed={k}"]
                values = (course + society[k] + rng.normal(0, 1, STEPS)).tolist()
                shared = {PRETRAINING: [f"pre/s{k}"]}
                write_run(root, "toy", typed, seed, values, shared=shared, report=REPORT)
    typed = ["experiment=studies/toy", "principal=llm", "llm=scripted"]
    write_run(root, "toy", typed, 0, grow(40, 5).tolist(), llm=SCRIPTED, report=REPORT)
    return root / "toy"


@pytest.fixture(scope="module")
def result(study: Path) -> GroupsCompared:
    [section] = summarize(study, ReportSettings()).sections
    assert isinstance(section.study, GroupsCompared)
    return section.study


def test_groups_are_called_by_what_was_swept(result: GroupsCompared) -> None:
    assert [trace.name for trace in result.traces] == ["llm", "ucb", "gp", "random", "fixed"]
    assert result.traces[0].shown == "scripted rule"
    assert SCRIPTED_NOTE in result.sentences and "llm" not in result.sentences[0]


def test_pretraining_runs_are_a_level_and_not_groups(result: GroupsCompared) -> None:
    ucb = result.traces[1]
    assert (len(ucb.scores), ucb.pretrainings) == (SOCIETIES * SEEDS, SOCIETIES)


def test_what_is_shared_is_taken_out_of_comparisons(result: GroupsCompared) -> None:
    verdicts = {each.one.name: each.verdict for each in result.comparisons}
    assert verdicts["ucb"] == "above" and verdicts["fixed"] == "below"
    [ucb] = [each for each in result.comparisons if each.one.name == "ucb"]
    assert ucb.paired and 18 < float(ucb.difference.low) < float(ucb.difference.high) < 22
    assert float(ucb.probability.estimate) == 1.0
    # Societies differ by far more than that.
    assert float(ucb.one.score.high - ucb.one.score.low) > 8


def test_from_where_on_a_curve_is_above(result: GroupsCompared) -> None:
    [ucb] = [each for each in result.comparisons if each.one.name == "ucb"]
    # Four proposals a step as these runs are written; the ninth step is the first better one.
    assert ucb.since == 4 * 9
    assert any(said.startswith("Above random (apples): ucb (+19.7") for said in result.sentences)


def test_a_group_of_one_run_is_not_tested(result: GroupsCompared) -> None:
    [llm] = [each for each in result.comparisons if each.one.name == "llm"]
    assert (
        llm.verdict == "untested"
        and math.isnan(llm.p_adjusted)
        and math.isnan(float(llm.difference.low))
        and llm.since is None
    )


def test_lines_are_levels(result: GroupsCompared) -> None:
    assert [trace.name for trace in result.traces if trace.curve is None] == ["fixed"]


def test_curves_are_means_of_what_came_before(result: GroupsCompared) -> None:
    ucb = result.traces[1]
    assert ucb.curve is not None
    step = ucb.curve.band.estimate[8] - ucb.curve.band.estimate[7]
    assert step == pytest.approx(10, abs=2)  # half of the jump, as two values are averaged


def test_files(study: Path, tmp_path: Path) -> None:
    page = write_report(summarize(study, ReportSettings()), tmp_path)
    assert (tmp_path / "figures" / "toy_study.png").stat().st_size > 10_000
    text = page.read_text()
    assert text.index(REPORT["question"]) < text.index("optimality gap")
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


def test_settings_may_have_changed_since_the_runs_began(study: Path) -> None:
    changed = settings_from({**REPORT, "unit": "pears", "against": ["ucb"]}, "the study")
    [section] = summarize(study, ReportSettings(study=changed)).sections
    assert section.study is not None and section.study.settings.unit == "pears"
    assert all("ucb (pears)" in sentence for sentence in section.study.sentences if sentence != SCRIPTED_NOTE)
    assert settings_from({"question": None}, "") is None and settings_from(None, "") is None


def test_reference_lines_of_several_pretraining_runs_are_their_mean(tmp_path: Path) -> None:
    for k, value in enumerate((10.0, 20.0)):
        line = {"value": value, "standard_error": 1.0}
        found = {"contexts": [dict.fromkeys(("untrained", "no_mechanism", "scan_best"), line)], "warning": None}
        typed = ["principal=ucb", f"agent.init_from_seed={k}"]
        write_run(tmp_path, "toy", typed, 0, shared={PRETRAINING: [f"pre/s{k}"]}, references=found)
    [section] = summarize(tmp_path / "toy", ReportSettings()).sections
    first = section.references[0]
    assert (first.label, first.value, first.standard_error) == ("untrained agents", 15, 5)
    assert section.study is None
    assert references_of([]) == ((), ())


def test_names_tell_groups_apart() -> None:
    from llmrl.analysis.groups import Group, ReportTask

    labels = ("principal=llm, llm=scripted", "principal=llm, llm=gpt4o", "principal=ucb", "taught")
    names = names_of(ReportTask("t", {}, tuple(Group(label, ()) for label in labels)))
    assert list(names.values()) == ["llm, scripted", "llm, gpt4o", "ucb", "taught"]


MAP = {"question": "What pays?", "unit": "apples", "map": ["a", "b", "c"]}


def history(society: float, grid: list[tuple[float, float, float]]) -> list[dict[str, Any]]:
    return [
        {"mechanism": {"a": a, "b": b, "c": c}, "objective": society + 10 * a - 5 * (b - 1) ** 2 + c}
        for a, b, c in grid
    ]


def landscape(root: Path, grids: list[list[tuple[float, float, float]]]) -> Landscape:
    for k, grid in enumerate(grids):
        for seed in range(2):
            typed = ["principal=listed", f"agent.init_from_seed={k}"]
            shared = {PRETRAINING: [f"pre/s{k}"]}
            write_run(root, "map", typed, seed, shared=shared, report=MAP, history=history(k, grid))
    [section] = summarize(root / "map", ReportSettings()).sections
    assert isinstance(section.study, Landscape)
    return section.study


GRID = [(a, b, c) for a in (0.0, 1.0) for b in (0.0, 1.0, 2.0) for c in (0.0, 1.0)]


def test_a_landscape_is_the_mean_of_every_setting_over_societies(tmp_path: Path) -> None:
    found = landscape(tmp_path, [GRID, GRID[::-1]])
    assert found.vectors[found.best].tolist() == [1, 1, 1]
    assert found.band.estimate[found.best] == pytest.approx(11.5)
    sheets = found.sheets()
    assert [title for title, *_ in sheets] == ["c = 0", "c = 1"]
    _, xs, ys, places = sheets[1]
    assert (xs.tolist(), ys.tolist(), places.shape) == ([0, 1], [0, 1, 2], (3, 2))
    assert found.vectors[places[1, 1]].tolist() == [1, 1, 1]
    assert "a 1, b 1, c 1, brings 11.5 apples" in found.sentences[0]
    assert "no mechanism brings -4.5" in found.sentences[0]
    page = write_report(summarize(tmp_path / "map", ReportSettings()), tmp_path / "report")
    assert (page.parent / "figures" / "map_study.svg").exists()
    assert len((page.parent / "tables" / "map_study_landscape.csv").read_text().splitlines()) == 1 + len(GRID)


def test_a_landscape_after_several_numbers_of_rounds(tmp_path: Path) -> None:
    for k in range(2):
        rows = [{**row, "validated": {"0": 3.0, "5": row["objective"]}} for row in history(k, GRID)]
        write_run(tmp_path, "map", ["principal=listed", f"agent.init_from_seed={k}"], 0, report=MAP, history=rows)
    [section] = summarize(tmp_path / "map", ReportSettings()).sections
    assert isinstance(section.study, Landscape)
    assert list(section.study.rounds) == [0, 5]
    assert set(section.study.rounds[0].estimate) == {3.0}
    assert section.study.rounds[5].estimate.tolist() == section.study.band.estimate.tolist()
    page = write_report(summarize(tmp_path / "map", ReportSettings()), tmp_path / "report")
    assert (page.parent / "figures" / "map_study.svg").exists()
    table = (page.parent / "tables" / "map_study_adaptation.csv").read_text().splitlines()
    assert table[0] == "a,b,c,rounds,mean,low,high" and len(table) == 1 + 2 * len(GRID)


def test_the_best_of_many_noisy_settings_is_measured_by_runs_that_did_not_choose_it() -> None:
    noise = np.random.default_rng(0).normal(0, 1, (500, 8))
    honest = _chosen_by_half(noise)
    assert noise.mean(axis=1).max() > 0.9 and honest is not None and abs(honest) < 1.0
    assert _chosen_by_half(noise[:, :1]) is None
    assert _chosen_by_half(noise + np.arange(500)[:, None]) == pytest.approx(499, abs=2)


def test_settings_that_are_not_those_of_the_others_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="has not measured the settings"):
        landscape(tmp_path, [GRID, GRID[1:]])


def test_a_section_that_makes_no_sense_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, "toy", ["principal=ucb"], 0, report={"question": "?", "smooth": 0})
    with pytest.raises(RunFolderError, match="report of its config"):
        summarize(tmp_path / "toy", ReportSettings(), read_runs(tmp_path / "toy"))
