"""Multi-armed bandits whose arms are vectors: epsilon-greedy, UCB1, Thompson sampling, and explore-then-commit."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.principals.grid import COARSE_GRID_POINTS, FINE_GRID_POINTS, choose_arms


class BanditPrincipal(StateFields, ABC):
    """Base class of the bandits; a subclass chooses an arm in `_select_arm`.

    The candidates of a step are chosen one after the other; if an arm is chosen repeatedly, it is measured as often.
    The recommendation is the vector with the highest mean, unless a subclass implements `Recommender`.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; choices are drawn from its stream `principal`.
        arms: vectors of the arms, [n_arms, d].

    Attributes:
        counts: number of plays of each arm, [n_contexts or 1, n_arms] int64.
        means: mean payoff of each arm, [n_contexts or 1, n_arms] float64; 0 for arms that were never played.
    """

    _state_fields: ClassVar[tuple[str, ...]] = ("counts", "means", "rng")

    parallel = True

    def __init__(self, space: ParameterSpace, seeds: Seeds, arms: np.ndarray) -> None:
        self.space, self.arms = space, arms
        self.rng = seeds.numpy("principal")
        shape = (space.n_context_rows, len(arms))
        self.counts = np.zeros(shape, dtype=np.int64)
        self.means = np.zeros(shape, dtype=np.float64)

    @property
    def n_arms(self) -> int:
        return len(self.arms)

    @abstractmethod
    def _select_arm(self, row: int, pending: np.ndarray) -> int:
        """Return the index of the arm to play in the context with row `row` (`ParameterSpace.find_context_row`).

        `pending` [n_arms] int64 counts the plays of each arm that were chosen in this step and have no payoff yet.
        """

    def _update_extra_statistics(self, row: int, arm: int, payoff: float) -> None:
        """Update further statistics of a subclass with a payoff that `counts` and `means` do not include yet."""

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        row, indices = self.space.find_context_row(context), list[int]()
        pending = np.zeros(self.n_arms, dtype=np.int64)
        for _ in range(n):
            indices.append(self._select_arm(row, pending))
            pending[indices[-1]] += 1
        return self.arms[indices]

    def find_arm(self, vector: np.ndarray) -> int:
        """Return the index of the arm `vector` [d].

        Raises:
            ValueError: `vector` is not an arm.
        """
        matches = np.flatnonzero((self.arms == vector).all(axis=1))
        if not len(matches):
            raise ValueError(f"{np.asarray(vector).tolist()} is none of the {self.n_arms} arms")
        return int(matches[0])

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Update counts and means; return metrics of the context of the last outcome.

        They are principal/arms_played (number of arms with a play) and principal/best_mean (highest mean payoff).
        """
        for outcome in outcomes:
            row, arm = self.space.find_context_row(outcome.context), self.find_arm(outcome.vector)
            self._update_extra_statistics(row, arm, outcome.value)
            self.counts[row, arm] += 1
            self.means[row, arm] += (outcome.value - self.means[row, arm]) / self.counts[row, arm]
        is_played = self.counts[row] > 0
        return {
            "principal/arms_played": float(is_played.sum()),
            "principal/best_mean": float(self.means[row, is_played].max()),
        }

    def _argmax(self, values: np.ndarray) -> int:
        """Return the index of the highest of `values` [n_arms]; ties are broken at random."""
        return int(self.rng.choice(np.flatnonzero(values == values.max())))


class EpsilonGreedyPrincipal(BanditPrincipal):
    """Epsilon-greedy principal: a random arm with probability `epsilon`, else the arm with the best mean payoff.

    Means are sample averages per context (Sutton & Barto, Reinforcement Learning, 2nd ed., section 2.4). The candidates
    of a step are independent draws.

    Args:
        space: parameter space of the proposals.
        seeds: seed tree; choices are drawn from its stream `principal`.
        epsilon: probability of a uniformly random arm.
        points: number of values of each parameter in a grid of arms; None: chosen by `choose_arms` from `proposals`, at
            most the published 21 for three parameters and 6 for five (9261 and 7776 arms).
        initial_value: assumed payoff of an unplayed arm. None: the greedy choice is among played arms only. A value
            above all payoffs makes the principal play every arm first; with a value below all payoffs, it repeats the
            first arm until it explores. The published value is 0, whose effect depends on the sign of the payoffs.
        ties: choice among arms with equal means: a `random` one, or the `first`, as in the publication.
        proposals: number of proposals of the run, in all contexts together; None: unknown.
    """

    def __init__(
        self,
        space: ParameterSpace,
        seeds: Seeds,
        epsilon: UnitInterval = 0.1,
        points: PositiveInt | None = None,
        initial_value: float | None = None,
        ties: Literal["random", "first"] = "random",
        proposals: int | None = None,
    ) -> None:
        super().__init__(space, seeds, choose_arms(space, points, FINE_GRID_POINTS, proposals))
        self.epsilon, self.initial_value, self.ties = epsilon, initial_value, ties

    def _select_arm(self, row: int, pending: np.ndarray) -> int:
        explores = self.rng.random() < self.epsilon
        unplayed_value = -np.inf if self.initial_value is None else self.initial_value
        values = np.where(self.counts[row] > 0, self.means[row], unplayed_value)
        if explores or np.isneginf(values).all():
            return int(self.rng.integers(self.n_arms))
        return int(values.argmax()) if self.ties == "first" else self._argmax(values)


