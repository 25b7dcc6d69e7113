"""Settings of a report: score and curves."""

from __future__ import annotations

from dataclasses import dataclass, field

from llmrl.analysis.scores import ScoreRule
from llmrl.results.study_settings import StudySettings


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report.

    Args:
        rule: definition of the score of a run.
        curves: metrics to draw; empty: the main objective of each task.
        x_axis: x axis of the curves, one of `scores.AXES`.
        width: bin width of curves of training episodes, frames; None: see `training_curves.common_frames`.
        budget: first frames of training, over which sample efficiency is averaged; None: as for `width`.
        study: presentation of a study; None: the settings of its newest run.
        by_name: whether runs of different names are different tasks; False: they are compared with each other, and
            nothing is a study.
    """

    rule: ScoreRule = field(default_factory=ScoreRule)
    curves: tuple[str, ...] = ()
    x_axis: str = "env_steps"
    width: int | None = None
    budget: int | None = None
    study: StudySettings | None = None
    by_name: bool = True
