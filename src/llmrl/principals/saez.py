"""Optimal marginal tax rates by the formula of Saez, from measured incomes and their response to earlier rates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.pooling import PooledEstimates
from llmrl.core.ranges import PositiveFloat, PositiveInt, UnitInterval
from llmrl.core.records import Outcome, State
from llmrl.core.spaces import EnvSpec

AMOUNTS = ("earned", "taxed", "weighted")
"""Metrics that are needed of each bracket k = 1 ... K, as `<name>_<k>`: incomes that end in it, income taxed at its
rate, and that weighted by social marginal welfare weights; each a sum over workers divided by their number."""
ELASTICITIES = (0.01, 10.0)
"""What an estimated elasticity is kept between."""
HIGHEST_TRIED = 0.6
"""Highest flat rate that is tried first, as a share of the upper bound."""


def saez_rates(
    earned: np.ndarray, taxed: np.ndarray, weighted: np.ndarray, elasticity: float, before: np.ndarray
) -> np.ndarray:
    """Return the optimal marginal rates of K brackets, [K], at most 1.

    tau = (1 - G) / (1 - G + a e) with G = weighted / taxed, the mean welfare weight of the money taxed in the bracket,
    and a = earned / taxed. In the top bracket, incomes z_m on average above the edge z*, a = z_m / (z_m - z*) is the
    Pareto parameter of Saez (2001), equation 9, without income effects. For lower brackets this is his perturbation
    argument for the rate of an interval: those above pay more as well, and only those in it respond.

    Args:
        earned, taxed, weighted: [K] each (`AMOUNTS`).
        elasticity: of income to the net-of-tax rate, > 0.
        before: rates of brackets into which no income falls, [K].
    """
    gain = taxed - weighted
    cost = elasticity * earned
    rates = np.divide(gain, gain + cost, out=np.ones_like(gain), where=gain + cost > 0)
    # Where the rich are worth more than average the formula is negative or has a pole: nothing is to be taken.
    rates = np.where(gain <= 0, 0.0, rates)
    return np.where(taxed > 0, rates, before)


def estimated_elasticity(log_net_of_tax: np.ndarray, log_income: np.ndarray) -> float | None:
    """Return the slope of log mean income over log (1 - mean marginal rate), [n] each; None if rates do not differ.

    Least squares over earlier proposals, as Zheng et al. (2020) estimate it.
    """
    spread = log_net_of_tax - log_net_of_tax.mean()
    variance = float(spread @ spread)
    if variance < 1e-8:
        return None
    return float(np.clip(spread @ log_income / variance, *ELASTICITIES))


class SaezPrincipal:
    """Proposes the rates of a bracketed tax that Saez's formula (2001) computes from what the last rates led to.

    First come flat rates, evenly spaced from the lower bounds to 60 % of the upper ones, from which the elasticity is
    estimated. Then each proposal goes from the last towards the formula's rates, because incomes change with them.

    Args:
        spec: of the environment, with the metrics `AMOUNTS` of each bracket and no contexts.
        elasticity: of income to the net-of-tax rate; None: estimated from all proposals so far.
        explore: flat rates that are tried first; None: 1 with a given elasticity, else 4.
        step: share of the way to the formula's rates that a proposal goes, in (0, 1].

    Raises:
        ConfigError: the environment does not tell these metrics, or has contexts; `explore` is too small.
    """

    parallel = False

    def __init__(
        self,
        spec: EnvSpec,
        elasticity: PositiveFloat | None = None,
        explore: PositiveInt | None = None,
        step: UnitInterval = 0.5,
    ) -> None:
        self.space = spec.proposals
        names = [f"{name}_{k + 1}" for name in AMOUNTS for k in range(self.space.dim)]
        missing = [name for name in names if name not in spec.told]
        if missing or self.space.contexts:
            why = f"tells no metric {missing[0]!r}" if missing else "has contexts"
            raise Incompatible(
                Misfit.ONE_GAME,
                f"principal=saez computes rates from the incomes in each tax bracket, and env={spec.name} {why}; use "
                "env=tax_economy, or another principal",
            )
        needed = 2 if elasticity is None else 1
        self.explore = explore or (4 if elasticity is None else 1)
        if self.explore < needed:
            raise ConfigError(
                f"principal.explore={explore} leaves nothing to estimate an elasticity from: at least {needed}, or "
                "give principal.elasticity"
            )
        if step == 0:
            raise ConfigError("principal.step=0 never leaves the first rates; use a number in (0, 1]")
        self.elasticity, self.step = elasticity, step
        self.asked = 0
        self.rates = self._flat(0)  # the last proposal, [K]
        self.target = self.rates  # the formula's rates for the last outcome, [K]
        self.seen: list[list[float]] = []  # of each outcome: log (1 - mean marginal rate), log mean income

    def _flat(self, index: int) -> np.ndarray:
        share = HIGHEST_TRIED * index / max(self.explore - 1, 1)
        return self.space.rounded(self.space.low + share * (self.space.high - self.space.low))

    def ask(self, context: int | None = None, n: int = 1) -> np.ndarray:
        self.space.row(context)
        if self.asked < self.explore:
            self.rates = self._flat(self.asked)
        else:
            self.rates = self.space.rounded(self.rates + self.step * (self.target - self.rates))
        self.asked += 1
        return np.tile(self.rates, (n, 1))

    def tell(self, outcomes: Sequence[Outcome]) -> dict[str, float]:
        """Learn from outcomes; return principal/elasticity, the elasticity that the next rates are computed with, and
        principal/distance, the largest difference between the formula's rates and the last ones."""
        for outcome in outcomes:
            amounts = self._amounts(outcome.summaries)
            income = float(amounts[0].sum())
            # Without any income there is nothing that the next rates could follow from.
            if income > 0:
                marginal = float(amounts[0] @ outcome.vector) / income
                self.seen.append([float(np.log(max(1.0 - marginal, 1e-6))), float(np.log(income))])
                earned, taxed, weighted = amounts
                formula = saez_rates(earned, taxed, weighted, self.current_elasticity, outcome.vector)
                self.target = self.space.rounded(formula)
        distance = float(np.abs(self.target - self.rates).max())
        return {"principal/elasticity": self.current_elasticity, "principal/distance": distance}

    def recommend(self, context: int | None, n: int, estimates: PooledEstimates) -> np.ndarray:
        """Return the formula's rates for the last outcome, [1, K]; [0, K] before the first outcome with income."""
        self.space.row(context)
        first = [self.target] if self.seen else []
        return np.array(first[:n], dtype=np.float64).reshape(-1, self.space.dim)

    @property
    def current_elasticity(self) -> float:
        """The given elasticity, or the estimate; before two different proposals 0.5, which decides nothing yet."""
        if self.elasticity is not None:
            return self.elasticity
        found = estimated_elasticity(*np.array(self.seen).T) if len(self.seen) > 1 else None
        return 0.5 if found is None else found

    def _amounts(self, summaries: Mapping[str, float]) -> np.ndarray:
        """Return `AMOUNTS`, [3, K]."""
        return np.array([[summaries[f"{name}_{k + 1}"] for k in range(self.space.dim)] for name in AMOUNTS])

    def state_dict(self) -> State:
        return {
            "asked": self.asked,
            "rates": self.rates.copy(),
            "target": self.target.copy(),
            "seen": [list(pair) for pair in self.seen],
        }

    def load_state_dict(self, state: State) -> None:
        self.asked = state["asked"]
        self.rates, self.target = np.array(state["rates"]), np.array(state["target"])
        self.seen = [list(pair) for pair in state["seen"]]
