"""Covariance matrix adaptation evolution strategy."""

from __future__ import annotations

import logging

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.evolution import EvolutionPrincipal, Population, Search, whole

logger = logging.getLogger(__name__)

MANY = 500
"""Numbers above which a generation costs more than most games: its covariance matrix has their square, and is taken
apart each time."""


class CMAESPrincipal(EvolutionPrincipal):
    """CMA-ES (Hansen, The CMA Evolution Strategy: A Tutorial, 2016, arXiv 1604.00772), one search a context.

    The search is the package `cmaes`, in the unit cube, from its middle. A candidate outside is drawn again, up to 100
    times, then clipped.

    Args:
        space, seeds: what is proposed, and the source of randomness.
        population: candidates a generation, >= 4, rounded up to a multiple of the proposals tried at once; None is
            4 + floor(3 ln d) for d numbers.
        sigma: standard deviation of the first generation, as a share of each number's range.
        restarts: where a search has converged, start a new one at a random point with twice the population
            (IPOP-CMA-ES, Auger & Hansen 2005).

    Raises:
        ConfigError: the package is missing.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        population: Population | None = None,
        sigma: PositiveFloat = 0.25,
        restarts: bool = True,
    ) -> None:
        super().__init__(space, seeds)
        try:
            import cmaes  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigError("principal=cmaes needs the package cmaes: pip install 'llmrl[search]'") from error
        if space.dim > MANY:
            logger.warning(
                "principal=cmaes searches %s numbers, whose covariance matrix of %s entries is taken apart in each "
                "generation (above about %s this takes longer than the games): principal=cem or random does without it",
                f"{space.dim:,}",
                f"{space.dim**2:,}",
                MANY,
            )
        self.population = 4 + int(3 * np.log(space.dim)) if population is None else population
        self.sigma, self.restarts = sigma, restarts

    def _start(self, row: int, at_once: int) -> Search:
        population = whole(self.population, at_once)
        return _CMASearch(self.space.dim, population, self.sigma, self.restarts, self.seeds.child(row))


class _CMASearch:
    """The package's optimiser, a minimiser, as a `Search`."""

    def __init__(self, dim: int, population: int, sigma: float, restarts: bool, seeds: Seeds) -> None:
        self.dim, self.population, self.sigma, self.restarts, self.seeds = dim, population, sigma, restarts, seeds
        self.restarted = 0
        self._begin(np.full(dim, 0.5))

    def _begin(self, mean: np.ndarray) -> None:
        from cmaes import CMA

        box = np.tile([0.0, 1.0], (self.dim, 1))
        self.optimiser = CMA(mean, self.sigma, bounds=box, population_size=self.population, seed=0)

    def sample(self, seed: int) -> np.ndarray:
        self.optimiser.reseed_rng(seed)
        candidate: np.ndarray = self.optimiser.ask()
        return candidate

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        self.optimiser.tell([(vector, -float(value)) for vector, value in zip(vectors, values, strict=True)])
        if self.restarts and self.optimiser.should_stop():
            self.restarted += 1
            self.population *= 2
            self._begin(self.seeds.child("restart").numpy(self.restarted).random(self.dim))
