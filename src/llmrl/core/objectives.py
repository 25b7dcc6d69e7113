"""Measures of a society's welfare, and which of them a principal can be judged on: one entry each.

An entry says what the measure is called, how it is computed, how it is defined and where it comes from. An `Objective`
also says what a principal that reads is told of it. Whatever chooses, computes, reports or explains one reads it here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.records import Array

PRESENT = "players_present"
"""Entry of `EnvSpec.metrics` with the number of players in the game, where an engine can remove them."""


@dataclass(frozen=True)
class Collected:
    """What the agents of a society got in some finished episodes.

    Attributes:
        base: base returns, what the game pays each agent before the mechanism, [n_episodes, n_agents] float64.
        returns: the same after the mechanism.
        gains: steps in which each agent's base reward was positive, [n_episodes, n_agents].
        gain_times: sum of the indices (from 0) of these steps, [n_episodes, n_agents].
        metrics: entries of `EnvSpec.metrics`, summed up over each episode, each [n_episodes].
    """

    base: np.ndarray
    returns: np.ndarray
    gains: np.ndarray
    gain_times: np.ndarray
    metrics: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """A measure of welfare.

    Attributes:
        name: in options, in the names of metrics (`welfare/<name>`) and in the documentation.
        of: the measure of each episode, [n_episodes]; None where the games do not tell.
        formula: definition by the base returns x_1 ... x_n of an episode.
        source: publication it is taken from; empty: none.
        shown: what it is, in words, to a principal that is shown it beside its payoff.
    """

    name: str
    of: Callable[[Collected], np.ndarray | None]
    formula: str
    source: str = ""
    shown: str = ""


@dataclass(frozen=True, kw_only=True)
class Objective(Measure):
    """A measure that a principal can be judged on.

    Attributes:
        payoff: sentences that tell a principal what it is paid. `{n_agents}` and `{others}` (agents but one, at least
            1) stand for numbers; braces of its own are doubled.
        step: what the base rewards of a step [..., n_agents], an array or a tensor, add to the objective [...], where
            it is the sum of that over the steps of an episode; None where it is not.
    """

    payoff: str
    step: Callable[[Array], Array] | None = None

    def told(self, n_agents: int) -> str:
        """`payoff` in a society of so many agents."""
        return self.payoff.format(n_agents=n_agents, others=max(n_agents - 1, 1))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Check an option: an objective, or the name of one of `OBJECTIVES`."""
        from pydantic_core import PydanticCustomError, core_schema

        def chosen(value: object) -> Objective:
            if isinstance(value, str) and value in OBJECTIVES:
                return OBJECTIVES[value]
            if isinstance(value, Objective) and {m.name: m for m in MEASURES}.get(value.name, value) == value:
                return value
            why = f"the name {value.name} is taken" if isinstance(value, Objective) else "there is no such objective"
            known = ", ".join(OBJECTIVES)
            raise PydanticCustomError(
                "objective", "{why}; there are {known}, or one of your own", {"why": why, "known": known}
            )

        return core_schema.no_info_plain_validator_function(chosen)


def gini(returns: np.ndarray) -> np.ndarray:
    """Inequality of returns [..., n_agents]: 0 where all are equal, 1 where one agent has everything.

    sum_ij |x_i - x_j| / (2 (n - 1) sum_i |x_i|): the Gini coefficient times n / (n - 1) where no return is negative,
    and still within [0, 1] where some are (Raffinetti, Siletti & Vernizzi 2015). 0 where all returns are zero.
    """
    n = returns.shape[-1]
    differences = np.abs(returns[..., :, None] - returns[..., None, :]).sum((-1, -2))
    total = 2 * max(n - 1, 1) * np.abs(returns).sum(-1)
    result = np.divide(differences, total, out=np.zeros_like(total), where=total > 0)
    bounded: np.ndarray = np.minimum(result, 1.0)  # sums of many terms round
    return bounded


def _mean(rewards: Any) -> Any:
    return rewards.mean(-1)


def _sum(rewards: Any) -> Any:
    return rewards.sum(-1)


def _mean_return(collected: Collected) -> np.ndarray:
    return np.asarray(_mean(collected.base))


def _total_return(collected: Collected) -> np.ndarray:
    return np.asarray(_sum(collected.base))


def _lowest_return(collected: Collected) -> np.ndarray:
    return np.asarray(collected.base.min(-1))


def _equality(collected: Collected) -> np.ndarray:
    return 1.0 - gini(collected.base)