@dataclass(frozen=True)
class UCBSettings:
    """Options of `UCBPrincipal`; meanings, units and ranges are in `conf/principal/ucb.yaml`.

    Attributes:
        scale: factor of the bonus, in the unit of payoffs; None: highest minus lowest payoff so far in the context, so
            that `coefficient` has no unit. The published principal uses 1.
        points: number of values of each parameter in a grid of arms; None: chosen by `choose_arms`.
    """

    coefficient: NonNegativeFloat
    scale: PositiveFloat | None
    points: PositiveInt | None
    arm_order: Literal["shuffled", "ascending"]
    shared_counter: bool


class UCBPrincipal(BanditPrincipal):
    """UCB1: every arm once, then the arm with the highest index `mean + coefficient * scale * sqrt(ln t / plays)`.

    Auer, Cesa-Bianchi & Fischer, Finite-time Analysis of the Multiarmed Bandit Problem (2002), figure 1, where payoffs
    lie in [0, 1], `coefficient` is sqrt(2) and `scale` 1; t is the number of plays of all arms. While there are
    unplayed arms, this is a random search without repetition; with 1331 arms that may be the whole run.

    The candidates of a step are chosen one after the other. Pending plays count in t and in `plays` but do not change
    the mean, so an arm is chosen again only if its index is still the highest (Desautels, Krause & Burdick,
    Parallelizing Exploration-Exploitation Tradeoffs in Gaussian Process Bandit Optimization, 2014, section 4, where
    pending points reduce the posterior variance only).

    Args:
        settings: options.
        space: parameter space of the proposals.
        seeds: seed tree.
        proposals: number of proposals of the run, in all contexts together; None: unknown.
    """

    _state_fields = (*BanditPrincipal._state_fields, "lowest", "highest")

    def __init__(
        self, settings: UCBSettings, space: ParameterSpace, seeds: Seeds, proposals: int | None = None
    ) -> None:
        super().__init__(space, seeds, choose_arms(space, settings.points, COARSE_GRID_POINTS, proposals))
        self.settings = settings
        n_contexts, n_arms = self.counts.shape
        # A separate random stream reproduces the order after a resume, so that it need not be saved.
        rng, is_shuffled = seeds.numpy("arm_order"), settings.arm_order == "shuffled"
        arm_orders = [rng.permutation(n_arms) if is_shuffled else np.arange(n_arms) for _ in range(n_contexts)]
        self.arm_order = np.stack(arm_orders)
        self.lowest = np.full(n_contexts, np.inf)  # lowest payoff of each context so far; `highest`: the highest
        self.highest = np.full(n_contexts, -np.inf)

    def compute_upper_bounds(self, row: int, pending: np.ndarray | None = None) -> np.ndarray:
        """Return the upper confidence bound of every arm in a context, [n_arms].

        The bound of an unplayed arm is infinite. The bound of an arm that has only pending plays is minus infinity,
        because it has no mean yet.

        Args:
            row: row of the context.
            pending: number of pending plays of each arm, [n_arms] int64; None: there are none.
        """
        is_played = self.counts[row] > 0
        plays = self.counts[row] if pending is None else self.counts[row] + pending
        n_plays = plays.sum() + (self.counts.sum() - self.counts[row].sum() if self.settings.shared_counter else 0)
        scale = self.settings.scale
        if scale is None:
            scale = self.highest[row] - self.lowest[row] if is_played.any() else 0.0
        with np.errstate(divide="ignore", invalid="ignore"):
            bonus = self.settings.coefficient * scale * np.sqrt(np.log(n_plays) / plays)
        return np.where(is_played, self.means[row] + bonus, np.where(plays > 0, -np.inf, np.inf))

    def _select_arm(self, row: int, pending: np.ndarray) -> int:
        plays, arm_order = (self.counts[row] + pending)[self.arm_order[row]], self.arm_order[row]
        # Unplayed arms come first. If all arms are pending and none has a payoff, choose that with the fewest plays.
        if (plays == 0).any() or not self.counts[row].any():
            return int(arm_order[plays.argmin()])
        return self._argmax(self.compute_upper_bounds(row, pending))

    def _update_extra_statistics(self, row: int, arm: int, payoff: float) -> None:
        self.lowest[row] = min(self.lowest[row], payoff)
        self.highest[row] = max(self.highest[row], payoff)


