"""Settings and content of a report: scores of groups of runs, comparisons of groups, and excluded runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmrl.analysis.curves import MetricCurves
from llmrl.analysis.final_episodes import FinalEpisodes
from llmrl.analysis.llm_calls import CallTotals
from llmrl.analysis.scores import ScoreRule
from llmrl.analysis.story.story import Story
from llmrl.results.groups import Group
from llmrl.results.principal_scores import ReferenceLine
from llmrl.results.run_records import RunRecord
from llmrl.results.study_settings import StudyResult, StudySettings
from llmrl.statistics.intervals import Band

ESTIMATES = {"mean": "mean", "iqm": "IQM", "median": "median"}
"""Point estimates of a score over runs, with their display names; only the mean has an interval."""

MAX_GROUPS_IN_FIGURE = 12
"""Maximum number of groups in one figure or matrix."""
MAX_GROUPS_COMPARED = 100
"""Maximum number of groups whose pairs are all compared (probability of improvement)."""


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report.

    Attributes:
        rule: definition of the score of a run.
        curves: metrics to draw; empty: see `curves.build_curves`.
        x_axis: x axis of the curves, a key of `scores.X_AXES`.
        bin_width: width of the bins in curves of training episodes, frames; None: see
            `training_curves.find_frame_budget`.
        budget: number of first training frames for sample efficiency; None: see `training_curves.find_frame_budget`.
        study: settings of the studies in the report; None: those in the newest run of each study.
        by_name: whether runs of different names belong to different tasks. False: all runs can be compared with each
            other, and the settings of studies are ignored.
    """

    rule: ScoreRule = field(default_factory=ScoreRule)
    curves: tuple[str, ...] = ()
    x_axis: str = "env_steps"
    bin_width: int | None = None
    budget: int | None = None
    study: StudySettings | None = None
    by_name: bool = True


@dataclass(frozen=True)
class GroupSummary:
    """The scores of one group of a task and their estimates.

    Attributes:
        group: group of runs.
        scores: scores of the finished runs, [n_runs].
        estimates: estimates by the keys of `ESTIMATES`; empty without scores.
        standard_error: standard error of the mean; NaN if unknown.
        remark: reason why there are no estimates or no interval, or why the interval is too narrow; may be empty.
    """

    group: Group
    scores: np.ndarray
    estimates: Mapping[str, Band] = field(default_factory=dict)
    standard_error: float = math.nan
    remark: str = ""


def select_best_groups(summaries: Sequence[GroupSummary], n: int = MAX_GROUPS_COMPARED) -> list[int]:
    """Return the increasing indices of the `n` groups with the highest interquartile mean (IQM) in `summaries`."""
    iqm = [float(summary.estimates["iqm"].estimate) for summary in summaries]
    return sorted(sorted(range(len(iqm)), key=lambda i: -iqm[i])[:n])


@dataclass(frozen=True)
class Section:
    """The results of one task.

    Attributes:
        title: title of the section.
        common_overrides: overrides that are equal in all groups.
        summaries: scores and estimates of each group, sorted by the label of the group.
        improvement: probability that a run of one group has a higher score than a run of another one, [n, n], for the n
            groups of `select_best_groups(scored_groups)`.
        curves: curves of metrics over `ReportSettings.x_axis`.
        notes: explanations of curves and metrics for the reader.
        efficiency: sample efficiency of each group that trained, if its episodes log success.
        references: reference lines of the objective.
        warnings: reasons why the scores may be misleading.
        study: result of the study, which is shown first; None if the runs do not belong to a study.
        story: results of the task in addition to the scores.
    """

    title: str
    common_overrides: Mapping[str, str]
    summaries: tuple[GroupSummary, ...]
    improvement: Band
    curves: tuple[MetricCurves, ...] = ()
    notes: tuple[str, ...] = ()
    efficiency: tuple[GroupSummary, ...] = ()
    references: tuple[ReferenceLine, ...] = ()
    warnings: tuple[str, ...] = ()
    study: StudyResult | None = None
    story: Story = field(default_factory=Story)

    @property
    def scored_groups(self) -> list[GroupSummary]:
        """The summaries of the groups that have scores."""
        return [summary for summary in self.summaries if summary.estimates]

    @property
    def figure_indices(self) -> list[int]:
        """Indices of the groups of `scored_groups` that figures and matrices show."""
        return select_best_groups(self.scored_groups, MAX_GROUPS_IN_FIGURE)

    @property
    def omitted_groups_notes(self) -> list[str]:
        """Note for figures and matrices that do not show all groups, in a list; empty if they show all."""
        total = len(self.scored_groups)
        note = f"The {MAX_GROUPS_IN_FIGURE} groups with the highest IQM, of {total}."
        return [note] if total > MAX_GROUPS_IN_FIGURE else []


@dataclass(frozen=True)
class ExcludedRuns:
    """Runs of one group (`task`: title of its task) that have no score for the same reason, so estimates omit them."""

    task: str
    group: Group
    seeds: tuple[int, ...]
    state: str
    reason: str


@dataclass(frozen=True)
class Report:
    """The report of a folder of runs.

    Attributes:
        folder: folder that was read.
        settings: settings of the report.
        runs: `(task title, group, run, score)` of every run; the score is None for runs in `excluded`.
        sections: one section for each task.
        excluded: runs without a score, and missing runs.
        calls: `(task title, group, totals)` of calls to language models, including calls of unfinished runs.
        players: final episodes of each group that has any.
    """

    folder: Path
    settings: ReportSettings
    runs: tuple[tuple[str, Group, RunRecord, float | None], ...]
    sections: tuple[Section, ...]
    excluded: tuple[ExcludedRuns, ...]
    calls: tuple[tuple[str, Group, CallTotals], ...]
    players: tuple[FinalEpisodes, ...] = ()

    @property
    def title(self) -> str:
        """Path of the folder, relative to the working directory if it is below it, else absolute."""
        folder = self.folder.absolute()
        is_below = folder.is_relative_to(Path.cwd()) and folder != Path.cwd()
        return str(folder.relative_to(Path.cwd()) if is_below else folder)

    @property
    def n_runs_by_state(self) -> Counter[str]:
        """Number of runs in each state."""
        return Counter(run.state for _, _, run, _ in self.runs)

    @property
    def n_scored_runs(self) -> int:
        """Number of runs with a score."""
        return sum(score is not None for *_, score in self.runs)
