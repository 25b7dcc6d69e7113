"""Covariance matrix adaptation evolution strategy."""

from __future__ import annotations

import logging

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.evolution import EvolutionPrincipal, Population, Search, round_up

logger = logging.getLogger(__name__)

LARGE_DIM = 500
"""Dimension above which the eigendecomposition of the covariance matrix takes longer than most games."""


class CMAESPrincipal(EvolutionPrincipal):
    """CMA-ES (Hansen, The CMA Evolution Strategy: A Tutorial, 2016, arXiv 1604.00772), one search per context.

    The search uses the package `cmaes`, in the unit cube, from its center. A candidate outside is redrawn up to 100
    times, then clipped.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree.
        population: candidates per generation, >= 4, rounded up to a multiple of the proposals per step; None is
            4 + floor(3 ln d) for d numbers.
        sigma: standard deviation of the first generation, as a share of each number's range.
        restarts: whether a converged search restarts at a random point with twice the population (IPOP-CMA-ES, Auger &
            Hansen 2005).

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
        if space.dim > LARGE_DIM:
            logger.warning(
                "principal=cmaes searches %s numbers and decomposes their covariance matrix of %s elements in each "
                "generation (above about %s numbers this takes longer than the games); principal=cem and random do not",
                f"{space.dim:,}",
                f"{space.dim**2:,}",
                LARGE_DIM,
            )
        self.population = 4 + int(3 * np.log(space.dim)) if population is None else population
        self.sigma, self.restarts = sigma, restarts

    def _start(self, row: int, batch_size: int) -> Search:
        population = round_up(self.population, batch_size)
        return _CMASearch(self.space.dim, population, self.sigma, self.restarts, self.seeds.child(row))


class _CMASearch:
    """Adapter of the package's optimizer, which minimizes, to `Search`."""

    def __init__(self, dim: int, population: int, sigma: float, restarts: bool, seeds: Seeds) -> None:
        self.dim, self.population, self.sigma, self.restarts, self.seeds = dim, population, sigma, restarts, seeds
        self.n_restarts = 0
        self._begin(np.full(dim, 0.5))

    def _begin(self, mean: np.ndarray) -> None:
        from cmaes import CMA

        box = np.tile([0.0, 1.0], (self.dim, 1))
        self.optimizer = CMA(mean, self.sigma, bounds=box, population_size=self.population, seed=0)

    def sample(self, seed: int) -> np.ndarray:
        self.optimizer.reseed_rng(seed)
        candidate: np.ndarray = self.optimizer.ask()
        return candidate

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        self.optimizer.tell([(vector, -float(value)) for vector, value in zip(vectors, values, strict=True)])
        if self.restarts and self.optimizer.should_stop():
            self.n_restarts += 1
            self.population *= 2
            self._begin(self.seeds.child("restart").numpy(self.n_restarts).random(self.dim))
