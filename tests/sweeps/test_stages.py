"""Runs of a sweep that wait for their dependencies, and the progress of these."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from llmrl.cli.sweep import to_json
from llmrl.display.sweeps import print_prerequisites
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.run.queued import LaunchRecord
from llmrl.run.status import PrerequisiteRecord, RunProgress, RunStage, Status, read_status
from llmrl.sweeps.watch import find_stage, format_stage, format_stage_counts, summarize_running
from run_folders import write_run

SCAN = RunStage("reference lines: coarse scan", "coarse scan of 8 vectors", 1, 3, 0.45, 120.0)


def record(root: Path, seed: int, state: str, stage: RunStage | None = None) -> RunRecord:
    """Return a run that is made to look as if it ran or waited."""
    folder = write_run(root, "toy", ["env=toy"], seed)
    status = read_status(folder)
    assert status is not None
    status.stage = stage
    status.write(folder)
    [run_record] = [candidate for candidate in read_runs(root) if candidate.folder == folder]
    return replace(run_record, state=state, result=None)  # type: ignore[arg-type]


def queue_after(folder: Path, *prerequisites: PrerequisiteRecord) -> None:
    LaunchRecord(
        *("here", 1, "", "machine", 1, "start", "host", "sweep", "", "", "", time.time(), "code", []),
        after=list(prerequisites),
    ).write(folder)


def test_runs_are_counted_by_stage(tmp_path: Path) -> None:
    records = [record(tmp_path, seed, "running", SCAN) for seed in range(3)]
    records += [record(tmp_path, 3, "running"), record(tmp_path, 4, "queued"), record(tmp_path, 5, "finished", SCAN)]
    text = format_stage_counts(records)
    assert text == "5 runs: 3 in reference lines: coarse scan 45% (2:00 left), 1 running, 1 waiting"
    assert summarize_running(records).startswith(text) and "1 running" in summarize_running(records)
    assert summarize_running(records[:3]) == "3 runs: 3 in reference lines: coarse scan 45% (2:00 left)"
    assert {format_stage(find_stage(running)) for running in records[:3]} == {"1/3 reference lines: coarse scan 45%"}
    assert to_json(records[0])["stage"]["fraction"] == 0.45 and to_json(records[3])["stage"] is None


def test_no_dependencies_give_empty_counts(tmp_path: Path) -> None:
    assert format_stage_counts([record(tmp_path, 0, "running"), record(tmp_path, 1, "queued")]) == ""


def test_queued_run_shows_first_dependency(tmp_path: Path) -> None:
    waiting, done = record(tmp_path, 0, "queued"), record(tmp_path, 1, "finished")
    missing_folder = tmp_path / "needed"
    missing_folder.mkdir()
    prerequisites = [
        PrerequisiteRecord("pre-training", f"seed {i}", str(f)) for i, f in enumerate((done.folder, missing_folder))
    ]
    queue_after(waiting.folder, *prerequisites)
    assert find_stage(waiting) == RunStage("pre-training", "seed 1", 2, 3, None, None)
    Status(progress=RunProgress(done=1, total=4, eta_s=60.0)).write(missing_folder)
    assert format_stage_counts([waiting]) == "1 run: 1 waiting for pre-training 25% (1:00 left)"
    (missing_folder / "summary.json").write_text("{}")
    Status(state="finished").write(missing_folder)
    assert find_stage(waiting) is None


def test_closing_table_lists_dependencies(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Jobs of the sweep, and runs that the statuses of results, or of needed runs, refer to."""
    pretraining, scan, nested = (tmp_path / name for name in ("pretraining", "scan", "nested"))
    refer = [
        PrerequisiteRecord("pre-training", "preset", str(pretraining)),
        PrerequisiteRecord("lines", "a scan", str(scan)),
    ]
    for folder, records in ((scan, [PrerequisiteRecord("pre-training", "of the scan", str(nested))]), (nested, [])):
        folder.mkdir()
        (folder / "summary.json").write_text("{}")
        Status(state="finished", prerequisites=records, started=time.time() - 75).write(folder)
    outcomes = [
        SimpleNamespace(folder=pretraining, state="failed", job=SimpleNamespace(purpose="pre-training", name="preset"))
    ]
    for seed in (0, 1):
        folder = record(tmp_path, seed, "finished").folder
        Status(state="finished", prerequisites=refer).write(folder)
        outcomes.append(SimpleNamespace(folder=folder, state="finished", job=SimpleNamespace(purpose="", name="")))
    print_prerequisites(outcomes)  # type: ignore[arg-type]
    lines = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [line.split("│")[1].strip() for line in lines if line.split("│")[1].strip()] == [
        "a scan",
        "of the scan",
        "preset",
    ]
    assert ["failed" in line for line in lines if "preset" in line] == [True]
    assert sum("1:15" in line for line in lines) == 2
    print_prerequisites([])
    assert not capsys.readouterr().out
