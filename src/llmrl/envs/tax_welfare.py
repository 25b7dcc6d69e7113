"""Social welfare of the tax economy, the objective of a planner, after taxes and transfers."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np

from llmrl.core.welfare_measures import Objective, SocietyEpisodes, gini
from llmrl.envs.tax_citizens import Citizens, yearly_income

Welfare = Literal["inverse_income", "inverse_wage", "utilitarian", "lowest", "equality_productivity"]
SOCIAL_WELFARE = "social_welfare"
"""Key of `EnvSpec.metrics` that the objective reads."""

_AFTER = ", in each year and after taxes and transfers; of that the mean over the years"
_WEIGHTED = (
    "Your payoff is a weighted mean of the {{n_agents}} workers' utilities of a year, after taxes and transfers: the "
    "weight of a worker is inversely proportional to {}, and weights have a mean of 1. So the poor count most. It is "
    "averaged over the years of an episode."
)
_FORMULAS: dict[Welfare, tuple[str, str, str]] = {
    "inverse_income": (
        "weighted mean utility, weights proportional to 1 / income before taxes" + _AFTER,
        "Zheng et al. 2020 (the AI Economist); Karten et al. 2025, without their weights' normalization",
        _WEIGHTED.format("its income before taxes"),
    ),
    "inverse_wage": (
        "weighted mean utility, weights proportional to 1 / wage" + _AFTER,
        "",
        _WEIGHTED.format("its wage, which does not depend on what it does"),
    ),
    "utilitarian": (
        "mean utility" + _AFTER,
        "",
        "Your payoff is the mean of the {n_agents} workers' utilities of a year, after taxes and transfers, averaged "
        "over the years of an episode.",
    ),
    "lowest": (
        "lowest utility" + _AFTER,
        "Rawls's maximin",
        "Your payoff is the utility of a year of the worker with the lowest one, after taxes and transfers, averaged "
        "over the years of an episode. What the others have does not count.",
    ),
    "equality_productivity": (
        "(1 - Gini of net incomes) x mean income before taxes" + _AFTER,
        "Zheng et al. 2020 (the AI Economist), there with total income",
        "Your payoff is equality times productivity in a year, averaged over the years of an episode. Equality is 1 "
        "less the Gini coefficient of incomes after taxes and transfers: 1 if all are equal, 0 if one has everything. "
        "Productivity is the mean income before taxes.",
    ),
}


def welfare_objective(kind: Welfare) -> Objective:
    """Return the objective of a planner, which reads the metric `social_welfare` of an episode."""
    assert set(_FORMULAS) == set(get_args(Welfare))
    formula, source, payoff = _FORMULAS[kind]
    return Objective(name=f"{kind}_welfare", of=_measure, formula=formula, source=source, payoff=payoff)


def _measure(collected: SocietyEpisodes) -> np.ndarray | None:
    return collected.metrics.get(SOCIAL_WELFARE)


def social_welfare(
    kind: Welfare, citizens: Citizens, wage: np.ndarray, income: np.ndarray, net: np.ndarray, utility: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the welfare of a year, [n_envs], and the value of a dollar more for each worker, [n_envs, n_agents].

    These values, the social marginal welfare weights (g in Saez 2001), have a mean of 1 in each game. The weights of
    utilities are treated as constant. The welfare `equality_productivity` is not a sum of utilities; its weights are
    those of `inverse_income`.

    Args:
        kind: the measure.
        citizens: preferences of the workers.
        wage: dollars an hour, [n_envs, n_agents].
        income: thousand dollars a year before taxes, [n_envs, n_agents].
        net: thousand dollars a year after taxes and transfer, [n_envs, n_agents].
        utility: utility of the year, [n_envs, n_agents].
    """
    weight = np.ones_like(utility)
    if kind in ("inverse_income", "equality_productivity"):
        # A worker who does not work is weighted as if it worked the minimum of hours.
        weight = 1.0 / np.maximum(income, yearly_income(wage, citizens.hours[1]))
    elif kind == "inverse_wage":
        weight = 1.0 / wage
    elif kind == "lowest":
        weight = (utility == utility.min(-1, keepdims=True)).astype(np.float64)
    weight = weight / weight.mean(-1, keepdims=True)
    equal = kind == "equality_productivity"
    welfare = (1.0 - gini(net)) * income.mean(-1) if equal else (weight * utility).mean(-1)
    worth = weight * citizens.marginal(net)
    return welfare, worth / worth.mean(-1, keepdims=True)
