"""Scores, curves and times to solution of the groups of a study.

Time to solution is the number of measurements until the objective of a principal's recommendation reaches a level: the
objective without a mechanism plus `SOLUTION_FRACTION` of the distance to the best known objective. A run that does not
reach the level is right-censored at its last measurement (Kaplan and Meier, 1958, JASA 53).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.curves import GroupCurve, build_group_curve
from llmrl.analysis.scores import DEFAULT_CURVE_METRICS, Series, read_series
from llmrl.core.errors import RunFolderError
from llmrl.results.groups import Group, count_pretrainings, find_replication_units
from llmrl.results.principal_scores import (
    ANYTIME_METRIC,
    MEASUREMENTS_COUNTER,
    ONLINE_PERFORMANCE,
    RECOMMENDATION,
    ReferenceLine,
    read_principal_scores,
)
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudySettings
from llmrl.results.table_format import ReportTable
from llmrl.statistics.intervals import Band, mean_interval


@dataclass(frozen=True)
class GroupTrace:
    """The scores and curves of one group of a study.

    Attributes:
        name: short name of the group, a value of the swept key.
        group: group of runs.
        runs: finished runs of the group.
        scores: score of each run, [n_runs].
        online_scores: online performance of each run, [n_runs]; None if scores are not values of recommendations.
        curve: curve of the study's metric; None if a run did not log it, or for a group of `settings.levels`.
        anytime_curve: objective of the recommendation after the first n measurements, over n; None if only the last
            recommendation was evaluated.
    """

    name: str
    group: Group
    runs: Sequence[RunRecord]
    scores: np.ndarray
    online_scores: np.ndarray | None = None
    curve: GroupCurve | None = None
    anytime_curve: GroupCurve | None = None

    @property
    def display_name(self) -> str:
        """Display name of the group."""
        return self.group.format_name(self.name)

    @property
    def replication_units(self) -> list[object]:
        """Label of the top-level unit of each run."""
        return find_replication_units(self.runs)

    @property
    def n_pretrainings(self) -> int:
        """Number of different pre-training runs from which the runs of the group start."""
        return count_pretrainings(self.runs)

    @property
    def score(self) -> Band:
        """Mean score with its interval."""
        return mean_interval(self.scores, self.replication_units)

    @property
    def online_score(self) -> Band | None:
        """Mean online performance with its interval; None without `online_scores`."""
        return None if self.online_scores is None else mean_interval(self.online_scores, self.replication_units)

    @property
    def main_curve(self) -> GroupCurve | None:
        """The curve that is compared with those of other groups: `anytime_curve` if there is one, else `curve`."""
        return self.anytime_curve or self.curve


def read_group_traces(
    settings: StudySettings, groups: Sequence[tuple[str, Group, Sequence[RunRecord]]], bin_width: int | None
) -> list[GroupTrace]:
    """Return the scores and curves of the groups of a study, highest score first.

    Groups with a run without a score are omitted. If a group with a curve has no `anytime_curve`, it is None for all
    groups, because the two types of curves cannot be compared.

    Args:
        settings: settings of the study.
        groups: short name, group and finished runs of each group.
        bin_width: width of the bins in which metrics of training episodes are averaged, frames.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    all_traces = [_build_trace(settings, name, group, runs, bin_width) for name, group, runs in groups if runs]
    traces = [trace for trace in all_traces if trace is not None]
    traces.sort(key=lambda trace: -float(trace.score.estimate))
    if all(trace.anytime_curve is not None for trace in traces if trace.curve is not None):
        return traces
    return [replace(trace, anytime_curve=None) for trace in traces]


def _build_trace(
    settings: StudySettings, name: str, group: Group, runs: Sequence[RunRecord], bin_width: int | None
) -> GroupTrace | None:
    """Return the scores and curves of a group; None if a run has no score."""
    series = _read_all_series(settings, runs, bin_width)
    if series is not None and settings.tail_fraction is not None:
        # Groups in `settings.levels` do not learn, so all values of their runs are averaged.
        share = 1.0 if name in settings.levels else settings.tail_fraction
        scores = np.array([values[-max(1, round(share * len(values))) :].mean() for _, values in series])
    else:
        scores = np.array([run.result for run in runs if run.result is not None and np.isfinite(run.result)])
        if len(scores) < len(runs):
            return None
    trace = GroupTrace(name, group, runs, scores)
    if settings.tail_fraction is None and read_principal_scores(runs, RECOMMENDATION) is not None:
        trace = replace(trace, online_scores=read_principal_scores(runs, ONLINE_PERFORMANCE))
    if name in settings.levels:
        return trace
    if series is not None:
        smoothed = [(x, _compute_moving_average(values, settings.smooth)) for x, values in series]
        trace = replace(trace, curve=build_group_curve(smoothed, trace.replication_units))
    if trace.online_scores is not None:
        series = [read_series(run.folder, ANYTIME_METRIC, MEASUREMENTS_COUNTER) for run in runs]
        if all(len(x) > 1 for x, _ in series):
            trace = replace(trace, anytime_curve=build_group_curve(series, trace.replication_units))
    return trace


