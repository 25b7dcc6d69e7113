"""Scores and curves of the groups of a study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.curves import GroupCurve, group_curve
from llmrl.analysis.scores import DEFAULT_CURVES, Series, series
from llmrl.results.groups import Group
from llmrl.results.principal_scores import ANYTIME, MEASUREMENTS, ONLINE, RECOMMENDATION, principal_scores
from llmrl.results.replication import pretrainings_of, units_of
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudySettings
from llmrl.statistics.intervals import Band, mean_interval


@dataclass(frozen=True)
class GroupTrace:
    """The scores and curves of one group of a study.

    Attributes:
        name: short name of the group, a value of the swept key.
        group: the group.
        runs: its finished runs.
        scores: scores of these runs, [n_runs].
        online: online performance of these runs, [n_runs]; None if the score is not a recommendation.
        curve: curve of the metric; None without one, or for a group that is drawn as a line.
        anytime: value of the recommendation from the first n measurements, over n; None if only the last one was
            evaluated.
    """

    name: str
    group: Group
    runs: Sequence[RunRecord]
    scores: np.ndarray
    online: np.ndarray | None = None
    curve: GroupCurve | None = None
    anytime: GroupCurve | None = None

    @property
    def shown(self) -> str:
        """Display name of the group."""
        return self.group.display_name(self.name)

    @property
    def units(self) -> list[object]:
        """Label of the top-level unit of each run."""
        return units_of(self.runs)

    @property
    def pretrainings(self) -> int:
        """Number of different pre-training runs that its runs start from."""
        return pretrainings_of(self.runs)

    @property
    def score(self) -> Band:
        """Mean score with its interval."""
        return mean_interval(self.scores, self.units)

    @property
    def online_score(self) -> Band | None:
        """Mean online performance with its interval; None if the score is not a recommendation."""
        return None if self.online is None else mean_interval(self.online, self.units)

    @property
    def main_curve(self) -> GroupCurve | None:
        """The curve whose end is the score: of recommendations if there is one, else of the metric."""
        return self.anytime or self.curve


def read_group_traces(
    settings: StudySettings, groups: Sequence[tuple[str, Group, Sequence[RunRecord]]], width: int | None
) -> list[GroupTrace]:
    """Return the groups of a study that have scores, highest score first.

    They have curves of recommendations only if all groups with a curve have one.

    Args:
        settings: settings of the study.
        groups: short name, group and finished runs of each.
        width: bin width of metrics of training episodes, frames.

    Raises:
        RunFolderError: a metric of a run cannot be read.
    """
    candidates = [_trace(settings, name, group, runs, width) for name, group, runs in groups if runs]
    traces = [trace for trace in candidates if trace is not None]
    traces.sort(key=lambda trace: -float(trace.score.estimate))
    if all(trace.anytime is not None for trace in traces if trace.curve is not None):
        return traces
    return [replace(trace, anytime=None) for trace in traces]


def _trace(
    settings: StudySettings, name: str, group: Group, runs: Sequence[RunRecord], width: int | None
) -> GroupTrace | None:
    """Return the scores and curves of a group; None if a run has no score."""
    curves = _read_series(settings, runs, width)
    if curves is not None and settings.tail_fraction is not None:
        # The score of a level, which is constant, is the mean of all its values.
        share = 1.0 if name in settings.levels else settings.tail_fraction
        scores = np.array([values[-max(1, round(share * len(values))) :].mean() for _, values in curves])
    else:
        scores = np.array([run.result for run in runs if run.result is not None and np.isfinite(run.result)])
        if len(scores) < len(runs):
            return None
    trace = GroupTrace(name, group, runs, scores)
    if settings.tail_fraction is None and principal_scores(runs, RECOMMENDATION) is not None:
        trace = replace(trace, online=principal_scores(runs, ONLINE))
    if name in settings.levels:
        return trace
    if curves is not None:
        smoothed = [(places, _smoothed(values, settings.smooth)) for places, values in curves]
        trace = replace(trace, curve=group_curve(smoothed, trace.units))
    if trace.online is not None:
        anytime = [series(run.folder, ANYTIME, MEASUREMENTS) for run in runs]
        if all(len(places) > 1 for places, _ in anytime):
            trace = replace(trace, anytime=group_curve(anytime, trace.units))
    return trace


def _read_series(settings: StudySettings, runs: Sequence[RunRecord], width: int | None) -> list[Series] | None:
    """Return the metric of every run; None if a run has none, such as one of agents that only play."""
    for metric in [settings.metric] if settings.metric else DEFAULT_CURVES:
        curves = [series(run.folder, metric, settings.x_axis, width) for run in runs]
        if all(len(places) for places, _ in curves):
            return curves
    return None


def _smoothed(values: np.ndarray, width: int) -> np.ndarray:
    """Return a trailing moving average over `width` values, or fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - width)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))
