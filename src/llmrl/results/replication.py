"""Levels of replication of a group of runs: pre-training runs, runs, societies and episodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.results.run_records import RunRecord
from llmrl.run.artifacts import RESULT_EPISODES
from llmrl.run.shared_factors import PRETRAINING, REPLIES, SOCIETY
from llmrl.statistics.intervals import MINIMUM_UNITS


@dataclass(frozen=True)
class Structure:
    """The sources of variation of the scores of one group in one task.

    Attributes:
        units: label of the top-level unit of each run, [n_runs].
        pretrainings: number of different pre-training runs; None if no run starts from the weights of another one.
        societies: number of societies whose final episodes give the scores; 0 if unknown.
        episodes: number of these episodes; 0 if unknown.
        overlapping: whether runs of different seeds trained the same societies.
        replies: whether runs of different seeds received the same replies of a language model.
    """

    units: Sequence[object]
    pretrainings: int | None
    societies: int = 0
    episodes: int = 0
    overlapping: bool = False
    replies: bool = False

    @property
    def n_units(self) -> int:
        """Number of top-level units."""
        return len(set(self.units))

    @property
    def counts(self) -> str:
        """Numbers of units of each level, from the top: `2 pre-training runs, 6 runs, 12 societies, 96 episodes`."""
        parts = [] if self.pretrainings is None else [_count(self.pretrainings, "pre-training run")]
        parts.append(_count(len(self.units), "run"))
        parts += [_count(self.societies, "society")] if self.societies > len(self.units) else []
        return ", ".join([*parts, _count(self.episodes, "episode")] if self.episodes else parts)

    @property
    def remarks(self) -> list[str]:
        """Reasons why there is no interval, or why it does not cover all variation; empty if there are none."""
        remarks = []
        if self.n_units < MINIMUM_UNITS:
            unit = "run" if self.pretrainings is None or self.n_units == len(self.units) else "pre-training run"
            remarks.append(f"{_count(self.n_units, unit)}: no interval below {MINIMUM_UNITS}")
        if self.replies:
            remarks.append("seeds share a model's replies: the interval does not cover their variation")
        if self.overlapping:
            remarks.append("seeds share societies: interval too narrow")
        return remarks


def structure(runs: Sequence[RunRecord], scores: Sequence[float], is_result: bool) -> Structure:
    """Return the sources of variation of the scores of a group.

    Args:
        runs: finished runs of the group.
        scores: scores of the runs, [n_runs].
        is_result: whether the scores are the runs' own results, whose episodes are in their summaries.
    """
    societies = [set(run.shared.get(SOCIETY, ())) for run in runs]
    replies = [name for run in runs for name in run.shared.get(REPLIES, ())]
    overlapping = any(runs_societies & other for i, runs_societies in enumerate(societies) for other in societies[:i])
    episode_counts = [_count_episodes(run, score) for run, score in zip(runs, scores, strict=True)] if is_result else []
    counts = [count for run in episode_counts for count in run]
    return Structure(
        units_of(runs),
        pretrainings_of(runs) or None,
        len(counts),
        sum(counts),
        overlapping,
        len(replies) > len(set(replies)),
    )


def pretrainings_of(runs: Sequence[RunRecord]) -> int:
    """Return the number of different pre-training runs that some runs started from."""
    return len({tuple(run.shared[PRETRAINING]) for run in runs if PRETRAINING in run.shared})


def units_of(runs: Sequence[RunRecord]) -> list[object]:
    """Return the label of the top-level unit of each run, [n_runs]: its pre-training run, or else its own folder."""
    return [tuple(run.shared.get(PRETRAINING, ())) or run.folder for run in runs]


def _count_episodes(run: RunRecord, score: float) -> list[int]:
    """Return the number of final episodes of each society, whose mean is the run's result; empty if unknown.

    They are checked against the score, because the summary may be that of an earlier attempt.
    """
    try:
        values = [np.asarray(society, dtype=np.float64) for society in run.summary()[RESULT_EPISODES]]
        result = float(np.mean([society.mean() for society in values]))
    except (ValueError, KeyError, TypeError):
        return []
    return [len(society) for society in values] if math.isclose(result, score, rel_tol=1e-4, abs_tol=1e-6) else []


def _count(n: int, unit: str) -> str:
    plural = f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
    return f"{n:,} {unit if n == 1 else plural}"
