"""The cross-entropy method."""

from __future__ import annotations

import math
from typing import Annotated

import numpy as np
from annotated_types import Interval

from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.evolution import EvolutionPrincipal, Population, Search, whole

Share = Annotated[float, Interval(gt=0, le=1)]


class CEMPrincipal(EvolutionPrincipal):
    """Cross-entropy method with independent normal distributions, one search a context.

    Each generation is drawn from Normal(mean, diag(std^2)), clipped to the bounds; mean and std then move towards those
    of the elite (de Boer et al., A Tutorial on the Cross-Entropy Method, 2005, section 3.3, with smoothing). A noise
    that fades out is added to the elite's variance, lest the search closes in too early (Szita & Lorincz, Learning
    Tetris Using the Noisy Cross-Entropy Method, 2006, equation 3 and the paragraph after it).

    Args:
        space, seeds: what is proposed, and the source of randomness.
        population: candidates a generation, >= 4, rounded up to a multiple of the proposals tried at once; None is
            10 + floor(sqrt(d)) for d numbers.
        elite: share of a generation that is learnt from, at least two of it.
        smoothing: weight of the new mean and std beside the old ones; 1 forgets the old ones.
        sigma: standard deviation of the first generation, as a share of each number's range.
        min_sigma: smallest standard deviation, same unit.
        noise: standard deviation whose square is added to the elite's variance, same unit: `noise` after the first
            generation, linearly less each time, none from generation `noise_generations` on.
        noise_generations: see `noise`; 0 adds none.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        population: Population | None = None,
        elite: Share = 0.25,
        smoothing: Share = 0.7,
        sigma: PositiveFloat = 0.3,
        min_sigma: NonNegativeFloat = 0.01,
        noise: NonNegativeFloat = 0.05,
        noise_generations: NonNegativeInt = 10,
    ) -> None:
        super().__init__(space, seeds)
        self.population = 10 + math.isqrt(space.dim) if population is None else population
        self.elite, self.smoothing = elite, smoothing
        self.sigma, self.min_sigma = sigma, min_sigma
        self.noise, self.noise_generations = noise, noise_generations

    def _start(self, row: int, at_once: int) -> Search:
        return _CEMSearch(self, whole(self.population, at_once))


class _CEMSearch:
    """Mean and standard deviation of the candidates, each [d], in the unit cube."""

    def __init__(self, settings: CEMPrincipal, population: int) -> None:
        self.settings, self.population = settings, population
        self.mean = np.full(settings.space.dim, 0.5)
        self.std = np.full(settings.space.dim, settings.sigma)
        self.generation = 0

    def sample(self, seed: int) -> np.ndarray:
        return np.clip(np.random.default_rng(seed).normal(self.mean, self.std), 0.0, 1.0)

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        own = self.settings
        best = np.argsort(-values, kind="stable")[: max(2, round(own.elite * self.population))]
        left = max(0.0, 1 - self.generation / own.noise_generations) if own.noise_generations else 0.0
        spread = np.sqrt(vectors[best].var(0) + (own.noise * left) ** 2)
        self.mean = own.smoothing * vectors[best].mean(0) + (1 - own.smoothing) * self.mean
        self.std = np.maximum(own.smoothing * spread + (1 - own.smoothing) * self.std, own.min_sigma)
        self.generation += 1
