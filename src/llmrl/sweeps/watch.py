"""Summaries of the running runs of a sweep, and of the stages of runs that wait for prerequisites."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import RunFolderError
from llmrl.results.run_records import RunRecord, read_run
from llmrl.run.progress_bar import ProgressBar, format_clock
from llmrl.run.queued import read_launch_record
from llmrl.run.status import RunStage, read_progress, read_status

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job

_LOG_INTERVAL_S, _BAR_INTERVAL_S = 60.0, 5.0
"""Seconds between two updates without and with a progress bar on a terminal."""
_COST_METRIC = "usage/llm_cost"
_RESULT_METRICS = ("principal/objective", "search/best_return", "evaluation/return", "episode/return")


class SweepWatch:
    """A display of a summary of the running runs below the progress bar of a sweep, updated at intervals.

    Args:
        progress: progress bar of the sweep. Updates are more frequent if it is drawn on a terminal.
    """

    def __init__(self, progress: ProgressBar) -> None:
        self._progress = progress
        self._interval_s = _BAR_INTERVAL_S if progress.has_bar else _LOG_INTERVAL_S
        self._last_update_time = time.monotonic()

    def update_if_due(self, folders: Sequence[Path]) -> None:
        """Show a summary of the runs with the run folders `folders`, which need not exist, if an update is due."""
        if (now := time.monotonic()) - self._last_update_time < self._interval_s or not folders:
            return
        self._last_update_time = now
        if text := summarize_running_runs([read_run(folder) for folder in folders if folder.is_dir()]):
            self._progress.show_activity(text)


def summarize_running_runs(records: Sequence[RunRecord]) -> str:
    """Return a summary of running runs as text; empty if there are none.

    It contains the number of runs in each stage, if any run waits for a prerequisite. For the other runs, it contains
    their number and mean progress, the time left and latest result of the slowest run, and the costs so far.

    >>> summarize_running_runs([])
    ''
    """
    stages = format_stage_counts(records)
    running_records = [record for record in records if record.state == "running" and find_stage(record) is None]
    if not running_records:
        return stages
    texts = [f"{len(running_records)} running"]
    fractions = [min(r.progress.done / r.progress.total, 1.0) for r in running_records if r.progress.total]
    if fractions:
        texts.append(f"{sum(fractions) / len(fractions):.0%} done")
    slowest_progress = max(running_records, key=lambda record: record.progress.eta_s or 0.0).progress
    if slowest_progress.eta_s is not None:
        texts.append(f"{format_clock(slowest_progress.eta_s)} left")
    costs = [record.read_last_metrics().get(_COST_METRIC) for record in running_records]
    if any(costs):
        texts.append(f"${sum(cost or 0.0 for cost in costs):,.2f} spent")
    result_text = f"; {slowest_progress.result_text}" if slowest_progress.result_text else ""
    return f"{stages}{'; ' * bool(stages)}{', '.join(texts)}{result_text}"


def name_progress_bar(jobs: Sequence[Job]) -> str:
    """Return the name of a progress bar: the purposes of `jobs` if all are prerequisites, else `sweep`."""
    purposes = dict.fromkeys(job.purpose for job in jobs)
    return ", ".join(purposes) if all(purposes) else "sweep"


def find_latest_value(record: RunRecord, metrics: Mapping[str, Any]) -> float | None:
    """Return a run's result, or the last value of its main metric; None if there is none yet."""
    if record.result is not None:
        return record.result
    if record.progress.value is not None:
        return record.progress.value
    return next((float(metrics[name]) for name in _RESULT_METRICS if isinstance(metrics.get(name), int | float)), None)


def find_stage(record: RunRecord) -> RunStage | None:
    """Return the stage of a running or queued run that waits for a prerequisite; else None."""
    try:
        if record.state == "running":
            status = read_status(record.folder)
            return None if status is None else status.stage
        return _find_prerequisite_stage(record.folder) if record.state == "queued" else None
    except RunFolderError:
        return None  # `read_run` reports this error


def _find_prerequisite_stage(folder: Path) -> RunStage | None:
    """Return the stage of a queued run that waits for other jobs of its launch; None if it does not wait."""
    launch_record = read_launch_record(folder)
    prerequisites = [] if launch_record is None else launch_record.after
    for index, prerequisite in enumerate(prerequisites, start=1):
        status = read_status(Path(prerequisite.folder))
        if status is None or status.state != "finished":
            fraction, eta_s, _ = read_progress(Path(prerequisite.folder))
            # If the prerequisite is also a run of the sweep, `what` and `name` are empty.
            return RunStage(
                prerequisite.what or "another run", prerequisite.name, index, len(prerequisites) + 1, fraction, eta_s
            )
    return None


def format_stage(stage: RunStage) -> str:
    """Return a stage as text for a table.

    >>> format_stage(RunStage("pre-training", "preset:regimes/cleanup_pretrain, seed 0", 1, 4, 0.45, 120.0))
    '1/4 pre-training 45%'
    """
    percentage = "" if stage.fraction is None else f" {stage.fraction:.0%}"
    return f"{stage.index}/{stage.of} {stage.name}{percentage}"


def format_stage_counts(records: Sequence[RunRecord]) -> str:
    """Return the number of running and queued runs in each stage as text; empty if no run waits for a prerequisite.

    A percentage is the mean over the runs of a stage; the time left is the longest one.
    """
    groups: dict[str, list[RunStage]] = {}
    n_running = n_waiting = 0
    for record in records:
        stage = find_stage(record)
        if stage is not None:
            prefix = "in" if record.state == "running" else "waiting for"
            groups.setdefault(f"{prefix} {stage.name}", []).append(stage)
        elif record.state == "running":
            n_running += 1
        elif record.state == "queued":
            n_waiting += 1
    if not groups:
        return ""
    texts = [f"{len(stages)} {name}{_format_progress(stages)}" for name, stages in groups.items()]
    texts += [f"{n} {word}" for n, word in ((n_running, "running"), (n_waiting, "waiting")) if n]
    total = n_running + n_waiting + sum(map(len, groups.values()))
    return f"{total} run{'s' * (total != 1)}: {', '.join(texts)}"


def _format_progress(stages: Sequence[RunStage]) -> str:
    fractions = [stage.fraction for stage in stages if stage.fraction is not None]
    percentage = f" {sum(fractions) / len(fractions):.0%}" if fractions else ""
    etas = [stage.eta_s for stage in stages if stage.eta_s is not None]
    return percentage + (f" ({format_clock(max(etas))} left)" if etas else "")
