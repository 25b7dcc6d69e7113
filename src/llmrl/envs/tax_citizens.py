"""Rules of the tax economy: utility of income and work, wages, and social welfare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from llmrl.core.welfare_measures import Objective, SocietyEpisodes, gini

FULL_TIME_HOURS = 40.0
"""Weekly hours of full-time work, the unit of hours in the disutility of work."""
MAX_HOURS = 100.0  # maximum weekly hours
WEEKS_PER_YEAR = 52.0


def compute_yearly_income(wage: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """Return the income of a year in thousand dollars, for `wage` in dollars per hour and weekly `hours`."""
    return np.asarray(wage * hours * (WEEKS_PER_YEAR / 1000.0))


@dataclass(frozen=True)
class EconomyRules:
    """Constants of an economy: choices of hours, tax brackets, and the utility of all workers.

    The utility of a year with net income c, in thousand dollars, and weekly hours l is u(c) - psi (l / 40)^delta, with
    u(c) = (c^(1 - eta) - 1) / (1 - eta), u(c) = log c for eta = 1, and u(c) = c for eta = 0. For eta > 0, a net income
    below 1 counts as 1, because u(0) may be minus infinity.

    Attributes:
        eta: relative risk aversion of income, >= 0; 0: linear.
        psi: disutility of a year of full-time work, > 0.
        delta: exponent of hours, > 1. For eta = 0, the elasticity of income with respect to 1 - tax rate is
            1 / (delta - 1).
        n_hours: number of choices of weekly hours, evenly spaced from 0 to 100, >= 2.
        steps_per_year: number of choices per year, >= 1.
        edges: lower edges of the tax brackets, in thousand dollars per year, [K].
    """

    eta: float
    psi: float
    delta: float
    n_hours: int
    steps_per_year: int
    edges: tuple[float, ...]

    @property
    def possible_hours(self) -> np.ndarray:
        """The possible weekly hours, [n_hours]."""
        return np.linspace(0.0, MAX_HOURS, self.n_hours)

    def income_utility(self, net_income: np.ndarray) -> np.ndarray:
        """Return the utility of a year's net income [...] in thousand dollars."""
        if self.eta == 0:
            return np.asarray(net_income, dtype=np.float64)
        income = np.maximum(net_income, 1.0)
        if self.eta == 1:
            return np.asarray(np.log(income))
        return np.asarray((income ** (1.0 - self.eta) - 1.0) / (1.0 - self.eta))

    def marginal_utility(self, net_income: np.ndarray) -> np.ndarray:
        """Return the derivative of `income_utility`, [...] > 0; a net income below 1 counts as 1."""
        return np.asarray(np.maximum(net_income, 1.0) ** -self.eta)

    def work_disutility(self, hours: np.ndarray) -> np.ndarray:
        """Return the disutility of weekly `hours` for a year, [...] >= 0."""
        return np.asarray(self.psi * (np.asarray(hours) / FULL_TIME_HOURS) ** self.delta)

    def find_best_actions(
        self,
        wage: np.ndarray,
        rates: np.ndarray,
        transfer: np.ndarray,
        earned: np.ndarray | float = 0.0,
        n_remaining: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Return the indices [n] of the hours that maximize each worker's utility if chosen for the rest of the year.

        The effect of a worker's hours on the transfer is neglected. Among equally good choices, the fewest hours are
        returned.

        Args:
            wage: wages, in dollars per hour, [n].
            rates: marginal tax rates, [n, K].
            transfer: expected transfers of the year, in thousand dollars, [n].
            earned: incomes of the year so far, in thousand dollars, [n].
            n_remaining: number of remaining steps of the year, including this one, [n]; None: all steps of a year.
        """
        n_steps = self.steps_per_year if n_remaining is None else np.asarray(n_remaining, dtype=np.float64)[..., None]
        year_part = n_steps / self.steps_per_year
        income = np.asarray(earned)[..., None] + year_part * compute_yearly_income(wage[..., None], self.possible_hours)
        tax = (split_by_bracket(income, self.edges) * rates[..., None, :]).sum(-1)
        work_disutility = year_part * self.work_disutility(self.possible_hours)
        return np.asarray((self.income_utility(income - tax + transfer[..., None]) - work_disutility).argmax(-1))

    @property
    def facts(self) -> dict[str, float | bool]:
        """All attributes as numbers, for `EnvSpec.facts`; inverse of `from_facts`."""
        attributes = {name: getattr(self, name) for name in ("eta", "psi", "delta", "n_hours", "steps_per_year")}
        return attributes | {f"edge_{k + 1}": edge for k, edge in enumerate(self.edges)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, float | bool]) -> EconomyRules:
        """Return the rules with these `facts`."""
        edges = tuple(float(facts[name]) for name in facts if name.startswith("edge_"))
        eta, psi, delta = (float(facts[name]) for name in ("eta", "psi", "delta"))
        return cls(eta, psi, delta, int(facts["n_hours"]), int(facts["steps_per_year"]), edges)


@dataclass(frozen=True)
class WageDistribution:
    """Distribution of wages: a lognormal times a Pareto variable (Colombi 1990), which has a heavy upper tail.

    log wage = log `mean` + `sigma` Z + (E - 1) / `tail` with Z standard normal and E standard exponential. Wages far
    above the mean follow a Pareto law with exponent `tail`.

    Attributes:
        mean: geometric mean, in dollars per hour, > 0.
        sigma: standard deviation of the normal part of log wages, >= 0.
        tail: exponent of the Pareto part, > 1; None: there is none, and wages are lognormal.
    """

    mean: float
    sigma: float
    tail: float | None

    def sample(self, uniform: np.ndarray) -> np.ndarray:
        """Return random wages [...], given independent uniform random numbers [..., 3] in [0, 1)."""
        # Box-Muller transform
        normal = np.sqrt(-2.0 * np.log1p(-uniform[..., 0])) * np.cos(2.0 * np.pi * uniform[..., 1])
        return self._compute_wages(normal, -np.log1p(-uniform[..., 2]))

    def quantiles(self, n: int) -> np.ndarray:
        """Return the quantiles (i + 1/2) / n for i = 0 ... n - 1, ascending, as wages of n typical workers."""
        normal, exponential = _build_normal_exponential_grid()
        return np.asarray(np.quantile(self._compute_wages(normal, exponential), (np.arange(n) + 0.5) / n))

    def _compute_wages(self, normal: np.ndarray, exponential: np.ndarray) -> np.ndarray:
        pareto_term = 0.0 if self.tail is None else (exponential - 1.0) / self.tail
        return np.asarray(self.mean * np.exp(self.sigma * normal + pareto_term))


@cache
def _build_normal_exponential_grid(n_points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return all pairs of midpoint quantiles of a standard normal and an exponential variable, two [n_points²]."""
    midpoints = (np.arange(n_points) + 0.5) / n_points
    normal = np.array([NormalDist().inv_cdf(p) for p in midpoints])
    x, y = np.meshgrid(normal, -np.log1p(-midpoints), indexing="ij")
    return x.ravel(), y.ravel()


WelfareName = Literal["inverse_income", "inverse_wage", "utilitarian", "lowest", "equality_productivity"]
SOCIAL_WELFARE = "social_welfare"
"""Name of the metric with the objective's value."""

_FORMULA_SUFFIX = ", in each year and after taxes and transfers; of that the mean over the years"
_WEIGHTED_PAYOFF = (
    "Your payoff is a weighted mean of the {{n_agents}} workers' utilities of a year, after taxes and transfers: the "
    "weight of a worker is inversely proportional to {}, and weights have a mean of 1. So the poor count most. It is "
    "averaged over the years of an episode."
)
_WELFARE_TEXTS: dict[WelfareName, tuple[str, str, str]] = {  # formula, source, explanation of the payoff
    "inverse_income": (
        "weighted mean utility, weights proportional to 1 / income before taxes" + _FORMULA_SUFFIX,
        "Zheng et al. 2020 (the AI Economist); Karten et al. 2025, without their weights' normalization",
        _WEIGHTED_PAYOFF.format("its income before taxes"),
    ),
    "inverse_wage": (
        "weighted mean utility, weights proportional to 1 / wage" + _FORMULA_SUFFIX,
        "",
        _WEIGHTED_PAYOFF.format("its wage, which does not depend on what it does"),
    ),
    "utilitarian": (
        "mean utility" + _FORMULA_SUFFIX,
        "",
        "Your payoff is the mean of the {n_agents} workers' utilities of a year, after taxes and transfers, averaged "
        "over the years of an episode.",
    ),
    "lowest": (
        "lowest utility" + _FORMULA_SUFFIX,
        "Rawls's maximin",
        "Your payoff is the utility of a year of the worker with the lowest one, after taxes and transfers, averaged "
        "over the years of an episode. What the others have does not count.",
    ),
    "equality_productivity": (
        "(1 - Gini of net incomes) x mean income before taxes" + _FORMULA_SUFFIX,
        "Zheng et al. 2020 (the AI Economist), there with total income",
        "Your payoff is equality times productivity in a year, averaged over the years of an episode. Equality is 1 "
        "less the Gini coefficient of incomes after taxes and transfers: 1 if all are equal, 0 if one has everything. "
        "Productivity is the mean income before taxes.",
    ),
}


def build_welfare_objective(welfare: WelfareName) -> Objective:
    """Return the objective of a planner, which reads the metric `social_welfare` of an episode."""
    formula, source, payoff = _WELFARE_TEXTS[welfare]
    return Objective(name=f"{welfare}_welfare", of=_read_welfare, formula=formula, source=source, payoff=payoff)


def _read_welfare(episodes: SocietyEpisodes) -> np.ndarray | None:
    return episodes.metrics.get(SOCIAL_WELFARE)


def compute_social_welfare(
    welfare_name: WelfareName,
    rules: EconomyRules,
    wage: np.ndarray,
    income: np.ndarray,
    net_income: np.ndarray,
    utility: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the welfare of a year, [n_envs], and the social marginal welfare weights, [n_envs, n_agents].

    A worker's weight is the social value of a dollar for the worker (g in Saez 2001); the mean is 1 in each game.
    Weights of utilities are treated as constants. `equality_productivity` is not a sum of utilities, so these weights
    are computed as for `inverse_income`.

    Args:
        welfare_name: the welfare measure.
        rules: rules of the economy.
        wage: wages, in dollars per hour, [n_envs, n_agents].
        income: incomes of the year before taxes, in thousand dollars, [n_envs, n_agents].
        net_income: incomes after taxes and transfer, in thousand dollars, [n_envs, n_agents].
        utility: utilities of the year, [n_envs, n_agents].
    """
    weight = np.ones_like(utility)
    if welfare_name in ("inverse_income", "equality_productivity"):
        # A worker without income gets the weight of one with the fewest hours above 0.
        weight = 1.0 / np.maximum(income, compute_yearly_income(wage, rules.possible_hours[1]))
    elif welfare_name == "inverse_wage":
        weight = 1.0 / wage
    elif welfare_name == "lowest":
        weight = (utility == utility.min(-1, keepdims=True)).astype(np.float64)
    weight = weight / weight.mean(-1, keepdims=True)
    is_product = welfare_name == "equality_productivity"
    welfare = (1.0 - gini(net_income)) * income.mean(-1) if is_product else (weight * utility).mean(-1)
    welfare_weights = weight * rules.marginal_utility(net_income)
    return welfare, welfare_weights / welfare_weights.mean(-1, keepdims=True)


def split_by_bracket(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return the part of each income in each of K brackets, [..., K]; the sum of the parts is the income.

    `income` [...] >= 0 and the lower `edges` [K] have the same unit. A tax with marginal rates [K] is the sum of rate
    times part.
    """
    low = np.asarray(edges, dtype=np.float64)
    return np.clip(np.asarray(income, dtype=np.float64)[..., None] - low, 0.0, np.append(np.diff(low), np.inf))


def find_top_brackets(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return whether each of K brackets is the highest one that an income reaches, [..., K] bool.

    An income equal to an edge does not reach the bracket above it.
    """
    top_bracket_index = np.maximum(np.searchsorted(np.asarray(edges, dtype=np.float64), income, side="left") - 1, 0)
    return np.asarray(top_bracket_index[..., None] == np.arange(len(edges)))
