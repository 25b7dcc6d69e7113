"""Stages of the runs of a sweep: runs that wait for other runs, and the progress of these."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.results.run_records import RunRecord
from llmrl.run.progress_bar import clock
from llmrl.run.queued import read_queued
from llmrl.run.status import RunStage, read_progress, read_status


def stage_of(record: RunRecord) -> RunStage | None:
    """Return the stage of a running run, or of a queued run, that waits for a run that it needs; else None."""
    try:
        if record.state == "running":
            status = read_status(record.folder)
            return None if status is None else status.stage
        if record.state == "queued":
            return _find_prerequisite_stage(record.folder)
    except RunFolderError:
        return None  # the run's record reports this error
    return None


def _find_prerequisite_stage(folder: Path) -> RunStage | None:
    """Return the stage of a queued run that begins after other jobs of its launch."""
    launch_record = read_queued(folder)
    after = [] if launch_record is None else launch_record.after
    for index, prerequisite in enumerate(after, start=1):
        status = read_status(Path(prerequisite.folder))
        if status is None or status.state != "finished":
            fraction, eta_s, _ = read_progress(Path(prerequisite.folder))
            # A run that is one of the sweep itself has no name as a prerequisite.
            return RunStage(
                prerequisite.what or "another run", prerequisite.name, index, len(after) + 1, fraction, eta_s
            )
    return None


def stage_text(stage: RunStage) -> str:
    """Return a stage as text for a table.

    >>> stage_text(RunStage("pre-training", "preset:regimes/cleanup_pretrain, seed 0", 1, 4, 0.45, 120.0))
    '1/4 pre-training 45%'
    """
    share = "" if stage.fraction is None else f" {stage.fraction:.0%}"
    return f"{stage.index}/{stage.of} {stage.name}{share}"


def stage_counts(records: Sequence[RunRecord]) -> str:
    """Return how many of the running and queued runs are in which stage; empty if none waits for a run that it needs.

    The percentage is the mean over the runs of a stage, the time left that of the slowest.
    """
    groups: dict[str, list[RunStage]] = {}
    running = waiting = 0
    for record in records:
        stage = stage_of(record)
        if stage is not None:
            prefix = "in" if record.state == "running" else "waiting for"
            groups.setdefault(f"{prefix} {stage.name}", []).append(stage)
        elif record.state == "running":
            running += 1
        elif record.state == "queued":
            waiting += 1
    if not groups:
        return ""
    parts = [f"{len(stages)} {name}{_progress(stages)}" for name, stages in groups.items()]
    parts += [f"{n} {word}" for n, word in ((running, "running"), (waiting, "waiting")) if n]
    total = running + waiting + sum(map(len, groups.values()))
    return f"{total} run{'s' * (total != 1)}: {', '.join(parts)}"


def _progress(stages: Sequence[RunStage]) -> str:
    fractions = [stage.fraction for stage in stages if stage.fraction is not None]
    share = f" {sum(fractions) / len(fractions):.0%}" if fractions else ""
    etas = [stage.eta_s for stage in stages if stage.eta_s is not None]
    return share + (f" ({clock(max(etas))} left)" if etas else "")
