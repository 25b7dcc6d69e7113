"""Scores and curves of the groups of a study."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from llmrl.results.groups import Group
from llmrl.statistics.intervals import Band


@dataclass(frozen=True)
class GroupCurve:
    """The curve of one group over one counter.

    Attributes:
        places: x coordinates, [n_places], increasing.
        values: value of each run at these, [n_places, n_runs].
        band: mean over the runs with its interval, [n_places].
    """

    places: np.ndarray
    values: np.ndarray
    band: Band


@dataclass(frozen=True)
class GroupTrace:
    """The scores and curves of one group of a study.

    Attributes:
        name: short name of the group, a value of the swept key.
        shown: its display name.
        group: the group.
        scores, score: scores of its runs, [n_runs], and their mean with its interval.
        units: label of the top-level unit of each run.
        seeds: seed of each run.
        pretrainings: number of different pre-training runs that its runs start from.
        curve: curve of the metric; None without one, or for a group that is drawn as a line.
        anytime: value of the recommendation from the first n measurements, over n; None if only the last one was
            evaluated.
        evaluation_error: largest standard error of one evaluation in `anytime`; NaN if unknown.
        online, online_score: online performance of its runs, [n_runs], and their mean with its interval; empty and None
            if the score is not a recommendation.
    """

    name: str
    shown: str
    group: Group
    scores: np.ndarray
    score: Band
    units: Sequence[object]
    seeds: Sequence[int]
    pretrainings: int
    curve: GroupCurve | None = None
    anytime: GroupCurve | None = None
    evaluation_error: float = math.nan
    online: np.ndarray = field(default_factory=lambda: np.array([]))
    online_score: Band | None = None

    @property
    def main_curve(self) -> GroupCurve | None:
        """The curve whose end is the score: of recommendations if there is one, else of the metric."""
        return self.anytime or self.curve
