"""Curves of metrics over environment steps, proposals or time, aggregated over the seeds of a group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.scores import AXES, DEFAULT_CURVES, Series, series
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import Group
from llmrl.results.replication import units_of
from llmrl.results.run_records import RunRecord
from llmrl.statistics.intervals import Band, mean_interval

GRID = 101
"""Number of places of the common grid if the runs of a group logged at different places."""

MAX_POINTS = 200
_WITH_SUCCESS = ("train/return", "train/success")
"""Metrics of learning agents that are both drawn by default, the second one if episodes can succeed."""


@dataclass(frozen=True)
class Line:
    """The curve of one group.

    Attributes:
        label: label of the group.
        places: x coordinates, [n_places].
        band: mean over the top-level units with pointwise 95% intervals, [n_places].
        runs: number of runs.
    """

    label: str
    places: np.ndarray
    band: Band
    runs: int


@dataclass(frozen=True)
class Curve:
    """A metric of all groups that have it.

    Attributes:
        metric: name of the metric.
        lines: curves of the groups.
        over: x axis, one of `scores.AXES`.
    """

    metric: str
    lines: tuple[Line, ...]
    over: str = "env_steps"


def curves_of(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    metrics: Sequence[str],
    over: str = "env_steps",
    width: int | None = None,
) -> tuple[tuple[Curve, ...], tuple[str, ...]]:
    """Return a curve for each metric, and notes about missing parts.

    Args:
        groups: each group with its finished runs.
        metrics: names in `metrics.jsonl`; empty: the first of `DEFAULT_CURVES` that a run has.
        over: x axis, one of `scores.AXES`.
        width: bin width of metrics of training episodes, frames.
    """
    curves, notes = [], []
    for metric in metrics or (*DEFAULT_CURVES, *_WITH_SUCCESS[1:]):
        lines = []
        group_notes = []
        for group, runs in groups:
            curves_of_runs, units, lacking = _read_curves(runs, metric, over, width)
            group_notes += [f"Curve of {metric}, {group.shown}: {reason}." for reason in lacking]
            if curves_of_runs:
                line = _line(group.label, curves_of_runs, units)
                if line is None:
                    group_notes.append(
                        f"Curve of {metric}, {group.shown}: its runs have no common range of {AXES[over][1]}."
                    )
                else:
                    lines.append(line)
        if lines:
            curves.append(Curve(metric, tuple(lines), over))
        if lines or metrics:
            notes += group_notes
        if lines and not metrics and metric != _WITH_SUCCESS[0]:
            break
    return tuple(curves), tuple(notes)


def on_common_grid(runs: Sequence[Series]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return curves of several runs at common places; None if no place is common to all.

    Nothing is extrapolated: only the range that all runs cover is used. If all runs logged at the same places, these
    are kept, thinned evenly to `MAX_POINTS`; otherwise values are interpolated linearly on an even grid.

    Returns:
        Places, [n_places], and values, [n_places, n_runs].
    """
    start, end = max(places[0] for places, _ in runs), min(places[-1] for places, _ in runs)
    if start > end:
        return None
    shared = runs[0][0]
    if all(np.array_equal(places, shared) for places, _ in runs):
        indices = np.unique(np.linspace(0, len(shared) - 1, min(len(shared), MAX_POINTS)).round().astype(int))
        grid = shared[indices]
    else:
        grid = np.unique(np.linspace(start, end, GRID))
    return grid, np.stack([np.interp(grid, places, values) for places, values in runs], axis=-1)


def _read_curves(
    runs: Sequence[RunRecord], metric: str, over: str, width: int | None
) -> tuple[list[Series], list[object], list[str]]:
    """Return the curves of the runs that have one, their top-level units, and remarks on the other runs."""
    curves, runs_with_metric, missing_seeds, unreadable = [], [], [], []
    for run in runs:
        try:
            places, values = series(run.folder, metric, over, width)
        except RunFolderError as error:
            unreadable.append(f"left out, {error}")
            continue
        if len(places):
            curves.append((places, values))
            runs_with_metric.append(run)
        else:
            missing_seeds.append(run.seed)
    lacking = [f"seed {', '.join(map(str, missing_seeds))} did not log it"] if missing_seeds else []
    return curves, units_of(runs_with_metric), lacking + unreadable


def _line(label: str, runs: Sequence[Series], units: list[object]) -> Line | None:
    common = on_common_grid(runs)
    if common is None:
        return None
    grid, values = common
    return Line(label, grid, mean_interval(values, units), len(runs))
