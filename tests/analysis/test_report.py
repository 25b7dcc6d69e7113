"""`llmrl-report` for run folders: numbers, files, excluded runs, and invalid input."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments import run as run_experiment
from llmrl.analysis.aggregate import compute_report
from llmrl.analysis.report import ReportSettings
from llmrl.analysis.scores import ScoreRule
from llmrl.cli.sweep_report import build_parser, main
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import SCRIPTED_NOTE
from llmrl.results.run_records import find_runs
from llmrl.run.ownership import get_machine_id
from llmrl.run.queued import LaunchRecord
from llmrl.run.run import Run
from llmrl.run.status import RunProgress
from llmrl.statistics.intervals import mean_interval
from run_folders import write_run


def table(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / "tables" / f"{name}.csv").open() as file:
        return list(csv.DictReader(file))


def read_by_group(folder: Path, name: str) -> dict[str, dict[str, str]]:
    return {row["group"]: row for row in table(folder, name)}


@pytest.fixture(scope="module")
def report_folder(sweep: Path) -> Path:
    main([str(sweep)])
    return sweep / "report"


@pytest.mark.slow
def test_single_game_scores(report_folder: Path) -> None:
    rows = read_by_group(report_folder, "cleanup_scores")
    assert list(rows) == ["principal=fixed", "principal=scripted rule", "principal=random", "principal=ucb"]
    ucb = {key: float(value) for key, value in rows["principal=ucb"].items() if value and key not in ("group", "llm")}
    scores = np.arange(10.0, 16)
    assert (ucb["finished"], ucb["expected"]) == (6, 6)
    assert (ucb["mean"], ucb["median"], ucb["iqm"], ucb["min"], ucb["max"]) == (12.5, 12.5, 12.5, 10, 15)
    assert ucb["standard_error"] == pytest.approx(scores.std(ddof=1) / 6**0.5)
    band = mean_interval(scores)
    assert (ucb["mean_low"], ucb["mean_high"]) == pytest.approx((float(band.low), float(band.high)))
    assert rows["principal=fixed"]["mean"] == "2.0"
    assert rows["principal=fixed"]["mean_low"] == ""
    assert rows["principal=fixed"]["remark"].startswith("1 run:")
    assert rows["principal=scripted rule"]["remark"].startswith("2 runs:")
    assert rows["principal=random"]["finished"] == "0"
    assert rows["principal=random"]["mean"] == ""


def test_pairwise_comparisons(report_folder: Path) -> None:
    rows = {(row["group"], row["over"]): row for row in table(report_folder, "cleanup_improvement")}
    assert len(rows) == 3 * 2
    row = rows["principal=scripted rule", "principal=ucb"]
    assert float(row["probability"]) == pytest.approx(3 / 12)
    assert row["low"] == rows["principal=fixed", "principal=ucb"]["low"] == ""


def test_curves_are_exported(report_folder: Path) -> None:
    rows = [row for row in table(report_folder, "harvest_curve_principal_objective") if row["group"] == "principal=ucb"]
    assert [(row["runs"], row["env_steps"]) for row in rows] == [("6", "100.0"), ("6", "200.0"), ("6", "300.0")]
    assert [float(row["mean"]) for row in rows] == [0, 100, 102.5]


def test_reports_excluded_runs(report_folder: Path) -> None:
    rows = [row for row in table(report_folder, "not_in_the_numbers") if row["task"] == "cleanup"]
    failed = [(row["group"], row["seed"], row["reason"]) for row in rows if row["state"] == "failed"]
    assert failed == [
        ("principal=scripted rule", "2", "ValueError: the reply <b> is 100% {wrong} & a_b"),
        ("principal=random", "1", "RuntimeError: no luck"),
    ]
    missing = [(row["group"], int(row["seed"])) for row in rows if row["state"] == "missing"]
    assert ("principal=fixed", 5) in missing
    assert len(missing) == 5 + 3 + 5
    page = (report_folder / "report.html").read_text()
    assert "ValueError: the reply &lt;b&gt; is 100% {wrong} &amp; a_b" in page
    assert re.search(r"18 of 22 runs .*\(4 failed, 18 finished\)\. 26 ", page)
    tex = (report_folder / "tables" / "not_in_the_numbers.tex").read_text()
    assert r"ValueError: the reply \textless{}b\textgreater{} is 100\% \{wrong\} \& a\_b" in tex


def test_reports_unknown_costs(report_folder: Path) -> None:
    for name in ("report.html", "summary.md"):
        text = (report_folder / name).read_text()
        assert "principal=scripted rule" in text and "principal=llm" not in text and "†" not in text
        assert text.count(SCRIPTED_NOTE) == 1
    assert "principal=scripted rule" in (report_folder / "tables" / "cleanup_scores.tex").read_text()
    svg = (report_folder / "figures" / "cleanup_scores.svg").read_text()
    assert "principal=scripted rule" in svg and "llm=scripted" not in svg  # matplotlib writes texts as comments, too
    calls = {row["task"]: row for row in table(report_folder, "llm_calls")}
    assert (calls["cleanup"]["calls"], calls["cleanup"]["usd"]) == ("6", "0.0")
    assert (calls["harvest"]["calls"], calls["harvest"]["usd"]) == ("6", "")
    assert "unknown" in (report_folder / "tables" / "llm_calls.tex").read_text()


def test_page_is_self_contained(report_folder: Path) -> None:
    page = (report_folder / "report.html").read_text()
    sources = re.findall(r"""(?:src|href)\s*=\s*["']([^"']+)""", page)
    assert sources
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in sources)
    assert "<script" not in page
    assert "@import" not in page
    assert "url(" not in page
    links = [source[1:] for source in sources if source.startswith("#")]
    assert all(f'id="{link}"' in page for link in links)


