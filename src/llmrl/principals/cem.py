"""Cross-entropy method."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Interval

from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.evolution import EvolutionPrincipal, Population, Search, round_up

Share = Annotated[float, Interval(gt=0, le=1)]


@dataclass(frozen=True)
class CEMSettings:
    """Options of `CEMPrincipal`; meanings, units and ranges are in `conf/principal/_evolution.yaml`.

    Attributes:
        noise: standard deviation whose square is added to the elite's variance; it decreases linearly from `noise`
            after the first generation to 0 from generation `noise_generations` on.
    """

    population: Population | None
    elite: Share
    smoothing: Share
    sigma: PositiveFloat
    min_sigma: NonNegativeFloat
    noise: NonNegativeFloat
    noise_generations: NonNegativeInt


class CEMPrincipal(EvolutionPrincipal):
    """Cross-entropy method with independent normal distributions, one search per context.

    Each generation is drawn from Normal(mean, diag(std^2)), clipped to the bounds; mean and std then move towards those
    of the elite (de Boer et al., A Tutorial on the Cross-Entropy Method, 2005, section 3.3, with smoothing). Decreasing
    noise is added to the elite's variance, so that the search does not converge too early (Szita & Lorincz, Learning
    Tetris Using the Noisy Cross-Entropy Method, 2006, equation 3 and the paragraph after it).

    Args:
        settings: options.
        space: parameter space of the proposals.
        seeds: seed tree.
    """

    def __init__(self, settings: CEMSettings, space: ParameterSpace, seeds: Seeds) -> None:
        super().__init__(space, seeds)
        self.settings = settings
        self.population = settings.population or 10 + math.isqrt(space.dim)

    def _start(self, row: int, batch_size: int) -> Search:
        return _CEMSearch(self.settings, self.space.dim, round_up(self.population, batch_size))


class _CEMSearch:
    """Search state: mean and standard deviation of the candidates, each [d], in the unit cube."""

    def __init__(self, settings: CEMSettings, dim: int, population: int) -> None:
        self.settings, self.population = settings, population
        self.mean = np.full(dim, 0.5)
        self.std = np.full(dim, settings.sigma)
        self.generation = 0

    def sample(self, seed: int) -> np.ndarray:
        return np.clip(np.random.default_rng(seed).normal(self.mean, self.std), 0.0, 1.0)

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        settings = self.settings
        elite = np.argsort(-values, kind="stable")[: max(2, round(settings.elite * self.population))]
        remaining = max(0.0, 1 - self.generation / settings.noise_generations) if settings.noise_generations else 0.0
        elite_std = np.sqrt(vectors[elite].var(0) + (settings.noise * remaining) ** 2)
        self.mean = settings.smoothing * vectors[elite].mean(0) + (1 - settings.smoothing) * self.mean
        self.std = np.maximum(settings.smoothing * elite_std + (1 - settings.smoothing) * self.std, settings.min_sigma)
        self.generation += 1