def _inequality(collected: Collected) -> np.ndarray:
    return 1.0 - _equality(collected)


def _equality_productivity(collected: Collected) -> np.ndarray:
    return np.asarray(_equality(collected) * _total_return(collected))


def _mean_gain_time(collected: Collected) -> np.ndarray:
    gained = collected.gains > 0
    times = np.where(gained, collected.gain_times / np.maximum(collected.gains, 1), 0.0)
    # Episodes count steps from 0, the measure counts them from 1.
    return np.asarray(times.sum(-1) / np.maximum(gained.sum(-1), 1) + gained.any(-1))


def _players_present(collected: Collected) -> np.ndarray | None:
    return collected.metrics.get(PRESENT)


def _spending(collected: Collected) -> np.ndarray:
    return np.asarray((collected.returns - collected.base).sum(-1))


_BASE_REWARD = "base reward: the reward of the game itself, before what your numbers add or take away"
_OVER_AGENTS = "Your payoff is the {} over the agents of the base reward each collects in an episode" + (
    _BASE_REWARD.removeprefix("base reward") + "."
)

MEASURES: tuple[Measure, ...] = (
    Objective(
        name="mean",
        of=_mean_return,
        formula="(x_1 + ... + x_n) / n",
        payoff=_OVER_AGENTS.format("mean"),
        step=_mean,
    ),
    Objective(
        name="sum",
        of=_total_return,
        formula="x_1 + ... + x_n",
        source="efficiency U of Perolat et al. 2017 is this per step",
        payoff=_OVER_AGENTS.format("sum"),
        step=_sum,
    ),
    Objective(
        name="minimum",
        of=_lowest_return,
        formula="the smallest x_i of the episode, whoever's it is",
        source="Rawls's maximin",
        payoff=f"Your payoff is what the agent that collects least in an episode collects, in {_BASE_REWARD}. It may "
        "be another agent in every episode. What the others collect does not count.",
    ),
    Measure(
        name="gini",
        of=_inequality,
        formula="sum over i, j of abs(x_i - x_j), divided by 2 (n - 1) (abs(x_1) + ... + abs(x_n)); 0 where all "
        "returns are 0",
        source="Raffinetti, Siletti & Vernizzi 2015",
    ),
    Measure(
        name="equality",
        of=_equality,
        formula="1 - `gini`",
        source="Zheng et al. 2020",
        shown="1 if all agents collect the same, 0 if one collects everything",
    ),
    Objective(
        name="equality_productivity",
        of=_equality_productivity,
        formula="`equality` x `sum`",
        source="Zheng et al. 2020 (the AI Economist)",
        payoff="Your payoff is equality times productivity, in each episode. Both are about what each agent collects "
        f"in {_BASE_REWARD}. Productivity is the sum of it over the agents. Equality is 1 - D / (2 * {{others}} * S), "
        "where D is the sum of the absolute differences over all ordered pairs of agents and S the sum of the absolute "
        "values: 1 if all agents collect the same (or nothing), 0 if one collects everything.",
    ),
    Objective(
        name="sustainability",
        of=_mean_gain_time,
        formula="mean step, counted from 1, in which an agent's base reward is positive; of that the mean over the "
        "agents that have such a step; 0 where nobody has",
        source="S of Perolat et al. 2017",
        shown="mean number of the step in which agents are rewarded, counted from 1; 0 if nobody is",
        payoff="Your payoff is sustainability: how late in an episode the game still rewards the agents. For each "
        "agent take the steps in which its base reward, the reward of the game itself before what your numbers add or "
        "take away, is positive, and the mean of the numbers of these steps, counted from 1; your payoff is the mean "
        "of that over the agents that have such a step, and 0 if none has. How large the rewards are does not count.",
    ),
    Measure(
        name="peace",
        of=_players_present,
        formula="mean number of players in the game; only on Melting Pot, where players can be zapped out "
        "(`players_present`)",
        source="P of Perolat et al. 2017",
    ),
    Measure(
        name="spending",
        of=_spending,
        formula="rewards after the mechanism minus base rewards, summed over agents and steps: what it pays out beyond "
        "what it takes",
        shown="what your numbers paid out beyond what they took, all agents together",
    ),
)
"""Every measure that is reported of a society: the registry."""
OBJECTIVES: Mapping[str, Objective] = {each.name: each for each in MEASURES if isinstance(each, Objective)}
"""Those a principal can be judged on, by the name that `design.objective` chooses."""
MEAN, SUM = OBJECTIVES["mean"], OBJECTIVES["sum"]
