"""The citizens of the tax economy: their wages, their preferences over income and work, and their welfare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal

import numpy as np

from llmrl.core.welfare_measures import Objective, SocietyEpisodes, gini

FULL_TIME_HOURS = 40.0
"""Unit of weekly hours in the disutility of labor."""
MAX_HOURS = 100.0
WEEKS_PER_YEAR = 52.0


def yearly_income(wage: np.ndarray, hours: np.ndarray) -> np.ndarray:
    """Return the income of a year in thousand dollars, for `wage` in dollars an hour and `hours` a week."""
    return np.asarray(wage * hours * (WEEKS_PER_YEAR / 1000.0))


@dataclass(frozen=True)
class Citizens:
    """Preferences over a year's net income c, thousand dollars, and weekly hours l.

    Utility is (c^(1 - eta) - 1) / (1 - eta) - psi (l / 40)^delta: log c - psi (l / 40)^delta for eta = 1. For eta = 0
    it is c - psi (l / 40)^delta, in thousand dollars. For eta > 0 net income below 1 counts as 1, as the isoelastic
    utility of nothing may be minus infinity.

    Attributes:
        eta: relative risk aversion of income, >= 0; 0: linear.
        psi: disutility of a year of full-time work, > 0.
        delta: exponent of labor, > 1. Without taxes and for eta = 0 the elasticity of income to the net-of-tax rate
            is 1 / (delta - 1).
        n_hours: number of choices of weekly hours, evenly spaced from 0 to 100, >= 2.
        steps_per_year: choices a year, >= 1.
        edges: lower edges of the tax brackets, thousand dollars a year, [K].
    """

    eta: float
    psi: float
    delta: float
    n_hours: int
    steps_per_year: int
    edges: tuple[float, ...]

    @property
    def hours(self) -> np.ndarray:
        """The weekly hours that can be chosen, [n_hours]."""
        return np.linspace(0.0, MAX_HOURS, self.n_hours)

    def income_utility(self, net: np.ndarray) -> np.ndarray:
        """Return the utility of a year's net income [...] in thousand dollars."""
        if self.eta == 0:
            return np.asarray(net, dtype=np.float64)
        income = np.maximum(net, 1.0)
        if self.eta == 1:
            return np.asarray(np.log(income))
        return np.asarray((income ** (1.0 - self.eta) - 1.0) / (1.0 - self.eta))

    def marginal_utility(self, net: np.ndarray) -> np.ndarray:
        """Return the derivative of `income_utility` from above, [...] > 0."""
        return np.asarray(np.maximum(net, 1.0) ** -self.eta)

    def work_disutility(self, hours: np.ndarray) -> np.ndarray:
        """Return the disutility of working `hours` a week for a year, [...] >= 0."""
        return np.asarray(self.psi * (np.asarray(hours) / FULL_TIME_HOURS) ** self.delta)

    def best_actions(
        self,
        wage: np.ndarray,
        rates: np.ndarray,
        transfer: np.ndarray,
        earned: np.ndarray | float = 0.0,
        n_remaining: np.ndarray | float | None = None,
    ) -> np.ndarray:
        """Return the index of the hours that maximize a worker's utility if worked for the rest of the year, [n].

        The transfer is taken as given, as the influence of one worker on it is small. Among equally good choices, the
        fewest hours are returned.

        Args:
            wage: dollars an hour, [n].
            rates: marginal tax rates, [n, K].
            transfer: expected transfer of the year, thousand dollars, [n].
            earned: income of the year so far, thousand dollars, [n].
            n_remaining: number of remaining steps of the year, this one included, [n]; None: all.
        """
        n_steps = self.steps_per_year if n_remaining is None else np.asarray(n_remaining, dtype=np.float64)[..., None]
        year_part = n_steps / self.steps_per_year
        income = np.asarray(earned)[..., None] + year_part * yearly_income(wage[..., None], self.hours)
        tax = (split_by_bracket(income, self.edges) * rates[..., None, :]).sum(-1)
        utility = self.income_utility(income - tax + transfer[..., None]) - year_part * self.work_disutility(self.hours)
        return np.asarray(utility.argmax(-1))

    @property
    def facts(self) -> dict[str, float | bool]:
        """All attributes as numbers, for `EnvSpec.facts`; `from_facts` reads them."""
        attributes = {name: getattr(self, name) for name in ("eta", "psi", "delta", "n_hours", "steps_per_year")}
        return attributes | {f"edge_{k + 1}": edge for k, edge in enumerate(self.edges)}

    @classmethod
    def from_facts(cls, facts: Mapping[str, float | bool]) -> Citizens:
        """Return the citizens whose `facts` these are."""
        edges = tuple(float(facts[name]) for name in facts if name.startswith("edge_"))
        eta, psi, delta = (float(facts[name]) for name in ("eta", "psi", "delta"))
        return cls(eta, psi, delta, int(facts["n_hours"]), int(facts["steps_per_year"]), edges)


