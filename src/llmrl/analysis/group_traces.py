"""Scores, curves and times to solution of the groups of a study.

Time to solution is the number of measurements until a principal's recommendation has most of the value that can be
reached. The level is the objective without a mechanism plus `SOLUTION_FRACTION` of the distance to the best known
value. A run that does not reach it within its budget is censored there (Kaplan and Meier, 1958, JASA 53).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.curves import GroupCurve, build_group_curve
from llmrl.analysis.scores import DEFAULT_CURVES, Series, read_series
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
        group: the group.
        runs: its finished runs.
        scores: scores of these runs, [n_runs].
        online_scores: online performance of these runs, [n_runs]; None if the score is not a recommendation.
        curve: curve of the metric; None without one, or for a group that is drawn as a line.
        anytime: value of the recommendation from the first n measurements, over n; None if only the last one was
            evaluated.
    """

    name: str
    group: Group
    runs: Sequence[RunRecord]
    scores: np.ndarray
    online_scores: np.ndarray | None = None
    curve: GroupCurve | None = None
    anytime: GroupCurve | None = None

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
        """Number of different pre-training runs that its runs start from."""
        return count_pretrainings(self.runs)

    @property
    def score(self) -> Band:
        """Mean score with its interval."""
        return mean_interval(self.scores, self.replication_units)

    @property
    def online_score(self) -> Band | None:
        """Mean online performance with its interval; None if the score is not a recommendation."""
        return None if self.online_scores is None else mean_interval(self.online_scores, self.replication_units)

    @property
    def main_curve(self) -> GroupCurve | None:
        """The curve whose end is the score: of recommendations if there is one, else of the metric."""
        return self.anytime or self.curve


def read_group_traces(
    settings: StudySettings, groups: Sequence[tuple[str, Group, Sequence[RunRecord]]], bin_width: int | None
) -> list[GroupTrace]:
    """Return the groups of a study that have scores, highest score first.

    They have curves of recommendations only if all groups with a curve have one.

    Args:
        settings: settings of the study.
        groups: short name, group and finished runs of each.
        bin_width: bin width of metrics of training episodes, frames.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    candidates = [_build_trace(settings, name, group, runs, bin_width) for name, group, runs in groups if runs]
    traces = [trace for trace in candidates if trace is not None]
    traces.sort(key=lambda trace: -float(trace.score.estimate))
    if all(trace.anytime is not None for trace in traces if trace.curve is not None):
        return traces
    return [replace(trace, anytime=None) for trace in traces]


def _build_trace(
    settings: StudySettings, name: str, group: Group, runs: Sequence[RunRecord], bin_width: int | None
) -> GroupTrace | None:
    """Return the scores and curves of a group; None if a run has no score."""
    curves = _read_metric(settings, runs, bin_width)
    if curves is not None and settings.tail_fraction is not None:
        # The score of a level, which is constant, is the mean of all its values.
        share = 1.0 if name in settings.levels else settings.tail_fraction
        scores = np.array([values[-max(1, round(share * len(values))) :].mean() for _, values in curves])
    else:
        scores = np.array([run.result for run in runs if run.result is not None and np.isfinite(run.result)])
        if len(scores) < len(runs):
            return None
    trace = GroupTrace(name, group, runs, scores)
    if settings.tail_fraction is None and read_principal_scores(runs, RECOMMENDATION) is not None:
        trace = replace(trace, online_scores=read_principal_scores(runs, ONLINE_PERFORMANCE))
    if name in settings.levels:
        return trace
    if curves is not None:
        smoothed = [(x, _moving_average(values, settings.smooth)) for x, values in curves]
        trace = replace(trace, curve=build_group_curve(smoothed, trace.replication_units))
    if trace.online_scores is not None:
        anytime = [read_series(run.folder, ANYTIME_METRIC, MEASUREMENTS_COUNTER) for run in runs]
        if all(len(x) > 1 for x, _ in anytime):
            trace = replace(trace, anytime=build_group_curve(anytime, trace.replication_units))
    return trace


def _read_metric(settings: StudySettings, runs: Sequence[RunRecord], bin_width: int | None) -> list[Series] | None:
    """Return the metric of every run; None if a run has none, such as one of agents that only play."""
    for metric in [settings.metric] if settings.metric else DEFAULT_CURVES:
        curves = [read_series(run.folder, metric, settings.x_axis, bin_width) for run in runs]
        if all(len(x) for x, _ in curves):
            return curves
    return None


def _moving_average(values: np.ndarray, n_values: int) -> np.ndarray:
    """Return a trailing moving average over `n_values` values, or fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - n_values)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


