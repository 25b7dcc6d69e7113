"""Curves of metrics over environment steps, proposals or time, aggregated over the seeds of a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.scores import DEFAULT_CURVE_METRICS, X_AXES, Series, read_series
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import Group, find_replication_units
from llmrl.results.run_records import RunRecord
from llmrl.statistics.intervals import Band, mean_interval

N_GRID_POINTS = 101
"""Number of points of the common grid if the runs of a group logged at different x coordinates."""

MAX_CURVE_POINTS = 200
"""Maximum number of points of a curve if all runs of a group logged at the same x coordinates."""
_TRAINING_METRICS = ("train/return", "train/success")
"""Metrics of training episodes that are both drawn by default; success is logged only if episodes can succeed."""


@dataclass(frozen=True)
class GroupCurve:
    """The curve of a metric of one group.

    Attributes:
        x: x coordinates, [n_points], increasing.
        values: value of each run at the x coordinates, [n_points, n_runs].
        band: mean over the top-level units with pointwise 95% intervals, [n_points].
    """

    x: np.ndarray
    values: np.ndarray
    band: Band

    @property
    def rows(self) -> list[list[float]]:
        """A row for each point: x coordinate, mean, and lower and upper end of the interval of the mean."""
        return np.stack((self.x, self.band.estimate, self.band.low, self.band.high), axis=-1).tolist()


@dataclass(frozen=True)
class MetricCurves:
    """The curves of one metric.

    Attributes:
        metric: name of the metric.
        curve_by_group: curve of each group that logged the metric, by group label.
        x_axis: x axis, a key of `scores.X_AXES`.
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
    """Return the curves of each metric, and notes about missing runs and curves.

    Args:
        groups: each group with its finished runs.
        metrics: names of metrics; empty: the first of `DEFAULT_CURVE_METRICS` that a run logged, and `train/success` in
            addition to `train/return`.
        x_axis: x axis, a key of `scores.X_AXES`.
        bin_width: width of the bins in which metrics of training episodes are averaged, frames.
    """
    curves, notes = [], []
    for metric in metrics or (*DEFAULT_CURVE_METRICS, *_TRAINING_METRICS[1:]):
        curve_by_group: dict[str, GroupCurve] = {}
        metric_notes = []
        for group, runs in groups:
            curve, problems = _read_curve(runs, metric, x_axis, bin_width)
            metric_notes += [f"Curve of {metric}, {group.display_name}: {problem}." for problem in problems]
            if curve is not None:
                curve_by_group[group.label] = curve
        if curve_by_group:
            curves.append(MetricCurves(metric, curve_by_group, x_axis))
        if curve_by_group or metrics:
            notes += metric_notes
        if curve_by_group and not metrics and metric != _TRAINING_METRICS[0]:
            break
    return tuple(curves), tuple(notes)


def align_curves(all_series: Sequence[Series]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of several runs at common x coordinates, without extrapolation; None without a common range.

    If all runs logged at the same x coordinates, up to `MAX_CURVE_POINTS` of these are used. Otherwise values are
    interpolated linearly at `N_GRID_POINTS` equidistant x coordinates.

    Returns:
        x coordinates, [n_points], and values, [n_points, n_runs].
    """
    start, end = max(x[0] for x, _ in all_series), min(x[-1] for x, _ in all_series)
    if start > end:
        return None
    common_x = all_series[0][0]
    if all(np.array_equal(x, common_x) for x, _ in all_series):
        n_points = min(len(common_x), MAX_CURVE_POINTS)
        grid = common_x[np.unique(np.linspace(0, len(common_x) - 1, n_points).round().astype(int))]
        # Equivalent to `np.interp`, but several times faster: of equal x coordinates the last one is selected.
        values = np.stack([values for _, values in all_series], axis=-1, dtype=float)
        return grid, values[np.searchsorted(common_x, grid, "right") - 1]
    grid = np.unique(np.linspace(start, end, N_GRID_POINTS))
    return grid, np.stack([np.interp(grid, x, values) for x, values in all_series], axis=-1)


def build_group_curve(all_series: Sequence[Series], units: Sequence[object]) -> GroupCurve | None:
    """Return the curve of a group; None if no x coordinate is common to all of its runs.

    Args:
        all_series: series of the metric of each run.
        units: label of the top-level unit of each run.
    """
    aligned = align_curves(all_series)
    if aligned is None:
        return None
    x, values = aligned
    return GroupCurve(x, values, mean_interval(values, units))


def _read_curve(
    runs: Sequence[RunRecord], metric: str, x_axis: str, bin_width: int | None
) -> tuple[GroupCurve | None, list[str]]:
    """Return the curve of the runs that logged a metric (None: there is none), and descriptions of problems."""
    all_series, runs_with_metric, missing_seeds, problems = [], [], [], []
    for run in runs:
        try:
            x, values = read_series(run.folder, metric, x_axis, bin_width)
        except RunFolderError as error:
            problems.append(f"left out, {error}")
            continue
        if len(x):
            all_series.append((x, values))
            runs_with_metric.append(run)
        else:
            missing_seeds.append(run.seed)
    if missing_seeds:
        problems.insert(0, f"seed {', '.join(map(str, missing_seeds))} did not log it")
    curve = build_group_curve(all_series, find_replication_units(runs_with_metric)) if all_series else None
    if all_series and curve is None:
        problems.append(f"its runs have no common range of {X_AXES[x_axis][1]}")
    return curve, problems
