"""Thompson sampling over a grid, with Gaussian payoffs of unknown mean and variance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import COARSE, fitting_arms


@dataclass(frozen=True)
class ThompsonSettings:
    """Options of `ThompsonPrincipal`; meanings, units and ranges are in `conf/principal/_grid.yaml`.

    Attributes:
        points: values per number of a grid of arms; None: the arms that fit the number of proposals (`fitting_arms`).
        prior_mean: m0.
        prior_strength: n0.
        prior_shape: a0.
        prior_rate: b0.
    """

    points: PositiveInt | None
    prior_mean: float
    prior_strength: PositiveFloat
    prior_shape: PositiveFloat
    prior_rate: PositiveFloat
    integer_posterior: bool


class ThompsonPrincipal(BanditPrincipal):
    """Thompson sampling: draws a mean for every arm from its posterior and plays the arm with the highest.

    The candidates of a step are independent posterior draws, which may be the same arm (Kandasamy et al., Parallelized
    Bayesian Optimization via Thompson Sampling, 2018, algorithm 2).

    Prior of each arm: precision ~ Gamma(shape a0, rate b0), mean given precision ~ Normal(m0, 1 / (n0 precision)). The
    posterior after n payoffs with mean x and sum of squared deviations S has (Murphy, Conjugate Bayesian analysis of
    the Gaussian distribution, 2007, section 3) mean (n0 m0 + n x) / (n0 + n), strength n0 + n, shape a0 + n/2 and rate
    b0 + S/2 + n n0 (x - m0)^2 / (2 (n0 + n)).

    Args:
        settings: options.
        space: parameter space of the proposals.
        seeds: seed tree.
        proposals: number of the run's proposals in all contexts together; None: unknown.
    """

    _state_fields = (*BanditPrincipal._state_fields, "squares")

    def __init__(
        self, settings: ThompsonSettings, space: ParameterSpace, seeds: Seeds, proposals: int | None = None
    ) -> None:
        super().__init__(space, seeds, fitting_arms(space, settings.points, COARSE, proposals))
        self.settings = settings
        self.squares = np.zeros_like(self.means)  # S of every arm

    def posterior(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, strength, shape and rate of every arm's posterior in a context, each [arms]."""
        n, x, n0, m0 = self.counts[row], self.means[row], self.settings.prior_strength, self.settings.prior_mean
        strength, mean = n0 + n, self._posterior_mean(n, x)
        rate = self.settings.prior_rate + self.squares[row] / 2 + n * n0 * (x - m0) ** 2 / (2 * strength)
        if self.settings.integer_posterior:
            rate = np.trunc(rate)
        return mean, strength, self.settings.prior_shape + n / 2, rate

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the measured arms with the highest posterior means in a context, best first, [<= n, d].

        The posterior means are computed from `estimates`, which also pool the confirmations. Arms with equal posterior
        means are in the order of `estimates`.
        """
        self.space.row(context)
        ranked = estimates.ranked(context)
        counts = np.array([estimate.measurements for estimate in ranked], dtype=np.float64)
        means = np.array([estimate.value for estimate in ranked], dtype=np.float64)
        best = np.argsort(-self._posterior_mean(counts, means), kind="stable")[:n]
        return np.array([ranked[i].vector for i in best], dtype=np.float64).reshape(-1, self.space.dim)

    def _posterior_mean(self, counts: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Return the posterior means of arms with `counts` payoffs of mean `means`, each [arms]."""
        n0, m0 = self.settings.prior_strength, self.settings.prior_mean
        posterior: np.ndarray = (n0 * m0 + counts * means) / (n0 + counts)
        return np.trunc(posterior) if self.settings.integer_posterior else posterior

    def _select(self, row: int, pending: np.ndarray) -> int:
        mean, strength, shape, rate = self.posterior(row)
        precision = self.rng.standard_gamma(shape) / rate
        # A precision that underflows to zero would make the draw infinite.
        precision = np.maximum(precision, np.finfo(np.float64).tiny)
        draws = self.rng.normal(mean, 1.0 / np.sqrt(strength * precision))
        return self._argmax(draws)

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        # Welford's update: S grows by the product of the deviations from the mean before and after.
        deviation = payoff - self.means[row, arm]
        self.squares[row, arm] += deviation * (deviation - deviation / (self.counts[row, arm] + 1))
