"""What a report holds: the numbers of each group of runs, groups against each other, and what is not counted."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from llmrl.analysis.bootstrap import Band
from llmrl.analysis.curves import Curve
from llmrl.analysis.groups import Group
from llmrl.analysis.llm_calls import CallTotals
from llmrl.analysis.played import Played
from llmrl.analysis.references import ReferenceLine
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.scores import ScoreRule
from llmrl.analysis.study import StudyResult, StudySettings

ESTIMATES = {"iqm": "IQM", "mean": "mean", "median": "median", "gap": "optimality gap"}
"""Point estimates with an interval, and what they are called."""

MOST_SHOWN = 12
"""Groups in one figure or one matrix."""


@dataclass(frozen=True)
class Settings:
    """What was asked of a report.

    Args:
        rule: the score of a run.
        target: what the optimality gap falls short of; None: the best group's mean.
        curves: metrics to draw; empty: the main objective of each task.
        over: what they are drawn over, one of `scores.AXES`.
        resamples, seed: of the bootstrap.
        width: frames of a bin of a curve of training episodes; None: see `training.common_frames`.
        budget: frames from the beginning of training that sample efficiency is the mean over; None: the same.
        study: how a study is shown; None: as its newest run says.
    """

    rule: ScoreRule = field(default_factory=ScoreRule)
    target: float | None = None
    curves: tuple[str, ...] = ()
    over: str = "env_steps"
    resamples: int = 10_000
    seed: int = 0
    width: int | None = None
    budget: int | None = None
    study: StudySettings | None = None


@dataclass(frozen=True)
class GroupNumbers:
    """One group in one section.

    Attributes:
        group: the group; over several tasks, that of the first.
        expected: runs there should be.
        scores: of the finished runs, [n_runs] for each task of the section; empty if the section cannot use the group.
        estimates: of `ESTIMATES` with 95% intervals; empty without scores.
        standard_error: of the mean; NaN where it cannot be told.
        remark: why there are no numbers, or no interval, and which level has too few units; empty if nothing is wrong.
        units: how many units each level has, from the top; empty over several tasks.
    """

    group: Group
    expected: int
    scores: tuple[np.ndarray, ...] = ()
    estimates: Mapping[str, Band] = field(default_factory=dict)
    standard_error: float = math.nan
    remark: str = ""
    units: str = ""

    @property
    def pooled(self) -> np.ndarray:
        """All scores, [n_runs of all tasks]."""
        return np.concatenate(self.scores) if self.scores else np.array([])


@dataclass(frozen=True)
class Section:
    """What one task, or all tasks together, say.

    Attributes:
        title: the task's.
        common: overrides that all its groups share.
        tasks: titles of the tasks in it.
        numbers: one for each group, in order of their labels.
        target: of the optimality gap, and in words where it comes from; None without scores.
        improvement: probability that the row's group beats the column's, over `compared`.
        thresholds, profiles: share of runs above each threshold, a band for each of `compared`.
        curves: metrics over environment steps.
        notes: what a reader must know.
        efficiency: sample efficiency of each group that trained, where episodes can succeed.
        references: levels of the objective that a principal has to beat.
        warnings: what makes the scores worth little.
        study: what the runs show where they are a study, which stands first.
    """

    title: str
    common: Mapping[str, str]
    tasks: tuple[str, ...]
    numbers: tuple[GroupNumbers, ...]
    target: float | None
    target_source: str
    improvement: Band
    thresholds: np.ndarray
    profiles: tuple[Band, ...]
    curves: tuple[Curve, ...] = ()
    notes: tuple[str, ...] = ()
    efficiency: tuple[GroupNumbers, ...] = ()
    references: tuple[ReferenceLine, ...] = ()
    warnings: tuple[str, ...] = ()
    study: StudyResult | None = None

    @property
    def compared(self) -> list[GroupNumbers]:
        """The groups that have scores."""
        return [numbers for numbers in self.numbers if numbers.scores]

    @property
    def shown(self) -> list[int]:
        """Places in `compared` of the groups in figures and matrices: the `MOST_SHOWN` of the highest IQM."""
        iqm = [float(numbers.estimates["iqm"].estimate) for numbers in self.compared]
        return sorted(sorted(range(len(iqm)), key=lambda i: -iqm[i])[:MOST_SHOWN])

    @property
    def not_shown(self) -> list[str]:
        """What to say below a figure or a matrix that leaves groups out."""
        total = len(self.compared)
        return [f"The {MOST_SHOWN} groups of the highest IQM, of {total}."] if total > MOST_SHOWN else []

    @property
    def over_tasks(self) -> bool:
        """Whether it is about several tasks."""
        return len(self.tasks) > 1


@dataclass(frozen=True)
class Left:
    """Runs that are not in the numbers, for one reason."""

    task: str
    group: Group
    seeds: tuple[int, ...]
    state: str
    reason: str


@dataclass(frozen=True)
class Report:
    """Everything that a folder of runs says.

    Attributes:
        folder: what was read.
        settings: what was asked.
        states: how many runs there are of each state.
        runs: `(task, group, run, score)` of every run; no score: it is in `left`.
        sections: one a task, then those over several tasks.
        left: runs that are not in the numbers.
        calls: `(task, group, totals)` of what language models were asked, unfinished runs included.
        players: the final episodes of each group that has any.
        notes: what a reader must know about the whole.
    """

    folder: Path
    settings: Settings
    states: Mapping[str, int]
    runs: tuple[tuple[str, Group, RunRecord, float | None], ...]
    sections: tuple[Section, ...]
    left: tuple[Left, ...]
    calls: tuple[tuple[str, Group, CallTotals], ...]
    notes: tuple[str, ...] = ()
    players: tuple[Played, ...] = ()

    @property
    def title(self) -> str:
        """The folder, as it was named if that says anything."""
        return str(self.folder if self.folder.name else self.folder.absolute())

    @property
    def counted(self) -> int:
        """Runs in the numbers."""
        return sum(score is not None for *_, score in self.runs)
