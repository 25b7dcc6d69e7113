"""What policies that are a few numbers return: the evaluation of policy search."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import LlmrlError
from llmrl.core.protocols import Controller
from llmrl.core.records import Trace
from llmrl.envs.env_errors import raised
from llmrl.envs.gym.batched_episodes import BatchedEpisodes, EpisodeRules
from llmrl.envs.gym.workers import WorkerPool

__all__ = ["EpisodeBatch", "EpisodeRules", "GymEvaluator"]

_LANES = 8
"""Games of Gymnasium's own that a process plays side by side, so that it asks the controller once for all of them."""
_BATCH = 1024
"""Batched games at a time; their arrays stay small."""


@dataclass(frozen=True)
class EpisodeBatch:
    """What q vectors of parameters did under k seeds each.

    Attributes:
        returns: sum of the rewards of each episode, [q, k] float64.
        lengths: steps of each episode, [q, k] int64.
        successes: whether each was a success, [q, k] bool; None where nothing says what a success is.
        traces: the beginning of each vector's first episode, [q]; empty where that was not wanted.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None = None
    traces: tuple[Trace, ...] = ()


class GymEvaluator:
    """Plays controllers: batched games in this process, Gymnasium's own in worker processes.

    Use it as a context, or close it.

    Args:
        rules: which game, and how.
        workers: processes for Gymnasium's own games, >= 1; None: one a core that this process may use. With 1 they are
            played in this process. Batched games always are.

    Raises:
        ConfigError: see `BatchedEpisodes`.
    """

    def __init__(self, rules: EpisodeRules, workers: int | None = None) -> None:
        self._rules = rules
        self.workers = 1 if rules.env_factory.engine == "batched" else workers or len(os.sched_getaffinity(0))
        # Made here whoever plays, so that games that cannot be made are known at once.
        self._lanes = BatchedEpisodes(rules, 1)
        self._pool = WorkerPool(rules, self.workers) if self.workers > 1 else None
        self._tracer: BatchedEpisodes | None = None

    def evaluate(
        self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64], traced: int = 0
    ) -> EpisodeBatch:
        """One episode of each vector of parameters, [q, d], under each seed, [k], with the first `traced` steps of each
        vector's first, which are played once more for that.

        What it gives does not depend on the number of workers.

        Raises:
            ConfigError: the controller reads what the game does not show, or cannot go to another process.
            EngineError: a worker process died, or the game raised an error of its own.
        """
        vectors, seeds = np.asarray(vectors, dtype=np.float64), np.asarray(seeds, dtype=np.int64)
        total = len(vectors) * len(seeds)
        width = self._width(total)
        if self._pool is not None:
            scores = self._pool.play(controller, vectors, seeds, width)
        else:
            if self._lanes.games.n != width:
                self._lanes.close()
                self._lanes = BatchedEpisodes(self._rules, width)
            try:
                scores = self._lanes.play(controller, vectors, seeds, iter(range(total)))
            except LlmrlError:
                raise
            except Exception as fault:
                raise raised(self._rules.env_factory.id, "an episode", fault) from fault
        shape, order, success = (len(vectors), len(seeds)), np.argsort(scores.job), self._rules.success
        won = None if success is None else success.judge(scores.returned, scores.best_reward, scores.terminated)
        returns, lengths = scores.returned[order].reshape(shape), scores.length[order].reshape(shape)
        successes = None if won is None else won[order].reshape(shape)
        return EpisodeBatch(returns, lengths, successes, self._traces(controller, vectors, seeds, traced))

    def _traces(
        self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64], steps: int
    ) -> tuple[Trace, ...]:
        if not steps:
            return ()
        if self._tracer is None:
            self._tracer = BatchedEpisodes(self._rules, 1)
        try:
            return tuple(self._tracer.trace(controller, vector, int(seeds[0]), steps) for vector in vectors)
        except LlmrlError:
            raise
        except Exception as fault:
            raise raised(self._rules.env_factory.id, "an episode", fault) from fault

    def _width(self, total: int) -> int:
        """Games side by side in a process. With two rounds of episodes, a process that is done early takes more."""
        if self._rules.env_factory.engine == "batched":
            return min(total, _BATCH)
        return max(1, min(-(-total // (2 * self.workers)), _LANES))

    def close(self) -> None:
        """End the worker processes; may be called twice."""
        self._lanes.close()
        if self._tracer is not None:
            self._tracer.close()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> GymEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
