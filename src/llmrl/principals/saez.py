"""Principal that computes optimal marginal tax rates by the formula of Saez (2001) from measured incomes."""

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
"""Required metrics of each tax bracket k = 1 ... K, named `<name>_<k>`, each a mean over workers, in units of income.
`earned`: income of the workers whose income ends in bracket k; `taxed`: income that is taxed at the rate of bracket k;
`weighted`: the income `taxed`, weighted by the workers' social marginal welfare weights."""
ELASTICITY_BOUNDS = (0.01, 10.0)
"""Bounds to which an estimated elasticity is clipped."""
MAX_INITIAL_RATE = 0.6
"""Highest flat rate of the initial proposals, as a share of the range of rates."""


def compute_saez_rates(
    earned: np.ndarray, taxed: np.ndarray, weighted: np.ndarray, elasticity: float, default_rates: np.ndarray
) -> np.ndarray:
    """Return the optimal marginal rates of K brackets, [K], at most 1.

    The rate is (1 - G) / (1 - G + a e) with the elasticity e, the mean welfare weight G = weighted / taxed of income
    taxed in the bracket, and a = earned / taxed. In the top bracket, where incomes above the threshold z* have the mean
    z_m, a = z_m / (z_m - z*) is the Pareto parameter in equation 9 of Saez (2001), without income effects. For lower
    brackets the formula follows from the same perturbation argument: a higher rate of a bracket raises the tax on all
    incomes above its lower threshold, but only incomes within the bracket respond.

    Args:
        earned, taxed, weighted: amounts of each bracket, [K] each (`BRACKET_METRICS`).
        elasticity: elasticity of income with respect to the net-of-tax rate, > 0.
        default_rates: rates of brackets without taxed income, [K].
    """
    gain = taxed - weighted  # (1 - G) and a e, both times `taxed`
    cost = elasticity * earned
    rates = np.divide(gain, gain + cost, out=np.ones_like(gain), where=gain + cost > 0)
    # If G >= 1, the formula is not positive or diverges, so the rate is 0.
    rates = np.where(gain <= 0, 0.0, rates)
    return np.where(taxed > 0, rates, default_rates)


def estimate_elasticity(log_net_of_tax: np.ndarray, log_income: np.ndarray) -> float | None:
    """Return the elasticity of income: the least-squares slope of `log_income` over `log_net_of_tax`, clipped.

    The estimator is that of Zheng et al. (2020). Without differences of rates, return None.

    Args:
        log_net_of_tax: log (1 - mean marginal rate) of each outcome, [n].
        log_income: log mean income of each outcome, [n].
    """
    deviations = log_net_of_tax - log_net_of_tax.mean()
    variance = float(deviations @ deviations)
    if variance < 1e-8:
        return None
    return float(np.clip(deviations @ log_income / variance, *ELASTICITY_BOUNDS))


class SaezPrincipal(StateFields):
    """Principal that proposes tax rates by Saez's formula, from the outcome of the previous rates.

    The initial proposals are flat rates, evenly spaced from the lower bounds to 60% of the range, from whose outcomes
    the elasticity is estimated. Each later proposal moves from the previous rates towards the rates of the formula by a
    fraction of the difference, because incomes depend on the rates.

    Args:
        spec: specification of an environment with the metrics `BRACKET_METRICS` of each bracket, and without contexts.
        elasticity: elasticity of income with respect to the net-of-tax rate; None: estimated from all outcomes so far.
        n_initial: number of initial flat rates; None: 1 with a given elasticity, else 4.
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
        self.space = spec.proposal_space
        metric_names = [f"{name}_{k + 1}" for name in BRACKET_METRICS for k in range(self.space.dim)]
        missing_metrics = [name for name in metric_names if name not in spec.principal_metrics]
        if missing_metrics or self.space.contexts:
            reason = f"has no metric {missing_metrics[0]!r}" if missing_metrics else "has contexts"
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
        self.rates = self._make_flat_rates(0)  # the last proposal, [K]
        self.formula_rates = self.rates  # the formula's rates for the last outcome, [K]
        self.log_points: list[list[float]] = []  # for each outcome: log (1 - mean marginal rate), log mean income

    def _make_flat_rates(self, index: int) -> np.ndarray:
        fraction = MAX_INITIAL_RATE * index / max(self.n_initial - 1, 1)
        return self.space.round_values(self.space.low + fraction * (self.space.high - self.space.low))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.space.find_context_row(context)
        if self.n_proposed < self.n_initial:
            self.rates = self._make_flat_rates(self.n_proposed)
        else:
            self.rates = self.space.round_values(self.rates + self.step * (self.formula_rates - self.rates))
        self.n_proposed += 1
        return np.tile(self.rates, (n, 1))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Compute the rates of the formula and return metrics.

        They are principal/elasticity, the elasticity for the next rates, and principal/distance, the largest absolute
        difference between the formula's rates and the previous ones.
        """
        for outcome in outcomes:
            amounts = np.array(
                [[outcome.summaries[f"{name}_{k + 1}"] for k in range(self.space.dim)] for name in BRACKET_METRICS]
            )
            income = float(amounts[0].sum())
            # Without any income the formula is undefined.
            if income > 0:
                marginal_rate = float(amounts[0] @ outcome.vector) / income  # mean weighted by income
                self.log_points.append([float(np.log(max(1.0 - marginal_rate, 1e-6))), float(np.log(income))])
                earned, taxed, weighted = amounts
                formula_rates = compute_saez_rates(earned, taxed, weighted, self.effective_elasticity, outcome.vector)
                self.formula_rates = self.space.round_values(formula_rates)
        distance = float(np.abs(self.formula_rates - self.rates).max())
        return {"principal/elasticity": self.effective_elasticity, "principal/distance": distance}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the formula's rates for the last outcome, [1, K]; [0, K] before the first outcome with income."""
        self.space.find_context_row(context)
        vectors = [self.formula_rates] if self.log_points else []
        return np.array(vectors[:n], dtype=np.float64).reshape(-1, self.space.dim)

    @property
    def effective_elasticity(self) -> float:
        """The given elasticity; if None, its estimate, or 0.5 before outcomes of two different mean rates."""
        if self.elasticity is not None:
            return self.elasticity
        estimate = estimate_elasticity(*np.array(self.log_points).T) if len(self.log_points) > 1 else None
        return 0.5 if estimate is None else estimate
