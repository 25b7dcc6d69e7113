"""Settings of a policy search, and the random vectors of its warmup."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.spaces import ParameterSpace
from llmrl.core.unit_cube import from_unit

WarmupDistribution = Literal["uniform", "normal3_round1", "uniform3.5_round4"]


@dataclass(frozen=True)
class SearchSettings:
    """Budget and evaluation settings of a policy search (config section `search`).

    Attributes:
        iterations: number of iterations; in each, `principal.ask` is called once.
        candidates: number of vectors proposed in each iteration.
        episodes: number of episodes of each vector. All vectors of an iteration are evaluated on the same seeds.
        episode_seeds: `fresh`: new seeds in every iteration; `common`: the same seeds in all iterations.
        warmup: number of random vectors that are measured first; their outcomes are passed to `principal.tell`.
        warmup_episodes: number of episodes of each random vector; None: `episodes`.
        warmup_draw: distribution of the random vectors (`draw_warmup_vectors`).
        extra_rollout: whether to run one extra episode with the last vector of each iteration. It counts toward the
            episode total but its return is discarded, as in one of the published implementations.
        target_return: stop the search when a proposal's mean return reaches this value, and reaches it again over
            `episodes` episodes on fresh seeds; `max`: the greatest possible return of the environment, if it is known;
            None: never stop early.
        confirm_candidates: number n of top proposals that are measured again after the last iteration, by n²
            measurements of `episodes` episodes, before the best one is selected; 0: the proposal with the highest
            estimate is selected.
        evaluation_interval: iterations between evaluations of the best proposal so far on unseen seeds; 0: only at the
            end.
        evaluate_episodes: number of episodes of an evaluation.
    """

    iterations: PositiveInt
    candidates: PositiveInt
    episodes: PositiveInt
    episode_seeds: Literal["fresh", "common"] = "fresh"
    warmup: NonNegativeInt = 0
    warmup_episodes: PositiveInt | None = None
    warmup_draw: WarmupDistribution = "uniform"
    extra_rollout: bool = False
    target_return: float | Literal["max"] | None = "max"
    confirm_candidates: NonNegativeInt = 4
    evaluation_interval: NonNegativeInt = 0
    evaluate_episodes: PositiveInt = 100

    def is_evaluation_due(self, iteration: int) -> bool:
        """Return whether the best proposal is evaluated after iteration `iteration`, from 1; False for the last one."""
        interval = self.evaluation_interval
        return interval > 0 and iteration % interval == 0 and iteration < self.iterations

    @property
    def evaluation_text(self) -> str:
        """Description of all evaluations for the printed plan."""
        n_evaluations = 1 + sum(self.is_evaluation_due(iteration) for iteration in range(1, self.iterations))
        return f"played {n_evaluations:,} x {self.evaluate_episodes:,} episodes on unseen seeds"


def draw_warmup_vectors(
    space: ParameterSpace, distribution: WarmupDistribution, n: int, rng: np.random.Generator
) -> np.ndarray:
    """Return `n` random vectors, [n, d].

    `uniform`: uniform over the allowed values within the bounds. The other two come from two published implementations
    of ProPS (arXiv 2511.21928) and ignore the parameters' bounds and `decimals`: `normal3_round1` is N(0, 3^2), rounded
    to one decimal, and `uniform3.5_round4` is U(-3.5, 3.5), rounded to four.

    Raises:
        ConfigError: `distribution` is not `uniform` and the space has integer parameters.
    """
    shape = (n, space.dim)
    if distribution == "uniform":
        return from_unit(space, rng.random(shape))
    if any(p.decimals == 0 for p in space.parameters):
        raise ConfigError(
            f"search.warmup_draw={distribution} samples non-integer values, but {space.name} has integer parameters; "
            "use uniform"
        )
    if distribution == "normal3_round1":
        return rng.normal(0.0, 3.0, shape).round(1) + 0.0  # turns -0.0 into 0.0
    return rng.uniform(-3.5, 3.5, shape).round(4) + 0.0  # turns -0.0 into 0.0
