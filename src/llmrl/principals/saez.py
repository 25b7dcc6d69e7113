"""Optimal marginal tax rates by the formula of Saez, from measured incomes and their response to earlier rates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import Outcome
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields

BRACKET_METRICS = ("earned", "taxed", "weighted")
"""Required metrics of each bracket k = 1 ... K, named `<name>_<k>`, each a mean over workers: the income of the workers
whose income ends in the bracket, the income that is taxed at its rate, and the latter weighted by social marginal
welfare weights."""
ELASTICITY_BOUNDS = (0.01, 10.0)
"""Bounds of an estimated elasticity."""
MAX_INITIAL_RATE = 0.6
"""Highest flat rate of the first proposals, as a share of the upper bound."""


def compute_saez_rates(
    earned: np.ndarray, taxed: np.ndarray, weighted: np.ndarray, elasticity: float, default_rates: np.ndarray
) -> np.ndarray:
    """Return the optimal marginal rates of K brackets, [K], at most 1.

    tau = (1 - G) / (1 - G + a e) with G = weighted / taxed, the mean welfare weight of the money taxed in the bracket,
    and a = earned / taxed. In the top bracket, with incomes z_m on average above the edge z*, a = z_m / (z_m - z*) is
    the Pareto parameter of Saez (2001), equation 9, without income effects. For lower brackets this is his perturbation
    argument for the rate of an interval: incomes above it also pay more, but only incomes in it respond.

    Args:
        earned, taxed, weighted: [K] each (`BRACKET_METRICS`).
        elasticity: elasticity of income to the net-of-tax rate, > 0.
        default_rates: rates of brackets without income, [K].
    """
    gain = taxed - weighted
    cost = elasticity * earned
    rates = np.divide(gain, gain + cost, out=np.ones_like(gain), where=gain + cost > 0)
    # If the taxed income has more than average weight, the formula is negative or diverges, so the rate is 0.
    rates = np.where(gain <= 0, 0.0, rates)
    return np.where(taxed > 0, rates, default_rates)


def estimate_elasticity(log_net_of_tax: np.ndarray, log_income: np.ndarray) -> float | None:
    """Return the slope of log mean income over log (1 - mean marginal rate), [n] each; None if rates do not differ.

    Least squares over earlier proposals, as Zheng et al. (2020) estimate it.
    """
    deviations = log_net_of_tax - log_net_of_tax.mean()
    variance = float(deviations @ deviations)
    if variance < 1e-8:
        return None
    return float(np.clip(deviations @ log_income / variance, *ELASTICITY_BOUNDS))


class SaezPrincipal(StateFields):
    """Principal that proposes tax rates computed by Saez's formula (2001) from the outcome of the last rates.

    The first proposals are flat rates, evenly spaced from the lower bounds to 60% of the upper ones, from which the
    elasticity is estimated. Each later proposal moves from the last rates towards those of the formula by a fraction of
    the difference, because incomes change with the rates.

    Args:
        spec: spec of the environment, with the metrics `BRACKET_METRICS` of each bracket and no contexts.
        elasticity: elasticity of income to the net-of-tax rate; None: estimated from all proposals so far.
        n_initial: number of flat rates tried first; None: 1 with a given elasticity, else 4.
        step: fraction of the difference to the formula's rates by which a proposal moves, in (0, 1].

    Raises:
        ConfigError: the environment lacks these metrics, or has contexts.
    """

    _state_fields = ("n_proposed", "rates", "formula_rates", "log_points")

    parallel = False

    def __init__(
        self,
        spec: EnvSpec,
        elasticity: PositiveFloat | None = None,
        n_initial: PositiveInt | None = None,
        step: UnitInterval = 0.5,
    ) -> None:
        self.space = spec.proposals
        names = [f"{name}_{k + 1}" for name in BRACKET_METRICS for k in range(self.space.dim)]
        missing = [name for name in names if name not in spec.principal_metrics]
        if missing or self.space.contexts:
            reason = f"has no metric {missing[0]!r}" if missing else "has contexts"
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"principal=saez needs the incomes in each tax bracket and no contexts, but env={spec.name} {reason}; "
                "use env=tax_economy or another principal",
            )
        min_initial = 2 if elasticity is None else 1
        self.n_initial = n_initial or (4 if elasticity is None else 1)
        if self.n_initial < min_initial:
            raise ConfigError(
                f"principal.n_initial={n_initial} is too small to estimate an elasticity; use at least {min_initial}, "
                "or set principal.elasticity"
            )
        if step == 0:
            raise ConfigError("principal.step=0 never changes the first rates; use a number in (0, 1]")
        self.elasticity, self.step = elasticity, step
        self.n_proposed = 0
        self.rates = self._flat_rates(0)  # the last proposal, [K]
        self.formula_rates = self.rates  # the formula's rates for the last outcome, [K]
        self.log_points: list[list[float]] = []  # for each outcome: log (1 - mean marginal rate), log mean income

    def _flat_rates(self, index: int) -> np.ndarray:
        fraction = MAX_INITIAL_RATE * index / max(self.n_initial - 1, 1)
        return self.space.round_values(self.space.low + fraction * (self.space.high - self.space.low))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.space.find_row(context)
        if self.n_proposed < self.n_initial:
            self.rates = self._flat_rates(self.n_proposed)
        else:
            self.rates = self.space.round_values(self.rates + self.step * (self.formula_rates - self.rates))
        self.n_proposed += 1
        return np.tile(self.rates, (n, 1))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Learn from outcomes and return metrics.

        They are principal/elasticity, the elasticity used for the next rates, and principal/distance, the largest
        difference between the formula's rates and the last ones.
        """
        for outcome in outcomes:
            amounts = np.array(
                [[outcome.summaries[f"{name}_{k + 1}"] for k in range(self.space.dim)] for name in BRACKET_METRICS]
            )
            income = float(amounts[0].sum())
            # Without any income the formula is undefined.
            if income > 0:
                marginal = float(amounts[0] @ outcome.vector) / income
                self.log_points.append([float(np.log(max(1.0 - marginal, 1e-6))), float(np.log(income))])
                incomes, taxable, weights = amounts
                formula_rates = compute_saez_rates(incomes, taxable, weights, self.effective_elasticity, outcome.vector)
                self.formula_rates = self.space.round_values(formula_rates)
        distance = float(np.abs(self.formula_rates - self.rates).max())
        return {"principal/elasticity": self.effective_elasticity, "principal/distance": distance}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the formula's rates for the last outcome, [1, K]; [0, K] before the first outcome with income."""
        self.space.find_row(context)
        vectors = [self.formula_rates] if self.log_points else []
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    @property
    def effective_elasticity(self) -> float:
        """Elasticity that was given, or else its estimate; 0.5 before there are two different proposals."""
        if self.elasticity is not None:
            return self.elasticity
        estimate = estimate_elasticity(*np.array(self.log_points).T) if len(self.log_points) > 1 else None
        return 0.5 if estimate is None else estimate
