"""The registry of welfare measures of a society, and of those that can be a principal's objective.

An entry has the measure's name, computation, formula and source. An `Objective` also has the texts for language-model
principals. All code that chooses, computes, reports or explains a measure uses this registry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.core.records import Array

PLAYERS_PRESENT = "players_present"
"""Entry of `EnvSpec.metrics` with the number of players in the game, for engines that can remove players."""


@dataclass(frozen=True)
class SocietyEpisodes:
    """Returns and metrics of finished episodes of a society.

    Attributes:
        base: base returns (before the mechanism), [n_episodes, n_agents] float64.
        returns: returns after the mechanism, [n_episodes, n_agents] float64.
        n_gain_steps: number of steps in which each agent's base reward was positive, [n_episodes, n_agents].
        gain_step_sums: sum of the indices (from 0) of these steps, [n_episodes, n_agents].
        metrics: entries of `EnvSpec.metrics`, aggregated over each episode, each [n_episodes].
    """

    base: np.ndarray
    returns: np.ndarray
    n_gain_steps: np.ndarray
    gain_step_sums: np.ndarray
    metrics: Mapping[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class WelfareMeasure:
    """A measure of welfare.

    Attributes:
        name: name in options, in metrics (`welfare/<name>`) and in the documentation.
        of: function that returns the measure of each episode, [n_episodes], or None if the games do not report it.
        formula: definition in terms of the base returns x_1 ... x_n of an episode.
        source: publication that defines the measure; empty: none.
        prompt_text: description for principals that receive the measure with their payoff; empty: they do not.
    """

    name: str
    of: Callable[[SocietyEpisodes], np.ndarray | None]
    formula: str
    source: str = ""
    prompt_text: str = ""


@dataclass(frozen=True, kw_only=True)
class Objective(WelfareMeasure):
    """A welfare measure that can be a principal's objective.

    Attributes:
        payoff: sentences that explain the payoff to a principal. `{n_agents}` and `{others}` (n_agents - 1, at least
            1) are placeholders for numbers; literal braces are doubled.
        step: function from the base rewards of a step [..., n_agents], an array or a tensor, to their contribution to
            the objective [...]; None if the objective is not a sum over the steps of an episode.
    """

    payoff: str
    step: Callable[[Array], Array] | None = None

    def format_payoff(self, n_agents: int) -> str:
        """Return `payoff` for a society of `n_agents` agents."""
        return self.payoff.format(n_agents=n_agents, others=max(n_agents - 1, 1))

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Return the schema that accepts an `Objective`, or the name of one of `OBJECTIVES`, as an option's value."""
        from pydantic_core import PydanticCustomError, core_schema

        def validate(value: object) -> Objective:
            if isinstance(value, str) and value in OBJECTIVES:
                return OBJECTIVES[value]
            if isinstance(value, Objective) and {m.name: m for m in MEASURES}.get(value.name, value) == value:
                return value
            reason = f"the name {value.name} is taken" if isinstance(value, Objective) else "there is no such objective"
            raise PydanticCustomError(
                "objective",
                "{why}; there are {known}, or one of your own, {own}",
                {"why": reason, "known": ", ".join(OBJECTIVES), "own": "{_target_: package.module.function}"},
            )

        return core_schema.no_info_plain_validator_function(validate)


def gini(returns: np.ndarray) -> np.ndarray:
    """Return the inequality of returns [..., n_agents], in [0, 1]: 0 if all are equal, 1 if one agent has everything.

    It is sum_ij |x_i - x_j| / (2 (n - 1) sum_i |x_i|). Without negative returns this is the Gini coefficient times
    n / (n - 1); with negative returns it stays in [0, 1] (Raffinetti, Siletti & Vernizzi 2015). 0 if all are zero.
    """
    n = returns.shape[-1]
    differences = np.abs(returns[..., :, None] - returns[..., None, :]).sum((-1, -2))
    total = 2 * max(n - 1, 1) * np.abs(returns).sum(-1)
    inequality = np.divide(differences, total, out=np.zeros_like(total), where=total > 0)
    return np.minimum(inequality, 1.0)  # rounding errors of long sums may exceed 1


def _mean(rewards: Any) -> Any:
    return rewards.mean(-1)


def _sum(rewards: Any) -> Any:
    return rewards.sum(-1)


def _mean_return(episodes: SocietyEpisodes) -> np.ndarray:
    return np.asarray(_mean(episodes.base))


