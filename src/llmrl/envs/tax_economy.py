"""A tax economy: workers choose their hours, a planner sets the marginal rates of a bracketed income tax.

Rules follow the LLM Economist (Karten et al. 2025, arXiv 2507.15815), which builds on the AI Economist (Zheng et al.
2020, arXiv 2004.13332). Differences are in docs/tax_economy.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Annotated, Any, Literal, Self

import numpy as np
from annotated_types import Ge, Gt, Interval, MinLen

from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvDescription, EnvSpec, Parameter, ParameterSpace
from llmrl.core.welfare_measures import gini
from llmrl.envs.array_games import ArrayGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanisms import validate_bracket_edges
from llmrl.envs.tax_citizens import (
    FULL_TIME_HOURS,
    MAX_HOURS,
    SOCIAL_WELFARE,
    EconomyRules,
    WageDistribution,
    WelfareName,
    build_welfare_objective,
    compute_social_welfare,
    compute_yearly_income,
    find_top_brackets,
    split_by_bracket,
)

IntAtLeastTwo = Annotated[int, Ge(2)]
FloatAboveOne = Annotated[float, Gt(1)]
TaxChannel = Literal["vector", "text"]

VECTOR_FIELDS = (
    "wage",
    "last_hours",
    "last_income",
    "last_tax",
    "last_transfer",
    "last_mean_income",
    "earned",
    "share_of_year",
    "share_of_episode",
)
"""Entries of the channel `vector`. `wage`: log(wage / geometric mean wage). `last_hours`: hours of the last step / 100.
`last_income`, `last_tax`, `last_transfer` of the worker and `last_mean_income` of all workers are of the last year,
`earned` is the worker's income of this year so far: amounts x of money are log(1 + x / income of full-time work at the
geometric mean wage). `share_of_year`, `share_of_episode`: elapsed share, 0 to 1."""

_METRICS = (
    *(SOCIAL_WELFARE, "utility", "income", "hours", "tax", "income_gini", "net_income_gini"),
    "income_equality_productivity",
)
_BRACKET_METRICS = ("workers", "earned", "taxed", "weighted")
_INCOME, _TAX, _TRANSFER, _NET_INCOME, _UTILITY = range(5)  # indices of the results of a year
_BAR_WIDTH, _GAP, _HEIGHT, _MARGIN = 14, 4, 160, 8  # sizes in frames, in pixels
_BACKGROUND_COLOR, _INCOME_COLOR, _NET_INCOME_COLOR = (238, 236, 228), (120, 150, 190), (70, 140, 90)


@dataclass(frozen=True)
class TaxEconomySettings:
    """Options of `TaxEconomy`; meanings, units and ranges are in `conf/env/tax_economy.yaml`."""

    n_envs: PositiveInt
    n_agents: PositiveInt
    years: PositiveInt
    steps_per_year: PositiveInt
    n_hours: IntAtLeastTwo  # number of choices of weekly hours
    brackets: Sequence[float]  # lower edges, thousand dollars per year
    max_rate: Annotated[float, Interval(gt=0, le=1)]
    eta: NonNegativeFloat  # relative risk aversion
    psi: PositiveFloat | None  # disutility of a year of full-time work
    delta: FloatAboveOne  # exponent of hours in the disutility of work
    mean_wage: PositiveFloat  # geometric mean, dollars per hour
    wage_sigma: NonNegativeFloat
    wage_tail: FloatAboveOne | None  # exponent of the Pareto part of wages
    skills: Literal["drawn", "quantiles"]
    welfare: WelfareName
    show_mechanism: bool
    observe: Annotated[Sequence[TaxChannel], MinLen(1)]


class TaxEconomy(ArrayGames):
    """A vectorized environment of `n_envs` parallel copies (games) of an economy with `n_agents` workers.

    **Wages.** The wage of a worker is sampled for each episode (`skills=drawn`), or is a quantile of the distribution
    of wages (`skills=quantiles`).

    **Actions.** In each step, workers choose weekly hours: `n_hours` choices, evenly spaced from 0 to 100. An episode
    has `years` years of `steps_per_year` steps.

    **Money.** Income of a year = wage x weekly hours x 52. At the end of a year, the tax of each worker is computed
    from the marginal rates of K brackets; the sum of all taxes is divided equally among workers as a transfer.
    Net income = income - tax + transfer.

    **Reward.** Minus the disutility of work in each step, plus the utility of net income at the end of a year
    (`llmrl.envs.tax_citizens.EconomyRules`). The reward before the mechanism contains income instead of net income.

    **Mechanism.** A marginal rate in [0, `max_rate`] for each bracket. With `eta` = 0 rewards are linear in rates.

    **Objective.** The planner maximizes `welfare`, computed after taxes and transfers, unlike the measures in
    `llmrl.core.welfare_measures`, which use rewards before taxes.

    **Observation.** `vector` [n_envs, n_agents, 9] float32 (`VECTOR_FIELDS`), `text` (JSON), `mechanism`
    [n_envs, n_agents, K] float32: the rates, with `show_mechanism`.

    **End.** Truncated after `years` x `steps_per_year` steps; no other end.

    Args:
        settings: options of the environment.
        seeds: seed tree of the environment.

    Raises:
        ConfigError: tax brackets are invalid.
    """

    _state_fields = ("_rngs", "_rates", "_wage", "_time", "_ended", "_earned", "_effort", "_hours", "_last")
    _stream_name = "wages"
    _mechanism_field = "_rates"

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Return the bytes of one agent's observation in a step, given the options; a text counts as 600 bytes."""
        n_mechanism_values = len(options["brackets"]) if options["show_mechanism"] else 0
        return 4 * (len(VECTOR_FIELDS) + n_mechanism_values) + (600 if "text" in options["observe"] else 0)

    def __init__(self, settings: TaxEconomySettings, seeds: Seeds) -> None:
        self.settings, self._seeds = settings, seeds
        edges = validate_bracket_edges(settings.brackets)
        n_envs, n_agents, n_brackets = settings.n_envs, settings.n_agents, len(edges)
        self._full_time_income = float(compute_yearly_income(np.array(settings.mean_wage), np.array(FULL_TIME_HOURS)))
        psi = self._full_time_income ** (1.0 - settings.eta) / settings.delta if settings.psi is None else settings.psi
        self.rules = EconomyRules(settings.eta, psi, settings.delta, settings.n_hours, settings.steps_per_year, edges)
        self._wage_distribution = WageDistribution(settings.mean_wage, settings.wage_sigma, settings.wage_tail)
        self._horizon = settings.years * settings.steps_per_year
        channels = {"vector": Channel((len(VECTOR_FIELDS),), "float32")} if "vector" in settings.observe else {}
        text = None
        if "text" in settings.observe:
            channels["text"] = Channel((), "object")
            text = describe_game(self.rules, n_agents, settings.years, settings.show_mechanism)
        if settings.show_mechanism:
            channels["mechanism"] = Channel((n_brackets,), "float32", 0.0, settings.max_rate)
        bracket_metrics = (f"{name}_{k + 1}" for name in _BRACKET_METRICS for k in range(n_brackets))
        metrics: dict[str, Aggregate] = dict.fromkeys([*_METRICS, *bracket_metrics], "mean")
        self.spec = EnvSpec(
            name="tax_economy",
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=settings.n_hours,
            action_names=tuple(f"{hours:g}_hours" for hours in self.rules.possible_hours),
            horizon=self._horizon,
            mechanism=_build_tax_space(edges, settings.max_rate),
            objective=build_welfare_objective(settings.welfare),
            metrics=metrics,
            # The meta-gradient covers only the effect of rates on the objective through behavior, so the Jacobian is
            # offered only where there is no direct effect: with linear utility and the utilitarian objective, taxes and
            # transfers cancel in the mean.
            has_reward_jacobian=settings.eta == 0 and settings.welfare == "utilitarian",
            text=text,
            facts={**self.rules.facts, "mean_wage": settings.mean_wage, "full_time_income": self._full_time_income},
        )
        self._reseed([(seeds, self._stream_name)])
        shape = (n_envs, n_agents)
        self._rates = np.zeros((n_envs, n_brackets))
        self._wage = np.zeros(shape)  # 0: the game was never reset
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)
        # Income (thousand dollars) and disutility of work in this year so far.
        self._earned, self._effort = np.zeros(shape), np.zeros(shape)
        self._hours = np.zeros(shape)  # hours of the last step
        self._last = np.zeros((5, *shape))  # results of the last year, indexed by `_INCOME` ... `_UTILITY`

    def resized(self, n_envs: int) -> Self:
        """Return a new environment with the same options and `n_envs` games, none of them reset yet."""
        return type(self)(replace(self.settings, n_envs=n_envs), self._seeds)

    def make_single_game(self) -> TaxEconomy:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(self.resized(1))

    @property
    def _started_mask(self) -> np.ndarray:
        return np.asarray(self._wage.all(axis=1))

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        if self.settings.skills == "quantiles":
            self._wage[reset_mask] = self._wage_distribution.quantiles(self.spec.n_agents)
        else:
            (uniform,) = self._sample(lambda rng, n: (rng.random((n, self.spec.n_agents, 3)),))
            self._wage[reset_mask] = self._wage_distribution.sample(uniform)[reset_mask]
        for array in (self._time, self._earned, self._effort, self._hours):
            array[reset_mask] = 0
        self._last[:, reset_mask] = 0.0
        self._ended[reset_mask] = False

    def step(self, action: Array) -> Step:
        """Advance by one step; `action` [n_envs, n_agents] chooses the hours. Games that have ended do not change.

        Raises:
            ValueError: the shape is wrong, an action does not exist, or a game was never reset.
        """
        actions, shape = self._check_actions(action), self._wage.shape
        active = ~self._ended
        active_column = active[:, None]
        hours = self.rules.possible_hours[actions]
        steps_per_year = self.rules.steps_per_year
        work_disutility = self.rules.work_disutility(hours) * active_column / steps_per_year
        self._hours = np.where(active_column, hours, self._hours)
        self._earned += compute_yearly_income(self._wage, hours) * active_column / steps_per_year
        self._effort += work_disutility
        self._time += active
        self._ended |= self._time >= self._horizon
        year_ends = active & (self._time % steps_per_year == 0)  # games whose year ends in this step

        income, year_ends_column = self._earned, year_ends[:, None]
        bracket_income = split_by_bracket(income, self.rules.edges)
        tax = (bracket_income * self._rates[:, None]).sum(-1)
        transfer = np.broadcast_to(tax.mean(-1, keepdims=True), shape)
        net_income = income - tax + transfer
        base_reward = np.where(year_ends_column, self.rules.income_utility(income), 0.0) - work_disutility
        reward = np.where(year_ends_column, self.rules.income_utility(net_income), 0.0) - work_disutility
        utility = self.rules.income_utility(net_income) - self._effort
        year_results = np.stack([income, tax, transfer, net_income, utility])
        year_metrics = self._compute_year_metrics(bracket_income, year_results)
        info = {name: x * year_ends * steps_per_year for name, x in year_metrics.items()}
        info["hours"] = hours.mean(-1) * active
        jacobian = (bracket_income.mean(1, keepdims=True) - bracket_income) * year_ends[:, None, None]
        self._last = np.where(year_ends_column, year_results, self._last)
        self._earned, self._effort = (np.where(year_ends_column, 0.0, x) for x in (self._earned, self._effort))
        return self._build_step(reward, base_reward, np.zeros(len(year_ends), dtype=bool), self._ended, info, jacobian)

    def _compute_year_metrics(self, bracket_income: np.ndarray, year_results: np.ndarray) -> dict[str, np.ndarray]:
        """Return the metrics of a year except the hours, each [n_envs].

        Metrics of bracket k, amounts per worker: `workers_k`: share of workers whose income ends in the bracket;
        `earned_k`: whole income of these workers; `taxed_k`: income that falls into the bracket; `weighted_k`: this
        income times the social marginal welfare weights (`compute_social_welfare`).

        Args:
            bracket_income: the part of each income in each bracket, [n_envs, n_agents, K].
            year_results: income, tax, transfer, net income and utility, [5, n_envs, n_agents].
        """
        income, tax, _, net_income, utility = year_results
        welfare, welfare_weights = compute_social_welfare(
            self.settings.welfare, self.rules, self._wage, income, net_income, utility
        )
        net_gini = gini(net_income)
        metrics = {
            SOCIAL_WELFARE: welfare,
            "utility": utility.mean(-1),
            "income": income.mean(-1),
            "tax": tax.mean(-1),
            "income_gini": gini(income),
            "net_income_gini": net_gini,
            "income_equality_productivity": (1.0 - net_gini) * income.mean(-1),
        }
        is_top_bracket = find_top_brackets(income, self.rules.edges)
        earned, weighted = is_top_bracket * income[..., None], bracket_income * welfare_weights[..., None]
        for name, amount in zip(_BRACKET_METRICS, (is_top_bracket, earned, bracket_income, weighted), strict=True):
            metrics |= {f"{name}_{k + 1}": amount[..., k].mean(1) for k in range(bracket_income.shape[-1])}
        return metrics

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [176, 16 + n_agents * 36, 3] uint8.

        Workers are in ascending order of wages. Each has two bars: last year's income (blue) and net income (green).
        The highest bar has the full height.
        """
        n_bars = 2 * self.spec.n_agents
        shape = (_HEIGHT + 2 * _MARGIN, 2 * _MARGIN + n_bars * (_BAR_WIDTH + _GAP), 3)
        image = np.full(shape, _BACKGROUND_COLOR, np.uint8)
        order = np.argsort(self._wage[index], kind="stable")
        income, net_income = self._last[_INCOME, index][order], self._last[_NET_INCOME, index][order]
        max_amount = max(float(np.maximum(income, net_income).max()), 1e-9)
        for i in range(n_bars):
            amounts, color = ((income, _INCOME_COLOR), (net_income, _NET_INCOME_COLOR))[i % 2]
            bar_height = round(_HEIGHT * float(amounts[i // 2]) / max_amount)
            x = _MARGIN + i * (_BAR_WIDTH + _GAP)
            image[_MARGIN + _HEIGHT - bar_height : _MARGIN + _HEIGHT, x : x + _BAR_WIDTH] = color
        return image

    def _observe(self) -> Observation:
        shape = self._wage.shape
        observation: Observation = {}
        if "vector" in self.spec.observation:
            income, tax, transfer = (self._last[i] for i in (_INCOME, _TAX, _TRANSFER))
            amounts = (income, tax, transfer, np.broadcast_to(income.mean(-1, keepdims=True), shape), self._earned)
            log_amounts = [np.log1p(x / self._full_time_income) for x in amounts]
            steps_per_year = self.rules.steps_per_year
            elapsed = (self._time % steps_per_year / steps_per_year, np.minimum(self._time / self._horizon, 1.0))
            mean_wage = self.settings.mean_wage
            wage = np.log(np.where(self._wage > 0, self._wage, mean_wage) / mean_wage)
            elapsed_fractions = (np.broadcast_to(x[:, None], shape) for x in elapsed)
            features = [wage, self._hours / MAX_HOURS, *log_amounts, *elapsed_fractions]
            observation["vector"] = np.stack(features, axis=-1).astype(np.float32)
        if "text" in self.spec.observation:
            texts = np.empty(shape, dtype=object)
            for game, agent in np.ndindex(*shape):
                texts[game, agent] = describe_observation(
                    self.rules,
                    float(self._wage[game, agent]),
                    int(self._time[game]),
                    float(self._earned[game, agent]),
                    float(self._hours[game, agent]),
                    self._last[:, game, agent].tolist(),
                    float(self._last[_INCOME, game].mean()),
                    self._rates[game].tolist() if self.settings.show_mechanism else None,
                )
            observation["text"] = texts
        if self.settings.show_mechanism:
            observation["mechanism"] = np.repeat(self._rates.astype(np.float32)[:, None], shape[1], axis=1)
        return observation


def _build_tax_space(edges: Sequence[float], max_rate: float) -> ParameterSpace:
    parameters = tuple(
        Parameter(
            name=f"rate_{k + 1}",
            low=0.0,
            high=max_rate,
            unit="marginal tax rate",
            description="share taken of each dollar of a worker's income of a year that is in the bracket of "
            f"{span} dollars",
            effect=f"{{value:.0%}} of what falls into {span} dollars a year",
        )
        for k, span in enumerate(describe_brackets(edges))
    )
    return ParameterSpace(
        "income_tax", parameters, sentence="Takes of each income {effects}; all workers share the revenue equally."
    )


_OBSERVATION_FIELDS = (
    ("hourly_wage", "what you earn an hour, dollars; it stays the same for the whole episode"),
    ("year", "which year it is, from 1"),
    ("step_of_year", "which part of the year you now choose your hours for, from 1; parts are equally long"),
    ("income_so_far_this_year", "what you earned in the parts of this year that are over, dollars"),
    ("last_hours", "hours a week you worked in the part before, or null"),
    ("last_year", "the year before, or null: your income, the tax_paid on it, the transfer_received, your net_income"),
    ("average_income_last_year", "mean income of all workers before taxes, dollars, or null"),
)


def describe_brackets(edges: Sequence[float]) -> list[str]:
    """Return each bracket in words, in dollars: `0 to 47,150`, ..., `191,950 or more`."""
    edge_texts = [f"{1000 * edge:,.0f}" for edge in edges]
    return [f"{low} to {high}" for low, high in pairwise(edge_texts)] + [f"{edge_texts[-1]} or more"]


def describe_game(rules: EconomyRules, n_agents: int, years: int, shows_rates: bool) -> EnvDescription:
    """Return the description of the game that workers read before it begins."""
    steps_per_year = rules.steps_per_year
    frequency = (
        "once a year" if steps_per_year == 1 else f"{steps_per_year} times a year, for a part of the year each time"
    )
    income_utility_text = "the net income in thousand dollars"
    if rules.eta > 0:
        utility_formula = "ln(c)" if rules.eta == 1 else f"(c^{1 - rules.eta:g} - 1) / {1 - rules.eta:g}"
        income_utility_text = (
            f"{utility_formula}, where c is the net income in thousand dollars (c below 1 counts as 1)"
        )
    disutility_formula = f"{rules.psi:.4g} * (hours / 40)^{rules.delta:g}"
    goal = (
        f"You are one of {n_agents} workers. You choose how many hours a week to work, {frequency}, for {years} years "
        "of 52 weeks. You earn your hourly wage for each hour. At the end of a year everybody's income of the year is "
        "taxed by brackets: of each dollar that falls into a bracket, that bracket's rate is taken. The brackets are, "
        f"in dollars a year: {'; '.join(describe_brackets(rules.edges))}. All taxes are then shared out equally: "
        "every worker receives the same transfer. Your net income is your income less your tax plus the transfer. "
        f"Your reward of a year is {income_utility_text}, less {disutility_formula} for a whole year of so many hours "
        "a week. Only your own rewards count for you, over all years."
    )
    observation_fields = list(_OBSERVATION_FIELDS)
    if shows_rates:
        observation_fields.append(("tax_rates", "the rate of each bracket, from 0 to 1, the lowest bracket first"))
    actions = ((f"{x:g}_hours", f"work {x:g} hours a week until you choose again") for x in rules.possible_hours)
    facts: dict[str, Any] = {"wage": 25.0, "time": steps_per_year, "earned": 0, "last_hours": 40, "mean_income": 60}
    rates, last_year = [0.1] * len(rules.edges), (52, 6, 9, 55, 40.1)
    example = describe_observation(rules, last_year=last_year, rates=rates, **facts)
    return EnvDescription(goal, tuple(observation_fields), tuple(actions), example=example)


def describe_observation(
    rules: EconomyRules,
    wage: float,
    time: int,
    earned: float,
    last_hours: float,
    last_year: Sequence[float],
    mean_income: float,
    rates: Sequence[float] | None,
) -> str:
    """Return the observation of one worker as JSON: yearly amounts in whole dollars, the wage in dollars and cents.

    Args:
        rules: rules of the economy.
        wage: wage, in dollars per hour.
        time: number of steps of the episode so far.
        earned: income of this year so far, in thousand dollars.
        last_hours: weekly hours in the previous step.
        last_year: income, tax, transfer, net income (in thousand dollars) and utility of the previous year.
        mean_income: mean income of all workers in the previous year, in thousand dollars.
        rates: marginal tax rates; None: they are not shown.
    """
    year, step_index = divmod(time, rules.steps_per_year)
    names = ("income", "tax_paid", "transfer_received", "net_income")
    amounts = {name: _to_dollars(x) for name, x in zip(names, last_year, strict=False)}
    facts: dict[str, object] = {
        "hourly_wage": round(wage, 2),
        "year": year + 1,
        "step_of_year": step_index + 1,
        "income_so_far_this_year": _to_dollars(earned),
        "last_hours": last_hours if time else None,
        "last_year": {**amounts, "utility": round(last_year[_UTILITY], 3)} if year else None,
        "average_income_last_year": _to_dollars(mean_income) if year else None,
    }
    if rates is not None:
        facts["tax_rates"] = [round(rate, 4) for rate in rates]
    return json.dumps(facts)


def _to_dollars(thousands: float) -> int:
    return round(1000 * thousands)