@pytest.mark.slow
def test_files_are_reproducible(report_folder: Path, sweep: Path, tmp_path: Path) -> None:
    names = {path.relative_to(report_folder).as_posix() for path in report_folder.rglob("*") if path.is_file()}
    assert not [name for name in names if name.endswith(".tmp")]
    for section in ("cleanup", "harvest"):
        kinds = ["scores", "curve_principal_objective"]
        assert {f"figures/{section}_{kind}.{form}" for kind in kinds for form in ("png", "svg")} <= names
    assert (report_folder / "figures" / "cleanup_scores.png").read_bytes().startswith(b"\x89PNG")
    main([str(sweep), "--out", str(tmp_path / "again")])
    for name in names - {"report.html", "summary.md"}:  # which tell the time
        assert (tmp_path / "again" / name).read_bytes() == (report_folder / name).read_bytes(), name


def test_report_is_not_run(report_folder: Path, sweep: Path) -> None:
    assert report_folder.exists()
    assert len(find_runs(sweep)) == 22


def test_terminal_shows_scores(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main([str(sweep / "cleanup"), "--no-figures"])
    out = capsys.readouterr().out
    assert "cleanup: scores" in out and "12.5 [" in out and "Runs not in the numbers" in out
    assert f"Report: {sweep / 'cleanup' / 'report' / 'report.html'}" in out
    assert not (sweep / "cleanup" / "report" / "figures").exists()


def test_metric_is_configurable(sweep: Path) -> None:
    settings = ReportSettings(ScoreRule("other", 0.5))
    section = compute_report(sweep / "harvest", settings).sections[0]
    assert section.summaries[-1].scores.tolist() == [200 + seed for seed in range(6)]


def test_run_states_have_reasons(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path, "game", ["principal=ucb"], seed, [1.0])
    write_run(tmp_path, "game", ["principal=ucb"], 2, [1.0], KeyboardInterrupt())
    interrupted_run = write_run(tmp_path, "game", ["principal=ucb"], 3, [1.0], KeyboardInterrupt())
    text = (interrupted_run / "status.json").read_text()
    (interrupted_run / "status.json").write_text(text.replace('"stopped"', '"running"'))  # and nobody owns the folder
    corrupt = write_run(tmp_path, "game", ["principal=ucb"], 4, [1.0])
    (corrupt / "status.json").write_text("{")
    waiting = corrupt.with_name("s5")
    waiting.mkdir()
    place = (
        "llmrl.sweeps.backends.slurm_submission.Slurm",
        0,
        "17",
        get_machine_id(),
        os.getpid(),
        "",
        "here",
        str(tmp_path),
    )
    LaunchRecord(*place, log="", cluster="", user="", submitted=0.0, code="", overrides=["principal=ucb"]).write(
        waiting
    )
    (corrupt.with_name("s6")).mkdir()
    with Run.open(tmp_path, "game", {"of": ["game", "principal=ucb"]}, ["principal=ucb"], 7) as run:
        run.status.progress = RunProgress(4, 10, "steps")
        run.status.write(run.folder)
        report = compute_report(tmp_path, ReportSettings())
    reasons = {
        seed: (excluded_runs.state, excluded_runs.reason)
        for excluded_runs in report.excluded
        for seed in excluded_runs.seeds
    }
    assert {seed: state for seed, (state, _) in reasons.items()} == {
        2: "stopped",
        3: "lost",
        4: "unreadable",
        5: "queued",
        6: "lost",
        7: "running",
    }
    assert reasons[2][1] == "KeyboardInterrupt"
    assert reasons[3][1].startswith("process ") and "status.json" in reasons[4][1] and "queue" in reasons[5][1]
    assert "4 steps done (40%)" in reasons[7][1]
    assert report.n_scored_runs == 2
    assert report.sections[0].summaries[0].group.n_expected_runs == 8


def test_uneven_curves_use_common_range(tmp_path: Path) -> None:
    write_run(tmp_path, "game", [], 0, [1.0, 2, 3], steps=100)
    write_run(tmp_path, "game", [], 1, [1.0, 2, 3, 4], steps=60)
    write_run(tmp_path, "game", [], 2, [float("nan")])
    section = compute_report(tmp_path, ReportSettings(curves=("other",))).sections[0]
    [line] = section.curves[0].curve_by_group.values()
    assert (line.x[0], line.x[-1], line.values.shape[1]) == (100, 240, 2)
    assert not section.notes  # the third run is not in the numbers at all
    (tmp_path / "game").joinpath(find_runs(tmp_path)[1], "metrics.jsonl").write_text("")
    [note] = compute_report(tmp_path, ReportSettings(curves=("other",))).sections[0].notes
    assert note.startswith("Curve of other, ") and "seed 1 " in note


def test_curves_over_proposals_and_time(tmp_path: Path) -> None:
    for seed, steps in enumerate((100, 60)):
        write_run(tmp_path, "game", [], seed, [1.0, 2, 3], steps=steps)
    [line] = compute_report(tmp_path, ReportSettings(x_axis="proposals")).sections[0].curves[0].curve_by_group.values()
    assert line.x.tolist() == [4, 8, 12] and line.band.estimate.tolist() == [1, 2, 3]
    write_run(tmp_path / "alone", "game", [], 0, [1.0, 2, 3])  # whose seconds need not overlap with another's
    [curve] = compute_report(tmp_path / "alone", ReportSettings(x_axis="seconds")).sections[0].curves
    [line] = curve.curve_by_group.values()
    assert curve.x_axis == "seconds" and line.x[-1] < 60 and line.band.estimate[-1] == 3


@pytest.mark.long
@pytest.mark.slow
def test_large_number_of_groups(tmp_path: Path) -> None:
    for group in range(13):
        write_run(tmp_path, "game", [f"rate={group}$\\wrong{{$"], 0, [float(group)])
    main([str(tmp_path)])
    text = (tmp_path / "report" / "summary.md").read_text()
    assert re.search(r"12 groups .*of 13\.", text)
    assert len(table(tmp_path / "report", "game_scores")) == 13
    assert len(table(tmp_path / "report", "game_improvement")) == 13 * 12


@pytest.mark.slow
def test_pairs_have_maximum_number(tmp_path: Path) -> None:
    for i in range(101):
        write_run(tmp_path, "game", [f"rate={i}"], 0, [float(i)])
    main([str(tmp_path), "--no-figures"])
    rows = table(tmp_path / "report", "game_improvement")
    assert len(rows) == 100 * 99 and "rate=0" not in {row["group"] for row in rows}
    assert {row["probability"] for row in rows if row["group"] == "rate=100"} == {"1.0"}
    page = (tmp_path / "report" / "report.html").read_text()
    assert re.search(r"100 groups .*of 101\.", page) and re.search(r"12 groups .*of 101\.", page)


def lines(*levels: tuple[float, float | None, float], warning: str | None = None) -> dict[str, Any]:
    """Return reference lines of a summary by context.

    They hold no mechanism with its standard error and the best of the scan.
    """
    contexts = [
        {
            "untrained": {"value": none - 1, "standard_error": error},
            "no_mechanism": {"value": none, "standard_error": error},
            "scan_best": {"value": best, "standard_error": error},
        }
        for none, error, best in levels
    ]
    return {"contexts": contexts, "warning": warning}


def test_baselines_accompany_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task_lines = lines((2.0, 0.3, 8.0), (4.0, 0.4, 10.0), warning="this objective does not respond")
    for principal, level in (("ucb", 5.0), ("gp", 7.0)):
        for seed in range(3):
            write_run(tmp_path, "room", [f"principal={principal}"], seed, [level, level + seed], references=task_lines)
    main([str(tmp_path)])
    output = capsys.readouterr().out
    assert "Warning: this objective does not respond." in output and "best of the coarse scan" in output
    scores = read_by_group(tmp_path / "report", "room_scores")
    assert float(scores["no mechanism"]["mean"]) == 3.0 and float(scores["untrained agents"]["mean"]) == 2.0
    assert float(scores["best of the coarse scan"]["mean"]) == 9.0
    assert float(scores["no mechanism"]["standard_error"]) == pytest.approx(0.25) and not scores["no mechanism"]["iqm"]
    figure_text = (tmp_path / "report" / "figures" / "room_curve_principal_objective.svg").read_text()
    assert "<!-- no mechanism -->" in figure_text and "<!-- best of the coarse scan -->" in figure_text
    page = (tmp_path / "report" / "report.html").read_text()
    assert '<p class="attention">Warning: this objective does not respond.</p>' in page
    # Of another kind than the scores.
    main([str(tmp_path), "--metric", "other", "--no-figures", "--out", str(tmp_path / "other")])
    assert set(read_by_group(tmp_path / "other", "room_scores")) == {"principal=ucb", "principal=gp"}


def test_groups_have_distinct_line_styles(tmp_path: Path) -> None:
    for agent, task_lines in (("a", lines((1.0, None, 2.0), warning="flat")), ("b", lines((3.0, 0.1, 4.0)))):
        write_run(tmp_path, "room", [f"agent={agent}"], 0, references=task_lines)
    main([str(tmp_path)])
    scores = read_by_group(tmp_path / "report", "room_scores")
    first, second = (scores[f"no mechanism (agent={agent})"] for agent in "ab")
    assert float(first["mean"]) == 1.0 and not first["standard_error"] and float(second["mean"]) == 3.0
    assert "Warning (agent=a): flat." in (tmp_path / "report" / "summary.md").read_text()
    assert "no mechanism" not in (tmp_path / "report" / "figures" / "room_curve_principal_objective.svg").read_text()


def test_real_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for principal in (["principal=ucb"], ["principal=llm", "llm=scripted"]):
        for seed in range(2):
            small_settings = [
                "design.evaluations=1",
                "design.steps=2",
                "design.adapt_rounds=1",
                "design.validate_episodes=2",
            ]
            run_experiment("env=escape_room", *principal, *small_settings, f"seed={seed}", f"output_root={tmp_path}")
    capsys.readouterr()
    main([str(tmp_path), "--no-figures"])
    rows = read_by_group(tmp_path / "report", "escape_room_scores")
    assert {label: row["finished"] for label, row in rows.items()} == {
        "principal=scripted rule": "2",
        "principal=ucb": "2",
    }
    assert "principal=scripted rule" in capsys.readouterr().out
    [calls] = table(tmp_path / "report", "llm_calls")
    assert int(calls["calls"]) >= 4
    assert (tmp_path / "report" / "tables" / "escape_room_curve_principal_objective.csv").exists()


def fails(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    assert end.value.code == 1
    return capsys.readouterr().err


def test_rejects_empty_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"no folder {tmp_path / 'absent'}" in fails(capsys, tmp_path / "absent")
    assert f"no runs in {tmp_path}" in fails(capsys, tmp_path)
    assert not (tmp_path / "report").exists()


def test_unfinished_sweep_has_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_run(tmp_path, "game", ["principal=ucb"], 0, [1.0], ValueError("no"))
    assert str(tmp_path) in fails(capsys, tmp_path)
    page = (tmp_path / "report" / "report.html").read_text()
    assert re.search(r"0 of 1 runs .*\(1 failed\)", page) and "ValueError: no" in page


def test_unknown_metrics_list_available_metrics(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--metric", "--curve"):
        error = fails(capsys, sweep, option, "objektive", "--out", sweep / "nowhere")
        assert re.search("objektive; .*: other, principal/objective", error)
    assert not (sweep / "nowhere").exists()


def test_senseless_settings(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--tail-fraction" in fails(capsys, sweep, "--tail-fraction", "0.1")
    assert "--bin=0" in fails(capsys, sweep, "--bin", "0")


def test_rejects_unwritable_folder(sweep: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    assert f"{tmp_path / 'file'}: " in fails(capsys, sweep, "--no-figures", "--out", tmp_path / "file")
    with pytest.raises(RunFolderError):
        compute_report(tmp_path / "file", ReportSettings())


def test_missing_matplotlib(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "'llmrl[plots]'" in fails(capsys, sweep, "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    main([str(sweep), "--no-figures", "--out", str(tmp_path / "out")])
    assert (tmp_path / "out" / "report.html").exists()


def test_reading_runs_needs_no_heavy_imports() -> None:
    script = "import sys, llmrl.analysis.report_files, llmrl.cli.sweep_report; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert not {"torch", "matplotlib", "scipy", "pandas"} & set(loaded)


def test_documentation_page_lists_all_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "comparing_runs.md").read_text()
    options = [
        option for action in build_parser()._actions for option in action.option_strings if option.startswith("--")
    ]
    assert [option for option in options if f"`{option}" not in page and option != "--help"] == []


def test_copied_folder_gives_equal_report(sweep: Path, tmp_path: Path) -> None:
    shutil.copytree(sweep, tmp_path / "copy", ignore=shutil.ignore_patterns("report"))
    settings = ReportSettings()
    original, copy_report = (compute_report(folder, settings) for folder in (sweep, tmp_path / "copy"))
    assert [summary.scores.tolist() for s in original.sections for summary in s.summaries] == [
        summary.scores.tolist() for s in copy_report.sections for summary in s.summaries
    ]
