"""Evaluation of controllers, policies with few parameters, in policy search."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import LlmrlError
from llmrl.core.protocols import Controller
from llmrl.envs.env_errors import raised
from llmrl.envs.gym.batched_episodes import BatchedEpisodes, EpisodeRules
from llmrl.envs.gym.workers import WorkerPool

__all__ = ["EpisodeBatch", "EpisodeRules", "GymEvaluator"]

_LANES = 8
"""Number of Gymnasium's own games that a process plays in lock step, so that it calls the controller once for all of
them."""
_BATCH = 1024
"""Maximum number of batched games in lock step, which keeps their arrays small."""


@dataclass(frozen=True)
class EpisodeBatch:
    """Results of q parameter vectors under k seeds each.

    Attributes:
        returns: sum of the rewards of each episode, [q, k] float64.
        lengths: steps of each episode, [q, k] int64.
        successes: whether each episode was a success, [q, k] bool; None without a criterion of success.
    """

    returns: NDArray[np.float64]
    lengths: NDArray[np.int64]
    successes: NDArray[np.bool_] | None = None


class GymEvaluator:
    """Evaluates controllers: batched games in this process, Gymnasium's own games in worker processes.

    Use it as a context manager, or call `close`.

    Args:
        rules: the game and the rules of its episodes.
        workers: number of processes for Gymnasium's own games, >= 1; None: one per core that this process may use.
            With 1, they are played in this process, as batched games always are.

    Raises:
        ConfigError: see `BatchedEpisodes`.
    """

    def __init__(self, rules: EpisodeRules, workers: int | None = None) -> None:
        self._rules = rules
        self.workers = 1 if rules.env_factory.engine == "batched" else workers or len(os.sched_getaffinity(0))
        # Created even if worker processes play, so that invalid games raise an error at once.
        self._lanes = BatchedEpisodes(rules, 1)
        self._pool = WorkerPool(rules, self.workers) if self.workers > 1 else None

    def evaluate(self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64]) -> EpisodeBatch:
        """Play one episode of each parameter vector [q, d] under each seed [k]; return the results.

        Results do not depend on the number of workers.

        Raises:
            ConfigError: the game lacks the channel that the controller reads, or the controller cannot be pickled.
            EngineError: a worker process died, or the game raised an error.
        """
        vectors, seeds = np.asarray(vectors, dtype=np.float64), np.asarray(seeds, dtype=np.int64)
        try:
            results = self._play(controller, vectors, seeds).reshape(len(vectors), len(seeds))
        except LlmrlError:
            raise
        except Exception as error:
            raise raised(self._rules.env_factory.id, "an episode", error) from error
        returned, best_reward, terminated = results["returned"], results["best_reward"], results["terminated"]
        success = self._rules.success
        successes = None if success is None else success.judge(returned, best_reward, terminated)
        return EpisodeBatch(returned, results["length"], successes)

    def _play(self, controller: Controller, vectors: NDArray[np.float64], seeds: NDArray[np.int64]) -> NDArray[Any]:
        """Return the `RESULT` of each vector under each seed, [q * k]."""
        total = len(vectors) * len(seeds)
        width = self._width(total)
        if self._pool is not None:
            return self._pool.play(controller, vectors, seeds, width)
        if self._lanes.games.n != width:
            self._lanes.close()
            self._lanes = BatchedEpisodes(self._rules, width)
        return self._lanes.play(controller, vectors, seeds, range(total))

    def _width(self, total: int) -> int:
        """Return the number of games in lock step in a process.

        Of Gymnasium's own games, a process plays at least two rounds of episodes.
        """
        if self._rules.env_factory.engine == "batched":
            return min(total, _BATCH)
        return max(1, min(-(-total // (2 * self.workers)), _LANES))

    def close(self) -> None:
        """End the worker processes. It may be called twice."""
        self._lanes.close()
        if self._pool is not None:
            self._pool.close()

    def __enter__(self) -> GymEvaluator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
