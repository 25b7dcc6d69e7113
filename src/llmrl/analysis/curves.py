"""Curves of metrics over environment steps, proposals or time, aggregated over the seeds of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.scores import DEFAULT_CURVES, X_AXES, Series, read_series
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import Group, find_replication_units
from llmrl.results.run_records import RunRecord
from llmrl.statistics.intervals import Band, mean_interval

N_GRID_POINTS = 101
"""Number of points of the common grid if the runs of a group logged at different x coordinates."""

MAX_CURVE_POINTS = 200
_TRAINING_CURVES = ("train/return", "train/success")
"""Metrics of learning agents that are both drawn by default, the second one if episodes can succeed."""


@dataclass(frozen=True)
class GroupCurve:
    """The curve of one group over one counter.

    Attributes:
        x: x coordinates, [n_points], increasing.
        values: value of each run at these, [n_points, n_runs].
        band: mean over the top-level units with pointwise 95% intervals, [n_points].
    """

    x: np.ndarray
    values: np.ndarray
    band: Band

    @property
    def rows(self) -> list[list[float]]:
        """Rows of x coordinate, mean, and both ends of its interval."""
        columns = (self.x, self.band.estimate, self.band.low, self.band.high)
        rows: list[list[float]] = np.stack(columns, axis=-1).tolist()
        return rows


@dataclass(frozen=True)
class MetricCurves:
    """A metric of all groups that have it.

    Attributes:
        metric: name of the metric.
        curve_by_group: curves of the groups, by label.
        x_axis: x axis, one of `scores.X_AXES`.
    """

    metric: str
    curve_by_group: Mapping[str, GroupCurve]
    x_axis: str = "env_steps"


def build_curves(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
    metrics: Sequence[str],
    x_axis: str = "env_steps",
    bin_width: int | None = None,
) -> tuple[tuple[MetricCurves, ...], tuple[str, ...]]:
    """Return a curve for each metric, and notes about missing parts.

    Args:
        groups: each group with its finished runs.
        metrics: names in `metrics.jsonl`; empty: the first of `DEFAULT_CURVES` that a run has.
        x_axis: x axis, one of `scores.X_AXES`.
        bin_width: bin width of metrics of training episodes, frames.
    """
    curves, notes = [], []
    for metric in metrics or (*DEFAULT_CURVES, *_TRAINING_CURVES[1:]):
        curve_by_group: dict[str, GroupCurve] = {}
        metric_notes = []
        for group, runs in groups:
            line, reasons = _read_curve(runs, metric, x_axis, bin_width)
            metric_notes += [f"Curve of {metric}, {group.display_name}: {reason}." for reason in reasons]
            if line is not None:
                curve_by_group[group.label] = line
        if curve_by_group:
            curves.append(MetricCurves(metric, curve_by_group, x_axis))
        if curve_by_group or metrics:
            notes += metric_notes
        if curve_by_group and not metrics and metric != _TRAINING_CURVES[0]:
            break
    return tuple(curves), tuple(notes)


def align_curves(runs: Sequence[Series]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return curves of several runs at common x coordinates; None if the runs have no common range.

    Nothing is extrapolated: only the range that all runs cover is used. If all runs logged at the same x coordinates,
    these are kept, thinned evenly to `MAX_CURVE_POINTS`; otherwise values are interpolated linearly on an even grid.

    Returns:
        x coordinates, [n_points], and values, [n_points, n_runs].
    """
    start, end = max(x[0] for x, _ in runs), min(x[-1] for x, _ in runs)
    if start > end:
        return None
    shared = runs[0][0]
    if all(np.array_equal(x, shared) for x, _ in runs):
        indices = np.unique(np.linspace(0, len(shared) - 1, min(len(shared), MAX_CURVE_POINTS)).round().astype(int))
        grid = shared[indices]
        # The last of equal x coordinates counts, as in `interp`, which is several times slower.
        values = np.stack([values for _, values in runs], axis=-1, dtype=float)
        return grid, values[np.searchsorted(shared, grid, "right") - 1]
    grid = np.unique(np.linspace(start, end, N_GRID_POINTS))
    return grid, np.stack([np.interp(grid, x, values) for x, values in runs], axis=-1)


def build_group_curve(runs: Sequence[Series], units: Sequence[object]) -> GroupCurve | None:
    """Return the curve of a group; None if no x coordinate is common to all of its runs.

    Args:
        runs: the metric of each run.
        units: label of the top-level unit of each run.
    """
    common = align_curves(runs)
    if common is None:
        return None
    x, values = common
    return GroupCurve(x, values, mean_interval(values, units))


def _read_curve(
    runs: Sequence[RunRecord], metric: str, x_axis: str, bin_width: int | None
) -> tuple[GroupCurve | None, list[str]]:
    """Return the curve of the runs that have one, if there is any, and reasons why others are left out."""
    curves, runs_with_metric, missing_seeds, reasons = [], [], [], []
    for run in runs:
        try:
            x, values = read_series(run.folder, metric, x_axis, bin_width)
        except RunFolderError as error:
            reasons.append(f"left out, {error}")
            continue
        if len(x):
            curves.append((x, values))
            runs_with_metric.append(run)
        else:
            missing_seeds.append(run.seed)
    if missing_seeds:
        reasons.insert(0, f"seed {', '.join(map(str, missing_seeds))} did not log it")
    line = build_group_curve(curves, find_replication_units(runs_with_metric)) if curves else None
    if curves and line is None:
        reasons.append(f"its runs have no common range of {X_AXES[x_axis][1]}")
    return line, reasons
