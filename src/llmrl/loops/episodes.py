"""Whole episodes of a policy, played elsewhere than in the games of a `VecEnv`, and what is measured in them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from llmrl.analysis.statistics import standard_error_of_mean
from llmrl.core.protocols import Controller
from llmrl.core.seeding import Seeds


class Played(Protocol):
    """What episodes gave: returns, lengths [q, k] and successes [q, k] (None where nothing says what one is)."""

    returns: np.ndarray
    lengths: np.ndarray
    successes: np.ndarray | None


class Plays(Protocol):
    """Plays whole episodes of a controller."""

    def evaluate(self, controller: Controller, vectors: np.ndarray, seeds: np.ndarray) -> Played:
        """One episode of each vector of parameters, [q, d], under each seed, [k]."""
        ...

    def close(self) -> None: ...


@runtime_checkable
class PlaysControllers(Protocol):
    """An environment whose episodes can be played elsewhere than in its own games."""

    def evaluator(self, clip_actions: bool, workers: int | None) -> Plays:
        """What plays them, in `workers` processes; numbers of an action are put inside their bounds, or not."""
        ...


def evaluation_seeds(seeds: Seeds, n: int) -> np.ndarray:
    """Seeds of episodes that are used for nothing but to measure what a run has found, [n]; `seeds` is the loop's."""
    return drawn(seeds.child("evaluation"), n)


def evaluation_metrics(found: Played) -> dict[str, float]:
    """What one policy did in the episodes of `evaluation_seeds`: mean return, its standard error, length, successes."""
    values = np.asarray(found.returns[0], dtype=np.float64)
    metrics = {"search/incumbent_return": float(values.mean())}
    if (error := standard_error_of_mean(values)) is not None:
        metrics["search/incumbent_standard_error"] = error
    metrics["search/incumbent_length"] = float(found.lengths[0].mean())
    if found.successes is not None:
        metrics["search/incumbent_success"] = float(found.successes[0].mean())
    return metrics


def drawn(seeds: Seeds, n: int) -> np.ndarray:
    """`n` seeds of episodes from a node of the seed tree, [n]."""
    return np.array([seeds.integer(i) for i in range(n)], dtype=np.int64)
