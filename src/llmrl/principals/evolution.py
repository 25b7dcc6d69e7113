"""Generational searches: the cross-entropy method and CMA-ES, with one search for each context."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Ge, Interval

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveFloat
from llmrl.core.records import Outcome, State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.core.unit_cube import from_unit, to_unit

PopulationSize = Annotated[int, Ge(4)]


class Search(Protocol):
    """Protocol of a distribution over the unit cube that is updated towards candidates with high values.

    Attributes:
        population: number of candidates of the current generation.
    """

    population: int

    def sample(self, seed: int) -> np.ndarray:
        """Return a candidate, [d]; it depends on the seed and the previous updates only, not on earlier samples."""
        ...

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        """Update with a generation: vectors [population, d] and their values [population], higher is better."""
        ...


@dataclass
class _ContextSearch(StateFields):
    """Search in one context.

    Attributes:
        first_batch_size: number of proposals in the first `ask`; 0 before it.
        n_proposed: number of candidates proposed so far.
        pending: unrounded candidates of the last `ask` in the unit cube, [n, d].
        vectors, values: vectors [d] in the unit cube, and values, of all outcomes in order of time.
        n_consumed_outcomes: number of outcomes with which the search was updated.
        n_generations: number of updates, one for each complete generation.
        spread: standard deviation of the candidates of the last complete generation, mean over dimensions.
        search: distribution of the candidates; None before the first `ask`.
    """

    _state_fields = ("first_batch_size", "n_proposed", "pending", "vectors", "values")

    first_batch_size: int = 0
    n_proposed: int = 0
    pending: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    vectors: list[np.ndarray] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    n_consumed_outcomes: int = 0
    n_generations: int = 0
    spread: float = 0.0
    search: Search | None = None

    def update(self) -> None:
        """Update the search with the complete generations."""
        assert self.search is not None
        while len(self.values) - self.n_consumed_outcomes >= self.search.population:
            generation_slice = slice(self.n_consumed_outcomes, self.n_consumed_outcomes + self.search.population)
            vectors = np.array(self.vectors[generation_slice])
            self.n_consumed_outcomes, self.n_generations = generation_slice.stop, self.n_generations + 1
            self.spread = float(vectors.std(0).mean())
            self.search.update(vectors, np.array(self.values[generation_slice]))


class EvolutionPrincipal(StateFields, ABC):
    """Base class of the generational searches; a subclass creates its search in `_create_search`.

    A generation is complete when the number of its outcomes reaches the population size; further outcomes belong to the
    next generation. The population is rounded up to a multiple of the proposals per step, so that all candidates of a
    generation are drawn from the same distribution.

    A search is updated with unrounded candidates, because rounding (of integer parameters) changes the standard
    deviation of the candidates.

    The random numbers of a candidate are determined by its index in its context, so checkpoints contain no
    distribution: a restored search is updated with the saved outcomes again, generation by generation.
    """

    _state_fields = ("contexts",)

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds) -> None:
        self.space, self.seeds = space, seeds.child("principal")
        self.contexts = [_ContextSearch() for _ in range(space.n_context_rows)]

    @abstractmethod
    def _create_search(self, row: int, batch_size: int) -> Search:
        """Return a new search for the context with row `row`, whose populations are multiples of `batch_size`."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row = self.space.find_context_row(context)
        context_search = self.contexts[row]
        if context_search.search is None:
            context_search.first_batch_size, context_search.search = n, self._create_search(row, n)
        seeds = self.seeds.child(row).child("candidate")
        start = context_search.n_proposed
        candidates = np.stack([context_search.search.sample(seeds.integer(start + i)) for i in range(n)])
        context_search.n_proposed, context_search.pending = start + n, candidates
        return from_unit(self.space, candidates)

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Add outcomes and return metrics of their context with the prefix `principal/`.

        They are generation (number of updates) and, after the first update, spread (standard deviation of the
        candidates of the last complete generation, as a share of the range, mean over parameters).
        """
        context_search = self.contexts[self.space.find_context_row(outcomes[0].context)]
        vectors = np.array([outcome.vector for outcome in outcomes])
        # Only vectors of the last `ask` have unrounded candidates.
        are_pending = len(vectors) == len(context_search.pending) and np.array_equal(
            vectors, from_unit(self.space, context_search.pending)
        )
        context_search.vectors += list(context_search.pending if are_pending else to_unit(self.space, vectors))
        context_search.values += [outcome.value for outcome in outcomes]
        context_search.update()
        metrics = {"principal/generation": float(context_search.n_generations)}
        return metrics | ({"principal/spread": context_search.spread} if context_search.n_generations else {})

    def load_state_dict(self, state: State) -> None:
        self.contexts = [_ContextSearch() for _ in self.contexts]
        super().load_state_dict(state)
        for row, context_search in enumerate(self.contexts):
            if context_search.first_batch_size:
                context_search.search = self._create_search(row, context_search.first_batch_size)
                context_search.update()


def round_up_to_multiple(population: int, factor: int) -> int:
    """Return `population` rounded up to a multiple of `factor`."""
    return -(-population // factor) * factor


UnitFraction = Annotated[float, Interval(gt=0, le=1)]


@dataclass(frozen=True)
class CEMSettings:
    """Options of `CEMPrincipal`; meanings, units and ranges are in `conf/principal/cem.yaml`.

    Attributes:
        noise: standard deviation of noise, as a share of each range, whose variance is added to the elite's variance.
            It decreases linearly to 0 over `noise_generations` generations.
    """

    population: PopulationSize | None
    elite: UnitFraction
    smoothing: UnitFraction
    sigma: PositiveFloat
    min_sigma: NonNegativeFloat
    noise: NonNegativeFloat
    noise_generations: NonNegativeInt


class CEMPrincipal(EvolutionPrincipal):
    """Cross-entropy method with independent normal distributions, one search per context.

    Each generation is drawn from Normal(mean, diag(std^2)), clipped to the bounds. Then mean and std are moved towards
    those of the elite, the best candidates (de Boer et al., A Tutorial on the Cross-Entropy Method, 2005, section 3.3,
    with smoothing). Decreasing noise is added to the elite's variance, to prevent early convergence (Szita & Lorincz,
    Learning Tetris Using the Noisy Cross-Entropy Method, 2006, equation 3 and the paragraph after it).

    Args:
        settings: options.
        space: parameter space of the proposals.
        seeds: seed tree.
    """

    def __init__(self, settings: CEMSettings, space: ParameterSpace, seeds: Seeds) -> None:
        super().__init__(space, seeds)
        self.settings = settings
        self.population = settings.population or 10 + math.isqrt(space.dim)

    def _create_search(self, row: int, batch_size: int) -> Search:
        return _CEMSearch(self.settings, self.space.dim, round_up_to_multiple(self.population, batch_size))


class _CEMSearch:
    """Normal distribution of candidates in the unit cube, with mean and standard deviation [d] each."""

    def __init__(self, settings: CEMSettings, dim: int, population: int) -> None:
        self.settings, self.population = settings, population
        self.mean = np.full(dim, 0.5)
        self.std = np.full(dim, settings.sigma)
        self.generation = 0

    def sample(self, seed: int) -> np.ndarray:
        return np.clip(np.random.default_rng(seed).normal(self.mean, self.std), 0.0, 1.0)

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        settings = self.settings
        elite_indices = np.argsort(-values, kind="stable")[: max(2, round(settings.elite * self.population))]
        n = settings.noise_generations
        noise_fraction = max(0.0, 1 - self.generation / n) if n else 0.0
        elite_std = np.sqrt(vectors[elite_indices].var(0) + (settings.noise * noise_fraction) ** 2)
        self.mean = settings.smoothing * vectors[elite_indices].mean(0) + (1 - settings.smoothing) * self.mean
        self.std = np.maximum(settings.smoothing * elite_std + (1 - settings.smoothing) * self.std, settings.min_sigma)
        self.generation += 1


logger = logging.getLogger(__name__)

MAX_FAST_DIM = 500
"""Maximum dimension for which the eigendecomposition of the covariance matrix takes less time than most games."""


class CMAESPrincipal(EvolutionPrincipal):
    """CMA-ES (Hansen, The CMA Evolution Strategy: A Tutorial, 2016, arXiv 1604.00772), one search per context.

    The package `cmaes` searches the unit cube, from its center. A candidate outside the cube is redrawn up to 100
    times, then clipped.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree.
        population: number of candidates per generation, >= 4, rounded up to a multiple of the proposals per step; None:
            4 + floor(3 ln d) for d parameters.
        sigma: standard deviation of the first generation, as a share of each parameter's range.
        restarts: whether a converged search restarts at a random point with twice the population (IPOP-CMA-ES, Auger &
            Hansen 2005).

    Raises:
        ConfigError: the package is missing.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        population: PopulationSize | None = None,
        sigma: PositiveFloat = 0.25,
        restarts: bool = True,
    ) -> None:
        super().__init__(space, seeds)
        try:
            import cmaes  # noqa: F401
        except ModuleNotFoundError as error:
            raise ConfigError("principal=cmaes needs the package cmaes: pip install 'llmrl[search]'") from error
        if space.dim > MAX_FAST_DIM:
            logger.warning(
                "principal=cmaes searches %s numbers and decomposes their covariance matrix of %s elements in each "
                "generation (above about %s numbers this takes longer than the games); principal=cem and random do not",
                f"{space.dim:,}",
                f"{space.dim**2:,}",
                MAX_FAST_DIM,
            )
        self.population = 4 + int(3 * np.log(space.dim)) if population is None else population
        self.sigma, self.restarts = sigma, restarts

    def _create_search(self, row: int, batch_size: int) -> Search:
        population = round_up_to_multiple(self.population, batch_size)
        return _CMASearch(self.space.dim, population, self.sigma, self.restarts, self.seeds.child(row))


class _CMASearch:
    """Implementation of `Search` by the optimizer of the package `cmaes`, which minimizes."""

    def __init__(self, dim: int, population: int, sigma: float, restarts: bool, seeds: Seeds) -> None:
        self.dim, self.population, self.sigma, self.restarts, self.seeds = dim, population, sigma, restarts, seeds
        self.n_restarts = 0
        self._create_optimizer(np.full(dim, 0.5))

    def _create_optimizer(self, mean: np.ndarray) -> None:
        from cmaes import CMA

        bounds = np.tile([0.0, 1.0], (self.dim, 1))
        self.optimizer = CMA(mean, self.sigma, bounds=bounds, population_size=self.population, seed=0)

    def sample(self, seed: int) -> np.ndarray:
        self.optimizer.reseed_rng(seed)
        return self.optimizer.ask()

    def update(self, vectors: np.ndarray, values: np.ndarray) -> None:
        self.optimizer.tell([(vector, -float(value)) for vector, value in zip(vectors, values, strict=True)])
        if self.restarts and self.optimizer.should_stop():
            self.n_restarts += 1
            self.population *= 2
            self._create_optimizer(self.seeds.child("restart").numpy(self.n_restarts).random(self.dim))
