"""What is asked of a search, and the random vectors that it begins with."""

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
    """How long a search goes on, and by what it judges: the section `search` of the config.

    Attributes:
        iterations: times the principal is asked.
        candidates: vectors proposed in each of them.
        episodes: episodes each is judged by. Vectors of one iteration are played under the same seeds.
        episode_seeds: seeds of the episodes: `fresh` ones in every iteration, or the same in all (`common`).
        warmup: random vectors that are tried and told first.
        warmup_episodes: episodes of each of these; None: as many as of the others.
        warmup_draw: see `warmup_vectors`.
        extra_rollout: play one more episode of the last vector in each iteration, which is counted and used for nothing
            (as one of the published codes does).
        stop_at: mean return of a proposal that ends the search once as many fresh episodes confirm it; `max`: the
            greatest possible return of the environment, where it is known; None: no early end.
        race: the best so many proposals are measured again after the last iteration, before one of them is named; 0:
            the best by what was measured in the search is named.
        race_rounds: at most so many times, `episodes` each.
        evaluate_every: iterations between evaluations of the best proposal so far on unseen seeds; 0: only at the end.
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
    stop_at: float | Literal["max"] | None = "max"
    race: NonNegativeInt = 5
    race_rounds: PositiveInt = 3
    evaluate_every: NonNegativeInt = 0
    evaluate_episodes: PositiveInt = 100

    def stop_level(self, max_return: float | None) -> float | None:
        """Return the mean return that ends a search, or None.

        Args:
            max_return: greatest possible return of an episode; None if it is unknown.
        """
        return max_return if self.stop_at == "max" else self.stop_at

    @property
    def schedule(self) -> EvaluationSchedule:
        """When what was found is evaluated."""
        return EvaluationSchedule(self.evaluate_every, self.evaluate_episodes, self.iterations)


def warmup_vectors(space: ParameterSpace, draw: Draw, n: int, rng: np.random.Generator) -> np.ndarray:
    """`n` random vectors, [n, d].

    `uniform`: inside the bounds, every value a number can take equally likely. The others are those of two published
    codes of ProPS (arXiv 2511.21928), which heed neither bounds nor decimals: `normal3_round1` N(0, 3^2), rounded to
    one decimal, and `uniform3.5_round4` U(-3.5, 3.5), rounded to four.

    Raises:
        ConfigError: a published draw of whole numbers.
    """
    shape = (n, space.dim)
    if draw == "uniform":
        return from_unit(space, rng.random(shape))
    if any(p.decimals == 0 for p in space.parameters):
        raise ConfigError(f"search.warmup_draw={draw}: the numbers of a {space.name} are whole; use uniform")
    if draw == "normal3_round1":
        return rng.normal(0.0, 3.0, shape).round(1) + 0.0
    return rng.uniform(-3.5, 3.5, shape).round(4) + 0.0
