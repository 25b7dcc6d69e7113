"""The levels of a hierarchical bootstrap: what the runs of a group share, and the societies and episodes in them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import Levels
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.shared_factors import PRETRAINING, REPLIES, SOCIETY

FEW = 5
"""Number of units of a level below which a percentile bootstrap interval is far too narrow, and reports say so."""


@dataclass(frozen=True)
class Structure:
    """The sources of variation of the scores of one group in one task.

    Attributes:
        levels: levels for the bootstrap, with runs in the given order.
        pretrainings: number of different pre-training runs; None if no run starts from the weights of another one.
        runs: number of runs (principal seeds).
        overlapping: whether runs of different seeds trained the same societies.
        replies: whether runs of different seeds got the same replies of a language model.
    """

    levels: Levels
    pretrainings: int | None
    runs: int
    overlapping: bool = False
    replies: bool = False

    def scaled(self, low: float, high: float) -> Structure:
        """Return the structure of scores that are normalised to 0 at `low` and 1 at `high`."""
        within = [
            None if part is None else [(society - low) / (high - low) for society in part]
            for part in self.levels.within or ()
        ]
        return replace(self, levels=Levels(self.levels.clusters, within))

    @property
    def units(self) -> str:
        """Numbers of units of the levels, from the top: `2 pre-training runs, 6 runs, 12 societies, 96 episodes`."""
        inside = [part for part in self.levels.within or () if part is not None]
        societies = sum(len(part) for part in inside)
        episodes = sum(len(society) for part in inside for society in part)
        said = [] if self.pretrainings is None else [_count(self.pretrainings, "pre-training run")]
        said.append(_count(self.runs, "run"))
        said += [_count(societies, "society")] if societies > len(inside) else []
        return ", ".join([*said, _count(episodes, "episode")] if inside else said)

    @property
    def too_few(self) -> list[str]:
        """Reasons why levels limit the interval, one for each; empty if none does."""
        said = []
        if self.pretrainings == 1:
            said.append("1 pre-training run: how such runs differ is not in the interval")
        elif self.pretrainings is not None and self.pretrainings < min(FEW, self.runs):
            said.append(f"{self.pretrainings} pre-training runs: interval too narrow")
        if self.replies:
            said.append("seeds share a model's replies: how replies differ is not in the interval")
        if self.overlapping:
            said.append("seeds share societies: interval too narrow")
        return said


def structure(runs: Sequence[RunRecord], scores: Sequence[float], judged: bool) -> Structure:
    """Return the sources of variation of the scores of a group.

    Args:
        runs: finished runs of the group.
        scores: scores of the runs, [n_runs].
        judged: whether the scores are the runs' own results, whose episodes are in their summaries.
    """
    societies = [set(run.shared.get(SOCIETY, ())) for run in runs]
    replies = [name for run in runs for name in run.shared.get(REPLIES, ())]
    overlapping = any(one & other for i, one in enumerate(societies) for other in societies[:i])
    within = [_inside(run, score) if judged else None for run, score in zip(runs, scores, strict=True)]
    pretrainings = pretrainings_of(runs)
    levels = Levels(clusters_of(runs), within)
    return Structure(levels, pretrainings or None, len(runs), overlapping, len(replies) > len(set(replies)))


def pretrainings_of(runs: Sequence[RunRecord]) -> int:
    """Return the number of different pre-training runs that some runs started from."""
    return len({tuple(run.shared[PRETRAINING]) for run in runs if PRETRAINING in run.shared})


def clusters_of(runs: Sequence[RunRecord]) -> list[object]:
    """Return the cluster label of each run for resampling, [n_runs]: its pre-training run, or else its own folder."""
    return [tuple(run.shared.get(PRETRAINING, ())) or run.folder for run in runs]


def _inside(run: RunRecord, score: float) -> list[np.ndarray] | None:
    """Return the values of the final episodes of each society, whose mean is the run's result; None if unknown.

    They are checked against the score, because the summary may be that of an earlier attempt.
    """
    try:
        values = [np.asarray(society, dtype=np.float64) for society in run.summary()[RESULT_EPISODES]]
        result = float(np.mean([society.mean() for society in values]))
    except (ValueError, KeyError, TypeError):
        return None
    return values if math.isclose(result, score, rel_tol=1e-4, abs_tol=1e-6) else None


def _count(n: int, unit: str) -> str:
    plural = f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
    return f"{n:,} {unit if n == 1 else plural}"