def _total_return(episodes: SocietyEpisodes) -> np.ndarray:
    return np.asarray(_sum(episodes.base))


def _lowest_return(episodes: SocietyEpisodes) -> np.ndarray:
    return np.asarray(episodes.base.min(-1))


def _equality(episodes: SocietyEpisodes) -> np.ndarray:
    return 1.0 - gini(episodes.base)


def _inequality(episodes: SocietyEpisodes) -> np.ndarray:
    return 1.0 - _equality(episodes)


def _equality_productivity(episodes: SocietyEpisodes) -> np.ndarray:
    return np.asarray(_equality(episodes) * _total_return(episodes))


def _mean_gain_time(episodes: SocietyEpisodes) -> np.ndarray:
    has_gain = episodes.n_gain_steps > 0
    times = np.where(has_gain, episodes.gain_step_sums / np.maximum(episodes.n_gain_steps, 1), 0.0)
    # `gain_step_sums` counts steps from 0; `any` adds 1, because the measure counts them from 1.
    return np.asarray(times.sum(-1) / np.maximum(has_gain.sum(-1), 1) + has_gain.any(-1))


def _players_present(episodes: SocietyEpisodes) -> np.ndarray | None:
    return episodes.metrics.get(PLAYERS_PRESENT)


def _spending(episodes: SocietyEpisodes) -> np.ndarray:
    return np.asarray((episodes.returns - episodes.base).sum(-1))


_BASE_REWARD = "base reward: the reward of the game itself, before what your numbers add or take away"
_PAYOFF_TEMPLATE = "Your payoff is the {} over the agents of the base reward each collects in an episode" + (
    _BASE_REWARD.removeprefix("base reward") + "."
)

MEASURES: tuple[WelfareMeasure, ...] = (
    Objective(
        name="mean",
        of=_mean_return,
        formula="(x_1 + ... + x_n) / n",
        payoff=_PAYOFF_TEMPLATE.format("mean"),
        step=_mean,
    ),
    Objective(
        name="sum",
        of=_total_return,
        formula="x_1 + ... + x_n",
        source="efficiency U of Perolat et al. 2017 is this per step",
        payoff=_PAYOFF_TEMPLATE.format("sum"),
        step=_sum,
    ),
    Objective(
        name="minimum",
        of=_lowest_return,
        formula="the smallest x_i of the episode",
        source="Rawls's maximin",
        payoff=f"Your payoff is what the agent that collects least in an episode collects, in {_BASE_REWARD}. It may "
        "be another agent in every episode. What the others collect does not count.",
    ),
    WelfareMeasure(
        name="gini",
        of=_inequality,
        formula="sum over i, j of abs(x_i - x_j), divided by 2 (n - 1) (abs(x_1) + ... + abs(x_n)); 0 where all "
        "returns are 0",
        source="Raffinetti, Siletti & Vernizzi 2015",
    ),
    WelfareMeasure(
        name="equality",
        of=_equality,
        formula="1 - `gini`",
        source="Zheng et al. 2020",
        prompt_text="1 if all agents collect the same, 0 if one collects everything",
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
        prompt_text="mean number of the step in which agents are rewarded, counted from 1; 0 if nobody is",
        payoff="Your payoff is sustainability: how late in an episode the game still rewards the agents. For each "
        "agent take the steps in which its base reward, the reward of the game itself before what your numbers add or "
        "take away, is positive, and the mean of the numbers of these steps, counted from 1; your payoff is the mean "
        "of that over the agents that have such a step, and 0 if none has. How large the rewards are does not count.",
    ),
    WelfareMeasure(
        name="peace",
        of=_players_present,
        formula="mean number of players in the game; only on Melting Pot, where players can be zapped out "
        "(`players_present`)",
        source="P of Perolat et al. 2017",
    ),
    WelfareMeasure(
        name="spending",
        of=_spending,
        formula="rewards after the mechanism minus base rewards, summed over agents and steps: what it pays out beyond "
        "what it takes",
        prompt_text="what your numbers paid out beyond what they took, all agents together",
    ),
)
"""All measures that are reported for a society."""
OBJECTIVES: Mapping[str, Objective] = {measure.name: measure for measure in MEASURES if isinstance(measure, Objective)}
"""Measures that can be a principal's objective, by the name that `design.objective` chooses."""
MEAN, SUM = OBJECTIVES["mean"], OBJECTIVES["sum"]
