"""What the runs of a sweep are doing while it waits for them: a table on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.analysis.runs import RunRecord, read_run
from llmrl.run.folder_names import title
from llmrl.run.progress_bar import ProgressBar, clock
from llmrl.sweeps.stages import stage_counts, stage_of, stage_text

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job

EVERY_S = 60.0
"""Seconds between two lines where there is no terminal."""
_DRAWN_EVERY_S = 5.0
_COST = "spent/llm_cost"
_NAMED = 2
_RESULTS = ("principal/objective", "search/best_return", "evaluation/return", "ended/return")


class SweepWatch:
    """Looks now and then at the runs that are under way, and says what they do beside the sweep's progress.

    Args:
        progress: of the sweep.
        every_s: seconds between two looks; None: a minute, and less where a bar is drawn.
    """

    def __init__(self, progress: ProgressBar, every_s: float | None = None) -> None:
        self._progress = progress
        self._every_s = every_s or (_DRAWN_EVERY_S if progress.drawn else EVERY_S)
        self._looked = time.monotonic()

    def look(self, folders: Sequence[Path]) -> None:
        """Say what the runs in `folders` do, where it is time; those that have no folder yet are left out."""
        if (now := time.monotonic()) - self._looked < self._every_s or not folders:
            return
        self._looked = now
        found = [read_run(folder) for folder in folders if folder.is_dir()]
        if not _running(found) and not stage_counts(found):
            return
        if self._progress.drawn:
            cells = rows(found)
            # Most sweeps have no stages.
            shown = [i for i, name in enumerate(COLUMNS) if name != "stage" or any(row[i] != "-" for row in cells)]
            self._progress.table([COLUMNS[i] for i in shown], [[row[i] for i in shown] for row in cells])
        else:
            self._progress.note(summary(found))


def summary(records: Sequence[RunRecord]) -> str:
    """Return what runs do: how many are in which stage, if any waits for a run that it needs; how many are computed
    themselves, how far they are, those that will take longest by name with their newest value, and what they have
    spent. Empty where none runs.

    >>> summary([])
    ''
    """
    stages = stage_counts(records)
    running = [record for record in _running(records) if stage_of(record) is None]
    if not running:
        return stages
    shares = [share for record in running if (share := _share(record)) is not None]
    told = f"{len(running)} running" + (f", {sum(shares) / len(shares):.0%} done" if shares else "")
    common = _common(running)
    last = sorted(running, key=lambda record: -(record.progress.eta_s or 0.0))
    metrics = {record.folder: record.last_metrics() for record in running}
    each = [_told(record, common, metrics[record.folder]) for record in last]
    more = f" and {len(each) - _NAMED} more" if len(each) > _NAMED else ""
    costs = [float(x) for found in metrics.values() if isinstance(x := found.get(_COST), int | float)]
    money = f"; ${sum(costs):,.2f} spent" if costs else ""
    return f"{stages}{'; ' * bool(stages)}{told}: {'; '.join(each[:_NAMED])}{more}{money}"


def bar_name(jobs: Sequence[Job]) -> str:
    """Return the description of a sweep's progress: the kind of work if all `jobs` are needed by other runs."""
    kinds = dict.fromkeys(job.what for job in jobs)
    return ", ".join(kinds) if all(kinds) else "sweep"


COLUMNS = ("run", "seed", "stage", "done", "objective", "last proposal", "$", "left")
"""Of `rows`."""


def rows(records: Sequence[RunRecord]) -> list[list[str]]:
    """Return the cells of a table of running runs, those that will take longest first; see `COLUMNS`."""
    running = sorted(_running(records), key=lambda record: -(record.progress.eta_s or 0.0))
    common = _common(running)
    found = []
    for record in running:
        metrics, progress = record.last_metrics(), record.progress
        own = {key: value for key, value in record.overrides.items() if (key, value) not in common}
        stage, share = stage_of(record), _share(record)
        value, cost = newest_value(record, metrics), metrics.get(_COST)
        left = progress.eta_s if stage is None else stage.eta_s
        done = f"{progress.done:,.0f} {progress.unit}" + ("" if share is None else f" ({share:.0%})")
        found.append(
            [
                title(own) or record.group.rpartition("-")[0],
                str(record.seed),
                "-" if stage is None else stage_text(stage),
                done if stage is None else "-",
                "-" if value is None else f"{value:.4g}",
                progress.proposed or "-",
                "-" if cost is None else f"{cost:.2f}",
                "-" if left is None else clock(left),
            ]
        )
    return found


def _running(records: Sequence[RunRecord]) -> list[RunRecord]:
    return [record for record in records if record.state == "running"]


def _common(running: Sequence[RunRecord]) -> Set[tuple[str, str]]:
    """What all of several runs have been told."""
    return set.intersection(*(set(record.overrides.items()) for record in running)) if len(running) > 1 else set()


def newest_value(record: RunRecord, metrics: Mapping[str, Any]) -> float | None:
    """Return a run's result, or the last value of what it is about; None where it has none yet."""
    if record.result is not None:
        return record.result
    if record.progress.value is not None:
        return record.progress.value
    return next((float(metrics[name]) for name in _RESULTS if isinstance(metrics.get(name), int | float)), None)


def _told(record: RunRecord, common: Set[tuple[str, str]], metrics: Mapping[str, Any]) -> str:
    own = {key: value for key, value in record.overrides.items() if (key, value) not in common}
    words = [title(own)] if own else []
    words.append(f"seed {record.seed}")
    share, value = _share(record), newest_value(record, metrics)
    words += [f"{share:.0%}"] if share is not None else []
    words += [f"at {value:.4g}"] if value is not None else []
    words += [f"with {record.progress.proposed}"] if record.progress.proposed else []
    left = record.progress.eta_s
    return " ".join(words) + (f", {clock(left)} left" if left is not None else "")


def _share(record: RunRecord) -> float | None:
    progress = record.progress
    return min(progress.done / progress.total, 1.0) if progress.total else None
