"""Thompson sampling over a grid, with Gaussian payoffs of unknown mean and variance."""

from __future__ import annotations

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt
from llmrl.core.records import State
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.principals.bandit import BanditPrincipal
from llmrl.principals.grid import COARSE, fitting_arms


class ThompsonPrincipal(BanditPrincipal):
    """Thompson sampling: draws a mean for every arm from its posterior and plays the arm with the highest.

    The candidates of a step are independent posterior draws, which may be the same arm (Kandasamy et al., Parallelised
    Bayesian Optimisation via Thompson Sampling, 2018, algorithm 2).

    Prior of each arm: precision ~ Gamma(shape a0, rate b0), mean given precision ~ Normal(m0, 1 / (n0 precision)).
    After n payoffs of mean x and sum of squared deviations S (Murphy, Conjugate Bayesian analysis of the Gaussian
    distribution, 2007, section 3):
    mean (n0 m0 + n x) / (n0 + n), strength n0 + n, shape a0 + n/2, rate b0 + S/2 + n n0 (x - m0)^2 / (2 (n0 + n)).

    Args:
        space, seeds: what is proposed, and the source of randomness.
        points: values per number of a grid of arms; None: the arms that fit `proposals` (`fitting_arms`), at most the
            published 11 for three numbers, 3 for five (1331 and 243 arms).
        prior_mean: m0, in units of the payoff.
        prior_strength: n0, how many payoffs the prior mean weighs.
        prior_shape: a0.
        prior_rate: b0, in squared units of the payoff; b0 / a0 is about the variance expected of one payoff.
        integer_posterior: cut posterior means and rates to whole numbers, a defect of the published code.
        proposals: number of the run's proposals in all contexts together; None: unknown.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        points: PositiveInt | None = None,
        prior_mean: float = 0.0,
        prior_strength: PositiveFloat = 0.05,
        prior_shape: PositiveFloat = 1.0,
        prior_rate: PositiveFloat = 25.0,
        integer_posterior: bool = False,
        proposals: int | None = None,
    ) -> None:
        super().__init__(space, seeds, fitting_arms(space, points, COARSE, proposals))
        self.prior_mean, self.prior_strength = prior_mean, prior_strength
        self.prior_shape, self.prior_rate = prior_shape, prior_rate
        self.integer_posterior = integer_posterior
        self.squares = np.zeros_like(self.means)  # S of every arm

    def posterior(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean, strength, shape and rate of every arm's posterior in a context, each [arms]."""
        n, x, n0, m0 = self.counts[row], self.means[row], self.prior_strength, self.prior_mean
        strength, mean = n0 + n, self._posterior_mean(n, x)
        rate = self.prior_rate + self.squares[row] / 2 + n * n0 * (x - m0) ** 2 / (2 * strength)
        if self.integer_posterior:
            rate = np.trunc(rate)
        return mean, strength, self.prior_shape + n / 2, rate

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
        found: np.ndarray = (self.prior_strength * self.prior_mean + counts * means) / (self.prior_strength + counts)
        return np.trunc(found) if self.integer_posterior else found

    def _select(self, row: int, pending: np.ndarray) -> int:
        mean, strength, shape, rate = self.posterior(row)
        precision = self.rng.standard_gamma(shape) / rate
        # A precision that underflows to zero would make the draw infinite.
        precision = np.maximum(precision, np.finfo(np.float64).tiny)
        draws = self.rng.normal(mean, 1.0 / np.sqrt(strength * precision))
        return self._argmax(draws)

    def _learn(self, row: int, arm: int, payoff: float) -> None:
        # Welford's update: S grows by the product of the deviations from the mean before and after.
        before = payoff - self.means[row, arm]
        self.squares[row, arm] += before * (before - before / (self.counts[row, arm] + 1))

    def state_dict(self) -> State:
        return {**super().state_dict(), "squares": self.squares.copy()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.squares = np.array(state["squares"])
