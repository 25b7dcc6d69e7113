"""Evaluation of the controllers of policy searches and baselines, by episodes played outside a `VecEnv`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.core.protocols import Controller
from llmrl.core.records import EvaluationBatch, Outcome
from llmrl.core.seeding import Seeds
from llmrl.statistics.estimators import standard_error_of_mean

FINAL_FRACTION = 0.1
"""Fraction of the iterations, the last ones, over which `final_return` is averaged."""


class Evaluator(Protocol):
    """Protocol of objects that play complete episodes of a controller."""

    def evaluate(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray) -> EvaluationBatch:
        """Play one episode of each parameter vector, [q, d], under each seed, [k]."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsEvaluator(Protocol):
    """Protocol of environments whose episodes can be played outside its own games."""

    def build_evaluator(self, clip_actions: bool, workers: int | None) -> Evaluator:
        """Return an evaluator.

        Args:
            clip_actions: whether continuous actions are clipped to their bounds.
            workers: number of processes that play; None: the number of CPU cores.
        """
        ...


def summarize_curve(returns: Sequence[float]) -> dict[str, float]:
    """Return means of the returns of iterations: `final_return` of the last tenth, `area` (under the curve) of all."""
    n_final = max(1, round(FINAL_FRACTION * len(returns)))
    return {"final_return": float(np.mean(returns[-n_final:])), "area": float(np.mean(returns))}


def make_outcome(vector: np.ndarray, batch: EvaluationBatch, i: int, draw: str) -> Outcome:
    """Return the outcome of `vector` [d], which is vector `i` of the batch; `draw` names its seeds (`Outcome.draw`)."""
    values = np.asarray(batch.returns[i], dtype=np.float64)
    summaries = {"length": float(batch.lengths[i].mean())}
    if batch.successes is not None:
        summaries["success"] = float(batch.successes[i].mean())
    return Outcome(
        vector=vector,
        value=float(values.mean()),
        values=values,
        standard_error=standard_error_of_mean(values),
        returns=np.array([values.mean()]),
        summaries=summaries,
        draw=draw,
    )


def draw_evaluation_seeds(seeds: Seeds, n: int) -> np.ndarray:
    """Return the seeds of `n` evaluation episodes, [n], which are used for nothing else; `seeds` is the loop's node."""
    return draw_episode_seeds(seeds.child("evaluation"), n)


def measure_incumbent(batch: EvaluationBatch) -> dict[str, float]:
    """Return the metrics `search/incumbent_...` of an evaluation of a single vector: means over its episodes."""
    values = np.asarray(batch.returns[0], dtype=np.float64)
    metrics = {"search/incumbent_return": float(values.mean())}
    if (error := standard_error_of_mean(values)) is not None:
        metrics["search/incumbent_standard_error"] = error
    metrics["search/incumbent_length"] = float(batch.lengths[0].mean())
    if batch.successes is not None:
        metrics["search/incumbent_success"] = float(batch.successes[0].mean())
    return metrics


def draw_episode_seeds(seeds: Seeds, n: int) -> np.ndarray:
    """Return `n` episode seeds from a node of the seed tree, [n]."""
    return np.array([seeds.integer(i) for i in range(n)], dtype=np.int64)