def _read_all_series(settings: StudySettings, runs: Sequence[RunRecord], bin_width: int | None) -> list[Series] | None:
    """Return the series of the study's metric of every run; None if a run did not log it."""
    for metric in [settings.metric] if settings.metric else DEFAULT_CURVE_METRICS:
        series = [read_series(run.folder, metric, settings.x_axis, bin_width) for run in runs]
        if all(len(x) for x, _ in series):
            return series
    return None


def _compute_moving_average(values: np.ndarray, n_values: int) -> np.ndarray:
    """Return a trailing moving average over `n_values` values, or fewer at the beginning."""
    cumulative_sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - n_values)
    return np.asarray((cumulative_sums[ends] - cumulative_sums[starts]) / (ends - starts))


SOLUTION_FRACTION = 0.9
"""Share of the distance from the objective without a mechanism to the best known one that is the level to reach."""


def find_solution_times(x: np.ndarray, values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of measurements after which each run first reaches a level.

    Args:
        x: numbers of measurements, [n_points], increasing.
        values: objective of the recommendation after these measurements, [n_points, n_runs].
        level: objective to reach.

    Returns:
        Numbers of measurements, [n_runs], the last one of `x` for runs that do not reach the level; and whether each
        run reaches it, [n_runs] bool.
    """
    is_above = values >= level
    has_reached = np.asarray(is_above.any(axis=0))
    return np.where(has_reached, x[is_above.argmax(axis=0)], x[-1]), has_reached


def compute_kaplan_meier_median(times: np.ndarray, has_reached: np.ndarray) -> float | None:
    """Return the Kaplan-Meier estimate of the median time; None if it exceeds all observed times.

    Args:
        times: time at which a run reached the level or was censored, [n_runs].
        has_reached: whether the run reached the level, [n_runs] bool.
    """
    survival = 1.0
    for time in np.unique(times[has_reached]):
        survival *= 1 - float((has_reached & (times == time)).sum()) / float((times >= time).sum())
        if survival <= 0.5 + 1e-12:  # rounding errors must not hide a survival of exactly one half
            return float(time)
    return None


def build_solution_table(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], score_name: str
) -> ReportTable | None:
    """Return the table of times to solution, shortest first.

    There is none without `settings.best_known`, an objective without a mechanism, or curves of recommendations.

    Raises:
        RunFolderError: `best_known` is not above the objective without a mechanism.
    """
    base_levels = [line.value for line in references if line.key == "no_mechanism"]
    # Groups with different reference lines have no common objective without a mechanism.
    base_levels = base_levels if len(base_levels) == 1 else []
    base_levels += [float(trace.score.estimate) for name in settings.levels for trace in traces if trace.name == name]
    if settings.best_known is None or not base_levels or all(trace.anytime_curve is None for trace in traces):
        return None
    if not settings.best_known > base_levels[0]:
        raise RunFolderError(
            f"report.best_known={settings.best_known:g} must be above the objective without a mechanism, "
            f"{base_levels[0]:.4g}"
        )
    level = base_levels[0] + SOLUTION_FRACTION * (settings.best_known - base_levels[0])
    solution_times = []
    for trace in traces:
        if trace.anytime_curve is not None:
            times, has_reached = find_solution_times(trace.anytime_curve.x, trace.anytime_curve.values, level)
            median, n_measurements = compute_kaplan_meier_median(times, has_reached), float(trace.anytime_curve.x[-1])
            solution_times.append((trace.display_name, len(times), int(has_reached.sum()), median, n_measurements))
    solution_times.sort(key=lambda x: (math.inf if x[3] is None else x[3], -x[2] / x[1]))
    rows = []
    for name, n_runs, n_reached, median, n_measurements in solution_times:
        time_text = f"> {n_measurements:,.0f}" if median is None else f"{median:,.0f}"
        rows.append([name, f"{time_text} ({n_reached} of {n_runs} run{'' if n_runs == 1 else 's'})"])
    return ReportTable(
        "study_time_to_solution",
        f"Time to solution: measurements until the recommendation reaches {level:.4g} ({score_name}), "
        f"{SOLUTION_FRACTION:.0%} of the distance from no mechanism to the best known value",
        [["group", "runs", "reached", "median", "measurements", "level"], *([*x, level] for x in solution_times)],
        ["group", "measurements"],
        rows,
        notes=[
            "Median over runs (Kaplan-Meier) at the numbers of measurements that were evaluated, with the number of "
            'runs that reach the level; "> n": fewer than half of the runs do within n measurements.'
        ],
    )