@dataclass(frozen=True)
class Wages:
    """A distribution of wages with a heavy upper tail: lognormal times Pareto (Colombi 1990).

    log wage = log `mean` + `sigma` Z + (E - 1) / `tail`, Z standard normal and E standard exponential. Wages far above
    the mean follow a Pareto law with exponent `tail`.

    Attributes:
        mean: geometric mean, dollars an hour, > 0.
        sigma: standard deviation of the normal part of log wages, >= 0.
        tail: exponent of the Pareto part, > 1; None: there is none, and wages are lognormal.
    """

    mean: float
    sigma: float
    tail: float | None

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Return wages [...] for independent uniform numbers [..., 3] in [0, 1)."""
        normal = np.sqrt(-2.0 * np.log1p(-uniform[..., 0])) * np.cos(2.0 * np.pi * uniform[..., 1])  # Box and Muller
        return self._wages(normal, -np.log1p(-uniform[..., 2]))

    def quantiles(self, n: int) -> np.ndarray:
        """Return the (i + 1/2) / n quantiles, i = 0 ... n - 1, rising: a typical society of n workers."""
        normal, exponential = _normal_exponential_grid()
        return np.asarray(np.quantile(self._wages(normal, exponential), (np.arange(n) + 0.5) / n))

    def _wages(self, normal: np.ndarray, exponential: np.ndarray) -> np.ndarray:
        pareto_term = 0.0 if self.tail is None else (exponential - 1.0) / self.tail
        return np.asarray(self.mean * np.exp(self.sigma * normal + pareto_term))


@cache
def _normal_exponential_grid(n_points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Return midpoint quantiles of a standard normal and a standard exponential variable, all pairs, [points**2]."""
    midpoints = (np.arange(n_points) + 0.5) / n_points
    normal = np.array([NormalDist().inv_cdf(p) for p in midpoints])
    x, y = np.meshgrid(normal, -np.log1p(-midpoints), indexing="ij")
    return x.ravel(), y.ravel()


WelfareName = Literal["inverse_income", "inverse_wage", "utilitarian", "lowest", "equality_productivity"]
SOCIAL_WELFARE = "social_welfare"
"""Key of `EnvSpec.metrics` that the objective reads."""

_FORMULA_SUFFIX = ", in each year and after taxes and transfers; of that the mean over the years"
_WEIGHTED_PAYOFF = (
    "Your payoff is a weighted mean of the {{n_agents}} workers' utilities of a year, after taxes and transfers: the "
    "weight of a worker is inversely proportional to {}, and weights have a mean of 1. So the poor count most. It is "
    "averaged over the years of an episode."
)
_FORMULAS: dict[WelfareName, tuple[str, str, str]] = {
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


def welfare_objective(welfare: WelfareName) -> Objective:
    """Return the objective of a planner, which reads the metric `social_welfare` of an episode."""
    formula, source, payoff = _FORMULAS[welfare]
    return Objective(name=f"{welfare}_welfare", of=_read_welfare, formula=formula, source=source, payoff=payoff)


def _read_welfare(episodes: SocietyEpisodes) -> np.ndarray | None:
    return episodes.metrics.get(SOCIAL_WELFARE)


def social_welfare(
    welfare_name: WelfareName,
    citizens: Citizens,
    wage: np.ndarray,
    income: np.ndarray,
    net: np.ndarray,
    utility: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the welfare of a year, [n_envs], and the value of a dollar more for each worker, [n_envs, n_agents].

    These values, the social marginal welfare weights (g in Saez 2001), have a mean of 1 in each game. The weights of
    utilities are treated as constant. The welfare `equality_productivity` is not a sum of utilities; its weights are
    those of `inverse_income`.

    Args:
        welfare_name: the measure.
        citizens: preferences of the workers.
        wage: dollars an hour, [n_envs, n_agents].
        income: thousand dollars a year before taxes, [n_envs, n_agents].
        net: thousand dollars a year after taxes and transfer, [n_envs, n_agents].
        utility: utility of the year, [n_envs, n_agents].
    """
    weight = np.ones_like(utility)
    if welfare_name in ("inverse_income", "equality_productivity"):
        # A worker who does not work is weighted as if it worked the minimum of hours.
        weight = 1.0 / np.maximum(income, yearly_income(wage, citizens.hours[1]))
    elif welfare_name == "inverse_wage":
        weight = 1.0 / wage
    elif welfare_name == "lowest":
        weight = (utility == utility.min(-1, keepdims=True)).astype(np.float64)
    weight = weight / weight.mean(-1, keepdims=True)
    is_product = welfare_name == "equality_productivity"
    welfare = (1.0 - gini(net)) * income.mean(-1) if is_product else (weight * utility).mean(-1)
    dollar_values = weight * citizens.marginal_utility(net)
    return welfare, dollar_values / dollar_values.mean(-1, keepdims=True)


def split_by_bracket(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return the part of each income that falls into each of K brackets, [..., K]; parts add up to the income.

    `income` [...] >= 0 and the lower `edges` [K] have the same unit. A tax with marginal rates [K] is the sum of rate
    times part.
    """
    low = np.asarray(edges, dtype=np.float64)
    widths = np.append(np.diff(low), np.inf)
    bracket_income: np.ndarray = np.clip(np.asarray(income, dtype=np.float64)[..., None] - low, 0.0, widths)
    return bracket_income


def top_bracket_mask(income: np.ndarray, edges: Sequence[float]) -> np.ndarray:
    """Return whether each income ends in each of K brackets, [..., K] bool: exactly one is true.

    An income on an edge ends in the bracket below it, whose rate its last dollar was taxed at.
    """
    top_bracket_index = np.maximum(np.searchsorted(np.asarray(edges, dtype=np.float64), income, side="left") - 1, 0)
    return np.asarray(top_bracket_index[..., None] == np.arange(len(edges)))
