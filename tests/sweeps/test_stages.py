"""Runs of a sweep that wait for their dependencies, and the progress of these."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from llmrl.cli.sweep import to_json
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.run.queued import LaunchRecord
from llmrl.run.status import PrerequisiteRecord, RunProgress, RunStage, Status, read_status
from llmrl.sweeps.watch import find_stage, format_stage, format_stage_counts, summarize_running_runs
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
    assert summarize_running_runs(records).startswith(text) and "1 running" in summarize_running_runs(records)
    assert summarize_running_runs(records[:3]) == "3 runs: 3 in reference lines: coarse scan 45% (2:00 left)"
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
