"""Display of the runs of a sweep while it waits for them, at intervals."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.results.run_records import RunRecord, read_run
from llmrl.run.folder_names import title
from llmrl.run.progress_bar import ProgressBar, clock
from llmrl.sweeps.stages import stage_counts, stage_of

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job

LOG_INTERVAL_S = 60.0
"""Seconds between two lines if there is no terminal."""
_BAR_INTERVAL_S = 5.0
_COST = "usage/llm_cost"
_MAX_NAMES = 2
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
    those with the most time left by name with their newest value; and the money they have spent.

    >>> summary([])
    ''
    """
    stages = stage_counts(records)
    running = [record for record in records if record.state == "running" and stage_of(record) is None]
    if not running:
        return stages
    shares = [share for record in running if (share := _share(record)) is not None]
    status_text = f"{len(running)} running" + (f", {sum(shares) / len(shares):.0%} done" if shares else "")
    common = _common_overrides(running)
    last = sorted(running, key=lambda record: -(record.progress.eta_s or 0.0))
    metrics = {record.folder: record.last_metrics() for record in running}
    descriptions = [_describe_run(record, common, metrics[record.folder]) for record in last]
    remainder = f" and {len(descriptions) - _MAX_NAMES} more" if len(descriptions) > _MAX_NAMES else ""
    costs = [float(x) for values in metrics.values() if isinstance(x := values.get(_COST), int | float)]
    money = f"; ${sum(costs):,.2f} spent" if costs else ""
    return f"{stages}{'; ' * bool(stages)}{status_text}: {'; '.join(descriptions[:_MAX_NAMES])}{remainder}{money}"


def bar_name(jobs: Sequence[Job]) -> str:
    """Return the description of a sweep's progress: the kind of work if all `jobs` are needed by other runs."""
    kinds = dict.fromkeys(job.what for job in jobs)
    return ", ".join(kinds) if all(kinds) else "sweep"


def _common_overrides(running: Sequence[RunRecord]) -> Set[tuple[str, str]]:
    """Return the overrides that several runs have in common."""
    return set.intersection(*(set(record.overrides.items()) for record in running)) if len(running) > 1 else set()


def newest_value(record: RunRecord, metrics: Mapping[str, Any]) -> float | None:
    """Return a run's result, or the last value of its main metric; None if there is none yet."""
    if record.result is not None:
        return record.result
    if record.progress.value is not None:
        return record.progress.value
    return next((float(metrics[name]) for name in _RESULTS if isinstance(metrics.get(name), int | float)), None)


def _describe_run(record: RunRecord, common: Set[tuple[str, str]], metrics: Mapping[str, Any]) -> str:
    overrides = {key: value for key, value in record.overrides.items() if (key, value) not in common}
    words = [title(overrides)] if overrides else []
    words.append(f"seed {record.seed}")
    share, value = _share(record), newest_value(record, metrics)
    words += [f"{share:.0%}"] if share is not None else []
    words += [f"at {value:.4g}"] if value is not None else []
    words += [f"with {record.progress.proposed}"] if record.progress.proposed else []
    eta_s = record.progress.eta_s
    return " ".join(words) + (f", {clock(eta_s)} left" if eta_s is not None else "")


def _share(record: RunRecord) -> float | None:
    progress = record.progress
    return min(progress.done / progress.total, 1.0) if progress.total else None