@dataclass(frozen=True)
class ThompsonSettings:
    """Options of `ThompsonPrincipal`; meanings, units and ranges are in `conf/principal/thompson.yaml`.

    Attributes:
        points: number of values of each parameter in a grid of arms; None: chosen by `choose_arms`.
        prior_mean, prior_strength, prior_shape, prior_rate: m0, n0, a0 and b0 of the prior (`ThompsonPrincipal`).
        integer_posterior: whether posterior means and rates are truncated to integers, as in the published principal.
    """

    points: PositiveInt | None
    prior_mean: float
    prior_strength: PositiveFloat
    prior_shape: PositiveFloat
    prior_rate: PositiveFloat
    integer_posterior: bool


class ThompsonPrincipal(BanditPrincipal):
    """Thompson sampling: draws a mean for every arm from its posterior and plays the arm with the highest draw.

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
        proposals: number of proposals of the run, in all contexts together; None: unknown.
    """

    _state_fields = (*BanditPrincipal._state_fields, "squares")

    def __init__(
        self, settings: ThompsonSettings, space: ParameterSpace, seeds: Seeds, proposals: int | None = None
    ) -> None:
        super().__init__(space, seeds, choose_arms(space, settings.points, COARSE_GRID_POINTS, proposals))
        self.settings = settings
        self.squares = np.zeros_like(self.means)  # sum of squared deviations S of every arm

    def posterior(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, strength, shape and rate of every arm's posterior in a context, each [n_arms]."""
        n, x, n0, m0 = self.counts[row], self.means[row], self.settings.prior_strength, self.settings.prior_mean
        strength, mean = n0 + n, self._posterior_mean(n, x)
        rate = self.settings.prior_rate + self.squares[row] / 2 + n * n0 * (x - m0) ** 2 / (2 * strength)
        if self.settings.integer_posterior:
            rate = np.trunc(rate)
        return mean, strength, self.settings.prior_shape + n / 2, rate

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the measured arms with the highest posterior means in a context, best first, [<= n, d].

        The posterior means are computed from `estimates`, because these also include the confirmations. Arms with equal
        posterior means are in the order of `estimates`.
        """
        self.space.find_context_row(context)
        ranked_estimates = estimates.ranked(context)
        counts = np.array([estimate.n_measurements for estimate in ranked_estimates], dtype=np.float64)
        means = np.array([estimate.value for estimate in ranked_estimates], dtype=np.float64)
        best_indices = np.argsort(-self._posterior_mean(counts, means), kind="stable")[:n]
        vectors = [ranked_estimates[i].vector for i in best_indices]
        return np.array(vectors, dtype=np.float64).reshape(-1, self.space.dim)

    def _posterior_mean(self, counts: np.ndarray, means: np.ndarray) -> np.ndarray:
        """Return the posterior mean of each arm from its number of payoffs and their mean, each [n_arms]."""
        n0, m0 = self.settings.prior_strength, self.settings.prior_mean
        posterior: np.ndarray = (n0 * m0 + counts * means) / (n0 + counts)
        return np.trunc(posterior) if self.settings.integer_posterior else posterior

    def _select_arm(self, row: int, pending: np.ndarray) -> int:
        mean, strength, shape, rate = self.posterior(row)
        precision = self.rng.standard_gamma(shape) / rate
        # A precision that underflows to 0 would make the standard deviation infinite.
        precision = np.maximum(precision, np.finfo(np.float64).tiny)
        return self._argmax(self.rng.normal(mean, 1.0 / np.sqrt(strength * precision)))

    def _update_extra_statistics(self, row: int, arm: int, payoff: float) -> None:
        # Welford's update: S grows by the product of the payoff's deviations from the old and from the new mean.
        deviation = payoff - self.means[row, arm]
        self.squares[row, arm] += deviation * (deviation - deviation / (self.counts[row, arm] + 1))


class ScanPrincipal(BanditPrincipal):
    """Explore-then-commit principal (Lattimore & Szepesvári, Bandit Algorithms, 2020, chapter 6).

    In each context it first proposes the vectors of the coarse scan. Afterwards all candidates of a step are the vector
    with the highest mean objective over all its measurements, which may change as measurements are added.

    Args:
        space: parameter space of the proposals; the scan has its `probe_vectors`, in order.
        seeds: seed tree; unused, because choices are deterministic.
        repeats: number of measurements of each vector in the scan.
    """

    def __init__(self, space: ParameterSpace, seeds: Seeds, repeats: PositiveInt = 1) -> None:
        super().__init__(space, seeds, space.probe_vectors)
        self.repeats = repeats

    def _select_arm(self, row: int, pending: np.ndarray) -> int:
        plays, is_played = self.counts[row] + pending, self.counts[row] > 0
        # A first step with more candidates than the scan has no payoffs yet, so it repeats the scan.
        if (plays < self.repeats).any() or not is_played.any():
            return int(plays.argmin())
        return int(np.where(is_played, self.means[row], -np.inf).argmax())