SOLUTION_FRACTION = 0.9
"""Share of the distance from no mechanism to the best known value that counts as the solution."""


def find_solution_times(x: np.ndarray, values: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first numbers of measurements at which the runs of a group reach a level.

    Args:
        x: numbers of measurements, [n_points], increasing.
        values: objective of the recommendation at these, [n_points, n_runs].
        level: objective to reach.

    Returns:
        Times, [n_runs], the last of `x` for runs that do not reach the level, and whether they reach it, [n_runs].
    """
    is_above = values >= level
    reached = np.asarray(is_above.any(axis=0))
    return np.where(reached, x[is_above.argmax(axis=0)], x[-1]), reached


def compute_kaplan_meier_median(times: np.ndarray, reached: np.ndarray) -> float | None:
    """Return the time by which half of the runs have reached a level, from right-censored times.

    The result is None if fewer than half of them reach it.

    Args:
        times: time at which a run reached the level or was censored, [n_runs].
        reached: whether it reached the level, [n_runs].
    """
    survival = 1.0
    for time in np.unique(times[reached]):
        survival *= 1 - float((reached & (times == time)).sum()) / float((times >= time).sum())
        if survival <= 0.5 + 1e-12:
            return float(time)
    return None


def build_solution_table(
    settings: StudySettings, traces: Sequence[GroupTrace], references: Sequence[ReferenceLine], unit: str
) -> ReportTable | None:
    """Return the table of times to solution, shortest first; None if they are not defined.

    They need a best known value, a level without mechanism, and curves of recommendations.

    Raises:
        RunFolderError: `best_known` is not above the objective without a mechanism.
    """
    levels = [line.value for line in references if line.key == "no_mechanism"]
    # If there are several values, they belong to different groups.
    levels = levels if len(levels) == 1 else []
    levels += [float(trace.score.estimate) for name in settings.levels for trace in traces if trace.name == name]
    if settings.best_known is None or not levels or all(trace.anytime is None for trace in traces):
        return None
    if not settings.best_known > levels[0]:
        raise RunFolderError(
            f"report.best_known={settings.best_known:g} must be above the objective without a mechanism, "
            f"{levels[0]:.4g}"
        )
    level = levels[0] + SOLUTION_FRACTION * (settings.best_known - levels[0])
    lines = []
    for trace in traces:
        if trace.anytime is not None:
            times, reached = find_solution_times(trace.anytime.x, trace.anytime.values, level)
            median, budget = compute_kaplan_meier_median(times, reached), float(trace.anytime.x[-1])
            lines.append((trace.display_name, len(times), int(reached.sum()), median, budget))
    lines.sort(key=lambda line: (math.inf if line[3] is None else line[3], -line[2] / line[1]))
    rows = []
    for name, n_runs, n_reached, median, budget in lines:
        time = f"> {budget:,.0f}" if median is None else f"{median:,.0f}"
        rows.append([name, f"{time} ({n_reached} of {n_runs} run{'' if n_runs == 1 else 's'})"])
    return ReportTable(
        "study_time_to_solution",
        f"Time to solution: measurements until the recommendation reaches {level:.4g} ({unit}), "
        f"{SOLUTION_FRACTION:.0%} of the distance from no mechanism to the best known value",
        [["group", "runs", "reached", "median", "measurements", "level"], *([*line, level] for line in lines)],
        ["group", "measurements"],
        rows,
        notes=[
            "Median over runs (Kaplan-Meier) at the numbers of measurements that were evaluated, with the number of "
            'runs that reach the level; "> n": fewer than half of the runs do within n measurements.'
        ],
    )
