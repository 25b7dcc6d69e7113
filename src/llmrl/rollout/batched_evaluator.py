"""Whole episodes of a policy, played elsewhere than in the games of a `VecEnv`, and what is measured in them: what
searches and the baselines they are compared with have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.protocols import Controller
from llmrl.core.records import Outcome, Trace
from llmrl.core.seeding import Seeds

LATE = 0.1
"""Share of the iterations, from the end, that `final_return` averages."""


class EvaluationBatch(Protocol):
    """What episodes gave: returns, lengths [q, k] and successes [q, k] (None where nothing says what one is); and the
    beginning of each vector's first episode, [q], where that was wanted."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None
    traces: Sequence[Trace]


class Evaluator(Protocol):
    """Plays whole episodes of a controller."""

    def evaluate(
        self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray, traced: int = 0
    ) -> EvaluationBatch:
        """One episode of each vector of parameters, [q, d], under each seed, [k], with the first `traced` steps of each
        vector's first."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsEvaluator(Protocol):
    """An environment whose episodes can be played elsewhere than in its own games."""

    def evaluator(self, clip_actions: bool, workers: int | None) -> Evaluator:
        """What plays them, in `workers` processes; numbers of an action are put inside their bounds, or not."""
        ...


@dataclass(frozen=True)
class EvaluationSchedule:
    """When a run measures what it has found on unseen seeds: every so many of its iterations, and at the end.

    Attributes:
        every: iterations in between; 0: only at the end.
        episodes: of each evaluation.
        iterations: of the run.
    """

    every: int
    episodes: int
    iterations: int

    def due(self, done: int) -> bool:
        """Whether there is one after `done` iterations, the one at the end left out."""
        return self.every > 0 and done % self.every == 0 and done < self.iterations

    @property
    def description(self) -> str:
        """What they come to, in words for a plan."""
        times = 1 + sum(self.due(done) for done in range(1, self.iterations))
        return f"played {times:,} x {self.episodes:,} episodes on unseen seeds"


def curve_summary(returns: Sequence[float]) -> dict[str, float]:
    """Of the mean returns of all iterations: that of the last tenth of them, and of all, the area under the curve."""
    late = max(1, round(LATE * len(returns)))
    return {"final_return": float(np.mean(returns[-late:])), "area": float(np.mean(returns))}


def outcome_of(vector: np.ndarray, found: EvaluationBatch, i: int, draw: str) -> Outcome:
    """What a proposer is told of `vector` [d], which is number `i` of those that were played, with the seeds `draw`."""
    values = np.asarray(found.returns[i], dtype=np.float64)
    summaries = {"length": float(found.lengths[i].mean())}
    if found.successes is not None:
        summaries["success"] = float(found.successes[i].mean())
    return Outcome(
        vector=vector,
        value=float(values.mean()),
        values=values,
        standard_error=standard_error_of_mean(values),
        returns=np.array([values.mean()]),
        summaries=summaries,
        draw=draw,
        steps=found.traces[i] if found.traces else None,
    )


def evaluation_seeds(seeds: Seeds, n: int) -> np.ndarray:
    """Seeds of episodes that are used for nothing but to measure what a run has found, [n]; `seeds` is the loop's."""
    return episode_seeds(seeds.child("evaluation"), n)


def incumbent_metrics(found: EvaluationBatch) -> dict[str, float]:
    """What one policy did in the episodes of `evaluation_seeds`: mean return, its standard error, length, successes."""
    values = np.asarray(found.returns[0], dtype=np.float64)
    metrics = {"search/incumbent_return": float(values.mean())}
    if (error := standard_error_of_mean(values)) is not None:
        metrics["search/incumbent_standard_error"] = error
    metrics["search/incumbent_length"] = float(found.lengths[0].mean())
    if found.successes is not None:
        metrics["search/incumbent_success"] = float(found.successes[0].mean())
    return metrics


def episode_seeds(seeds: Seeds, n: int) -> np.ndarray:
    """`n` seeds of episodes from a node of the seed tree, [n]."""
    return np.array([seeds.integer(i) for i in range(n)], dtype=np.int64)
