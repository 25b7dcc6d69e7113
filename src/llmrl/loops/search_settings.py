"""Settings of a policy search, and the random vectors that it tries first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit
from llmrl.rollout.batched_evaluator import EvaluationSchedule

Draw = Literal["uniform", "normal3_round1", "uniform3.5_round4"]


@dataclass(frozen=True)
class SearchSettings:
    """Budget and measurements of a policy search: the section `search` of the config.

    Attributes:
        iterations: number of requests to the principal.
        candidates: number of vectors proposed in each iteration.
        episodes: number of episodes of each vector. Vectors of one iteration are played under the same seeds.
        episode_seeds: seeds of the episodes: `fresh` ones in every iteration, or the same in all (`common`).
        warmup: number of random vectors that are tried first; the principal is told their returns.
        warmup_episodes: episodes of each random vector; None: as many as of the others.
        warmup_draw: distribution of the random vectors (`warmup_vectors`).
        extra_rollout: whether to play one more episode of the last vector in each iteration, which is counted but not
            used (as in one of the published codes).
        target_return: mean return of a proposal that ends the search once as many fresh episodes confirm it; `max`: the
            greatest possible return of the environment, if it is known; None: no early end.
        race: number of the best proposals that are measured again after the last iteration, before one is chosen; 0:
            the highest estimate of the search is chosen.
        race_rounds: maximum number of rounds of the race, with `episodes` episodes of each vector.
        evaluation_interval: iterations between evaluations of the best proposal so far on unseen seeds; 0: at the end.
        evaluate_episodes: episodes of such an evaluation.
    """

    iterations: PositiveInt
    candidates: PositiveInt
    episodes: PositiveInt
    episode_seeds: Literal["fresh", "common"] = "fresh"
    warmup: NonNegativeInt = 0
    warmup_episodes: PositiveInt | None = None
    warmup_draw: Draw = "uniform"
    extra_rollout: bool = False
    target_return: float | Literal["max"] | None = "max"
    race: NonNegativeInt = 5
    race_rounds: PositiveInt = 3
    evaluation_interval: NonNegativeInt = 0
    evaluate_episodes: PositiveInt = 100

    def stop_level(self, max_return: float | None) -> float | None:
        """Return the mean return that ends a search, or None.

        Args:
            max_return: greatest possible return of an episode; None if it is unknown.
        """
        return max_return if self.target_return == "max" else self.target_return

    @property
    def schedule(self) -> EvaluationSchedule:
        """Schedule of the evaluations of the best proposal."""
        return EvaluationSchedule(self.evaluation_interval, self.evaluate_episodes, self.iterations)


def warmup_vectors(space: ParameterSpace, draw: Draw, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return `n` random vectors, [n, d].

    `uniform`: inside the bounds, all possible values with equal probability. The others are those of two published
    codes of ProPS (arXiv 2511.21928), which ignore bounds and decimals: `normal3_round1` N(0, 3^2), rounded to
    one decimal, and `uniform3.5_round4` U(-3.5, 3.5), rounded to four.

    Raises:
        ConfigError: parameters are whole numbers, and the draw is a published one.
    """
    shape = (n, space.dim)
    if draw == "uniform":
        return from_unit(space, rng.random(shape))
    if any(p.decimals == 0 for p in space.parameters):
        raise ConfigError(
            f"search.warmup_draw={draw} draws fractions, but a {space.name} has whole numbers; use uniform"
        )
    if draw == "normal3_round1":
        return rng.normal(0.0, 3.0, shape).round(1) + 0.0
    return rng.uniform(-3.5, 3.5, shape).round(4) + 0.0
