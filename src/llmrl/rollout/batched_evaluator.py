"""Evaluation of policies by complete episodes that are played outside the games of a `VecEnv`.

Policy searches and the baselines they are compared with share this code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.core.protocols import Controller
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.statistics.estimators import standard_error_of_mean

FINAL_FRACTION = 0.1
"""Fraction of the iterations, at the end, that `final_return` averages over."""


class EvaluationBatch(Protocol):
    """Returns and other measurements of a batch of episodes.

    Attributes:
        returns: return of each parameter vector in each episode, [q, k].
        lengths: lengths of the episodes, [q, k].
        successes: successes of the episodes, [q, k]; None where the environment does not define success.
    """

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None


class Evaluator(Protocol):
    """Object that plays complete episodes of a controller."""

    def evaluate(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray) -> EvaluationBatch:
        """Play one episode of each parameter vector, [q, d], under each seed, [k]."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class SupportsEvaluator(Protocol):
    """Environment whose episodes can be played outside its own games."""

    def evaluator(self, clip_actions: bool, workers: int | None) -> Evaluator:
        """Return an evaluator that plays in `workers` processes; it clips actions to their bounds if `clip_actions`."""
        ...


def summarize_curve(returns: Sequence[float]) -> dict[str, float]:
    """Return the mean return of the last tenth of the iterations and the mean over all (area under the curve)."""
    n_final = max(1, round(FINAL_FRACTION * len(returns)))
    return {"final_return": float(np.mean(returns[-n_final:])), "area": float(np.mean(returns))}


def make_outcome(vector: np.ndarray, batch: EvaluationBatch, i: int, draw: str) -> Outcome:
    """Return the outcome of `vector` [d] for a proposer.

    The vector is number `i` of the batch, played with seeds `draw`.
    """
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
    """Return seeds of evaluation episodes, [n], that training never uses; `seeds` is the loop's node."""
    return draw_episode_seeds(seeds.child("evaluation"), n)


def measure_incumbent(batch: EvaluationBatch) -> dict[str, float]:
    """Return mean return, its standard error, length and success of one policy in evaluation episodes."""
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
