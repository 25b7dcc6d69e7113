"""Display of the runs of a sweep while it waits for them, at intervals."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.results.run_records import RunRecord, read_run
from llmrl.run.progress_bar import ProgressBar, clock
from llmrl.sweeps.stages import stage_counts, stage_of

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job

LOG_INTERVAL_S = 60.0
"""Seconds between two lines if there is no terminal."""
_BAR_INTERVAL_S = 5.0
_COST = "usage/llm_cost"
_RESULTS = ("principal/objective", "search/best_return", "evaluation/return", "episode/return")


class SweepWatch:
    """A display that reads the running runs at intervals and shows them next to the sweep's progress.

    Args:
        progress: progress bar of the sweep.
        every_s: seconds between two updates; None: a minute, or less if a bar is drawn.
    """

    def __init__(self, progress: ProgressBar, every_s: float | None = None) -> None:
        self._progress = progress
        self._every_s = every_s or (_BAR_INTERVAL_S if progress.drawn else LOG_INTERVAL_S)
        self._last_update = time.monotonic()

    def look(self, folders: Sequence[Path]) -> None:
        """Show the runs in `folders` if an update is due; runs without a folder are left out."""
        if (now := time.monotonic()) - self._last_update < self._every_s or not folders:
            return
        self._last_update = now
        records = [read_run(folder) for folder in folders if folder.is_dir()]
        if text := summary(records):
            self._progress.note(text)


def summary(records: Sequence[RunRecord]) -> str:
    """Return a text about running runs; empty if there are none.

    It has the number of runs in each stage, if any run waits for another one; the number and progress of the others;
    the time left and the newest value of the slowest; and the money they have spent.

    >>> summary([])
    ''
    """
    stages = stage_counts(records)
    running = [record for record in records if record.state == "running" and stage_of(record) is None]
    if not running:
        return stages
    parts = [f"{len(running)} running"]
    shares = [min(r.progress.done / r.progress.total, 1.0) for r in running if r.progress.total]
    if shares:
        parts.append(f"{sum(shares) / len(shares):.0%} done")
    slowest = max(running, key=lambda record: record.progress.eta_s or 0.0).progress
    if slowest.eta_s is not None:
        parts.append(f"{clock(slowest.eta_s)} left")
    costs = [record.last_metrics().get(_COST) for record in running]
    if any(costs):
        parts.append(f"${sum(cost or 0.0 for cost in costs):,.2f} spent")
    news = f"; {slowest.news}" if slowest.news else ""
    return f"{stages}{'; ' * bool(stages)}{', '.join(parts)}{news}"


def bar_name(jobs: Sequence[Job]) -> str:
    """Return the description of a sweep's progress: the kind of work if all `jobs` are needed by other runs."""
    kinds = dict.fromkeys(job.what for job in jobs)
    return ", ".join(kinds) if all(kinds) else "sweep"


def newest_value(record: RunRecord, metrics: Mapping[str, Any]) -> float | None:
    """Return a run's result, or the last value of its main metric; None if there is none yet."""
    if record.result is not None:
        return record.result
    if record.progress.value is not None:
        return record.progress.value
    return next((float(metrics[name]) for name in _RESULTS if isinstance(metrics.get(name), int | float)), None)
