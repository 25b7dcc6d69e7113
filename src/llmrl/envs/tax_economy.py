"""A tax economy: workers choose their hours, a planner sets the marginal rates of a bracketed income tax.

Rules follow the LLM Economist (Karten et al. 2025, arXiv 2507.15815), whose planner, workers and rebates continue the
AI Economist (Zheng et al. 2020, arXiv 2004.13332). Differences are in docs/tax_economy.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveFloat, PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec, Parameter, ParameterSpace
from llmrl.core.welfare_measures import gini
from llmrl.envs.env_errors import guarded
from llmrl.envs.tax_citizens import FULL_TIME, MOST_HOURS, Citizens, Wages, income_of
from llmrl.envs.tax_economy_text import action_names, game_text, spans, told
from llmrl.envs.tax_schedules import bracket_of, checked_edges, in_brackets
from llmrl.envs.tax_welfare import SOCIAL_WELFARE, Welfare, objective, social_welfare

Choices = Annotated[int, Ge(2)]
AboveOne = Annotated[float, Gt(1)]
TaxChannel = Literal["vector", "text"]

VECTOR = (
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
"""Entries of the channel `vector`. Wage is its logarithm relative to the geometric mean, hours are shares of 100, money
is log(1 + x / income of full-time work at that wage), `share_of_...` are in [0, 1)."""

_BAR, _GAP, _HEIGHT, _MARGIN = 14, 4, 160, 8  # pixels
_PAPER, _EARNED, _NET = (238, 236, 228), (120, 150, 190), (70, 140, 90)


class TaxEconomy:
    """A vectorised environment of `n_envs` economies with `n_agents` workers each.

    **World.** A worker has a wage, drawn for each episode (`skills=drawn`), or that of its quantile
    (`skills=quantiles`). An episode has `years` years of `steps_per_year` steps, in each of which workers choose
    hours.

    **Actions.** Weekly hours, `n_hours` choices evenly spaced from 0 to 100.

    **Money.** Income of a year = wage x hours x 52 weeks. At its end the tax of each worker is computed from the
    marginal rates of the brackets; all taxes are paid back as equal transfers. Net income = income - tax + transfer.

    **Reward.** In each step minus the disutility of its work; at the end of a year the utility of net income is added
    (`llmrl.envs.tax_citizens.Citizens`). Before the mechanism: the same with income in place of net income.

    **Mechanism.** A marginal rate in [0, `max_rate`] for each bracket. With `eta` = 0 rewards are linear in rates.

    **Objective.** `welfare` after taxes and transfers. Measures of `llmrl.core.welfare_measures` are of rewards before
    taxes.

    **Observation.** `vector` [n_envs, n_agents, 9] float32 (`VECTOR`), `text` (JSON), `mechanism`
    [n_envs, n_agents, K] float32 if the rates are shown.

    **End.** Truncated after `years` x `steps_per_year` steps; no other end.

    Args:
        seeds: the environment's node of the seed tree.
        n_envs: games in lock step.
        n_agents: workers per game.
        years: tax years per episode.
        steps_per_year: choices of hours per year.
        n_hours: choices of weekly hours.
        brackets: lower edges of the tax brackets, thousand dollars a year, starting at 0.
        max_rate: upper bound of each marginal rate, in (0, 1].
        eta: relative risk aversion of income; 0: linear utility.
        psi: disutility of a year of full-time work; None: such that the geometric mean wage works 40 hours without
            taxes.
        delta: exponent of labour in its disutility.
        mean_wage: geometric mean of wages, dollars an hour.
        wage_sigma: standard deviation of the normal part of log wages.
        wage_tail: exponent of the Pareto part of wages; None: lognormal wages.
        skills: whether wages are drawn for each episode, or the quantiles of their distribution.
        welfare: the planner's objective.
        show_mechanism: whether workers observe the rates.
        observe: channels that workers observe.

    Attributes:
        place: (i, n): the first game draws the numbers of game i of n (`llmrl.loops.independent_games.OneGame`).

    Raises:
        ConfigError: parameters that contradict each other.
    """

    spec: EnvSpec
    place = (0, 1)

    @staticmethod
    def plays_in_rows(options: Mapping[str, Any]) -> bool:
        """Return whether, under these options, the games of several runs can be played as one batch."""
        return True

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int:
        """Return the size of one agent's observation of a step under these options, bytes."""
        shown = len(options.get("brackets", (0, 1, 2, 3))) if options.get("show_mechanism", True) else 0
        return 4 * (len(VECTOR) + shown) + (600 if "text" in options.get("observe", ()) else 0)

    def __init__(
        self,
        seeds: Seeds,
        n_envs: PositiveInt = 16,
        n_agents: PositiveInt = 20,
        years: PositiveInt = 3,
        steps_per_year: PositiveInt = 1,
        n_hours: Choices = 11,
        brackets: Sequence[float] = (0.0, 47.15, 100.525, 191.95),
        max_rate: PositiveFloat = 0.9,
        eta: NonNegativeFloat = 0.0,
        psi: PositiveFloat | None = None,
        delta: AboveOne = 3.5,
        mean_wage: PositiveFloat = 25.0,
        wage_sigma: NonNegativeFloat = 0.5,
        wage_tail: AboveOne | None = 3.0,
        skills: Literal["drawn", "quantiles"] = "drawn",
        welfare: Welfare = "inverse_income",
        show_mechanism: bool = True,
        observe: Annotated[Sequence[TaxChannel], MinLen(1)] = ("vector",),
    ) -> None:
        own = {name: value for name, value in locals().items() if name not in ("self", "seeds", "n_envs")}
        self._resized = partial(TaxEconomy, seeds, **own)
        if max_rate > 1:
            raise ConfigError(f"max_rate={max_rate:g} takes more than there is; use a number in (0, 1]")
        edges = checked_edges(brackets)
        self._full_time = float(income_of(np.array(mean_wage), np.array(FULL_TIME)))
        if psi is None:
            psi = self._full_time ** (1.0 - eta) / delta
        self.citizens = Citizens(eta, psi, delta, n_hours, steps_per_year, edges)
        self._wages, self._drawn, self._mean_wage = (
            Wages(mean_wage, wage_sigma, wage_tail),
            skills == "drawn",
            mean_wage,
        )
        self._welfare: Welfare = welfare
        self._n_agents, self._years, self._horizon = n_agents, years, years * steps_per_year
        n_brackets = len(edges)
        channels = {"vector": Channel((len(VECTOR),), "float32")} if "vector" in observe else {}
        if "text" in observe:
            channels["text"] = Channel((), "object")
        if show_mechanism:
            channels["mechanism"] = Channel((n_brackets,), "float32", 0.0, max_rate)
        self._shows_rates = show_mechanism
        names = [SOCIAL_WELFARE, "utility", "income", "hours", "tax", "income_gini", "net_income_gini"]
        names += ["income_equality_productivity"]
        names += [f"{what}_{k + 1}" for what in ("workers", "earned", "taxed", "weighted") for k in range(n_brackets)]
        metrics: dict[str, Aggregate] = dict.fromkeys(names, "mean")
        text = game_text(self.citizens, n_agents, years, show_mechanism) if "text" in observe else None
        self.spec = EnvSpec(
            name="tax_economy",
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=n_hours,
            action_names=action_names(self.citizens),
            horizon=self._horizon,
            mechanism=_mechanism(edges, max_rate),
            objective=objective(welfare),
            metrics=metrics,
            # A meta-gradient looks at how behaviour changes the objective. Only here the rates do nothing else to it:
            # the mean of linear utilities does not depend on who has the money.
            has_reward_jacobian=eta == 0 and welfare == "utilitarian",
            text=text,
            facts={**self.citizens.facts, "mean_wage": mean_wage, "full_time_income": self._full_time},
        )
        self._groups = 1
        self._rngs = [seeds.numpy("wages")]  # one for each equal group of games
        shape = (n_envs, n_agents)
        self._rates = np.zeros((n_envs, n_brackets))
        self._wage = np.zeros(shape)  # 0: never reset
        self._time = np.zeros(n_envs, dtype=np.int64)
        self._ended = np.ones(n_envs, dtype=bool)
        self._earned, self._effort = np.zeros(shape), np.zeros(shape)  # income and disutility of work, this year so far
        self._hours = np.zeros(shape)  # of the last step
        self._last = np.zeros((5, *shape))  # income, tax, transfer, net income, utility of the last year

    def resized(self, n_envs: int) -> TaxEconomy:
        """Return the same environment with `n_envs` games, none of them begun."""
        return self._resized(n_envs=n_envs)

    def one_game(self) -> TaxEconomy:
        """Return the same environment with a single independent game."""
        return guarded(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: all); return every game's observation.

        `seed` reseeds the draw of wages; a sequence seeds equal groups of games separately (`VecEnv.reset`)."""
        if seed is not None:
            several = seed if isinstance(seed, Sequence) else [seed]
            self._rngs = [Seeds(each).numpy("wages") for each in several]
        chosen = np.ones(self.spec.n_envs, dtype=bool) if mask is None else np.asarray(mask, dtype=bool)
        self._wage[chosen] = self._draw()[chosen]
        for each in (self._time, self._earned, self._effort, self._hours):
            each[chosen] = 0
        self._last[:, chosen] = 0.0
        self._ended[chosen] = False
        return self._observe()

    def _draw(self) -> np.ndarray:
        """Return the wages of new episodes in all games, [n_envs, n_agents].

        They are drawn for every game, even those that go on, so that a game's draws do not depend on the other games.
        """
        n = self._n_agents
        if not self._drawn:
            return np.tile(self._wages.quantiles(n), (self.spec.n_envs, 1))
        groups = len(self._rngs)
        size = self.spec.games_per_group(groups if groups > 1 else self._groups)
        first = self.place[0]
        uniform = np.concatenate([rng.random((first + size, n, 3))[first:] for rng in self._rngs])
        return np.tile(self._wages.draw(uniform), (self.spec.n_envs // len(uniform), 1))

    def step(self, action: Array) -> Step:
        """Work the hours of `action` [n_envs, n_agents]. Games that have ended stay as they are.

        Raises:
            ValueError: wrong shape, an action does not exist, or a game was never reset.
        """
        shape, n_hours = self._wage.shape, self.citizens.n_hours
        chosen = np.asarray(action)
        if chosen.shape != shape:
            raise ValueError(f"actions must be {list(shape)}, got an array of shape {list(chosen.shape)}")
        if chosen.min() < 0 or chosen.max() >= n_hours:
            raise ValueError(f"actions must be 0 to {n_hours - 1}, got {chosen.min()} to {chosen.max()}")
        if (self._wage == 0).any():
            raise ValueError("reset() must be called before step()")
        active = ~self._ended
        going = active[:, None]
        hours = self.citizens.hours[chosen]
        steps = self.citizens.steps_per_year
        effort = self.citizens.of_work(hours) * going / steps
        self._hours = np.where(going, hours, self._hours)
        self._earned += income_of(self._wage, hours) * going / steps
        self._effort += effort
        self._time += active
        self._ended |= self._time >= self._horizon
        due = active & (self._time % steps == 0)  # the games whose year ends

        income, now = self._earned, due[:, None]
        parts = in_brackets(income, self.citizens.edges)
        tax = (parts * self._rates[:, None]).sum(-1)
        transfer = np.broadcast_to(tax.mean(-1, keepdims=True), shape)
        net = income - tax + transfer
        base = np.where(now, self.citizens.of_income(income), 0.0) - effort
        reward = np.where(now, self.citizens.of_income(net), 0.0) - effort
        utility = self.citizens.of_income(net) - self._effort
        year = {"income": income, "tax": tax, "net": net, "utility": utility}
        info = {name: x * due * steps for name, x in self._measures(parts, **year).items()}
        info["hours"] = hours.mean(-1) * active
        jacobian = (parts.mean(1, keepdims=True) - parts) * due[:, None, None]
        self._last = np.where(now, np.stack([income, tax, transfer, net, utility]), self._last)
        self._earned, self._effort = np.where(now, 0.0, self._earned), np.where(now, 0.0, self._effort)
        return Step(
            observation=self._observe(),
            reward=reward.astype(np.float32),
            base_reward=base.astype(np.float32),
            terminated=np.zeros(len(due), dtype=bool),
            truncated=self._ended.copy(),
            info={name: info[name].astype(np.float32) for name in self.spec.metrics},
            reward_jacobian=jacobian.astype(np.float32) if self.spec.has_reward_jacobian else None,
        )

    def _measures(
        self, parts: np.ndarray, income: np.ndarray, tax: np.ndarray, net: np.ndarray, utility: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the measures of a year but the hours, each [n_envs].

        Of a bracket k: the share of workers whose income ends in it, their income, the income taxed at its rate, and
        that weighted by what a dollar is worth to each worker (`social_welfare`); sums divided by all workers.
        """
        welfare, worth = social_welfare(self._welfare, self.citizens, self._wage, income, net, utility)
        unequal = gini(net)
        found = {
            SOCIAL_WELFARE: welfare,
            "utility": utility.mean(-1),
            "income": income.mean(-1),
            "tax": tax.mean(-1),
            "income_gini": gini(income),
            "net_income_gini": unequal,
            "income_equality_productivity": (1.0 - unequal) * income.mean(-1),
        }
        ends = bracket_of(income, self.citizens.edges)
        for name, amounts in (
            ("workers", ends),
            ("earned", ends * income[..., None]),
            ("taxed", parts),
            ("weighted", parts * worth[..., None]),
        ):
            found |= {f"{name}_{k + 1}": amounts[..., k].mean(1) for k in range(parts.shape[-1])}
        return found

    def pair_games(self, groups: int) -> None:
        """Draw the same wages in each of `groups` equal groups of games."""
        self.spec.games_per_group(groups)
        self._groups = groups

    def set_mechanism(self, values: Array) -> None:
        """Set the marginal rates of all games, [K], or of each game, [n_envs, K], for years that end from now on.

        Raises:
            ConfigError: a rate is out of bounds.
        """
        assert self.spec.mechanism is not None
        self._rates = np.broadcast_to(self.spec.mechanism.check(values), self._rates.shape).copy()

    def set_context(self, context: int | np.ndarray) -> None:
        """Raise ConfigError: there are no contexts."""
        raise ConfigError("tax_economy has no contexts")

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [176, 16 + n_agents * 36, 3] uint8.

        Two bars a worker, the poorest wage first: income of the last year (blue) and net income (green). The highest
        has the full height."""
        image = np.full((_HEIGHT + 2 * _MARGIN, 2 * _MARGIN + self._n_agents * 2 * (_BAR + _GAP), 3), _PAPER, np.uint8)
        order = np.argsort(self._wage[index], kind="stable")
        income, net = self._last[0, index][order], self._last[3, index][order]
        highest = max(float(np.maximum(income, net).max()), 1e-9)
        for i in range(2 * self._n_agents):
            of, colour = ((income, _EARNED), (net, _NET))[i % 2]
            tall = round(_HEIGHT * float(of[i // 2]) / highest)
            left = _MARGIN + i * (_BAR + _GAP)
            image[_MARGIN + _HEIGHT - tall : _MARGIN + _HEIGHT, left : left + _BAR] = colour
        return image

    def state_dict(self) -> State:
        return {
            "rngs": [rng.bit_generator.state for rng in self._rngs],
            **{name: getattr(self, f"_{name}").copy() for name in _STATE},
        }

    def load_state_dict(self, state: State) -> None:
        self._rngs = [np.random.default_rng() for _ in state["rngs"]]
        for rng, each in zip(self._rngs, state["rngs"], strict=True):
            rng.bit_generator.state = each
        for name in _STATE:
            setattr(self, f"_{name}", np.array(state[name]))

    def close(self) -> None:
        """Do nothing: there are no resources."""

    def _observe(self) -> Observation:
        n_envs, n_agents = self._wage.shape
        observation: Observation = {}
        if "vector" in self.spec.observation:
            observation["vector"] = self._vector()
        if "text" in self.spec.observation:
            texts = np.empty((n_envs, n_agents), dtype=object)
            for game in range(n_envs):
                texts[game] = [self._told(game, agent) for agent in range(n_agents)]
            observation["text"] = texts
        if self._shows_rates:
            observation["mechanism"] = np.repeat(self._rates.astype(np.float32)[:, None], n_agents, axis=1)
        return observation

    def _vector(self) -> np.ndarray:
        shape = self._wage.shape
        income, tax, transfer = self._last[:3]
        mean = np.broadcast_to(income.mean(-1, keepdims=True), shape)
        money = [np.log1p(x / self._full_time) for x in (income, tax, transfer, mean, self._earned)]
        steps = self.citizens.steps_per_year
        shares = (self._time % steps / steps, np.minimum(self._time / self._horizon, 1.0))
        wage = np.log(np.where(self._wage > 0, self._wage, self._mean_wage) / self._mean_wage)
        entries = [wage, self._hours / MOST_HOURS, *money, *(np.broadcast_to(x[:, None], shape) for x in shares)]
        return np.stack(entries, axis=-1).astype(np.float32)

    def _told(self, game: int, agent: int) -> str:
        """Return what a worker reads."""
        time, wage, earned, hours = (x[game] for x in (self._time, self._wage, self._earned, self._hours))
        last, mean = self._last[:, game, agent].tolist(), float(self._last[0, game].mean())
        rates = self._rates[game].tolist() if self._shows_rates else None
        own = float(wage[agent]), int(time), float(earned[agent]), float(hours[agent])
        return told(self.citizens, *own, last, mean, rates)


_STATE = ("rates", "wage", "time", "ended", "earned", "effort", "hours", "last")


def _mechanism(edges: Sequence[float], max_rate: float) -> ParameterSpace:
    parameters = tuple(
        Parameter(
            f"rate_{k + 1}",
            0.0,
            max_rate,
            "marginal tax rate",
            f"share taken of each dollar of a worker's income of a year that is in the bracket of {span} dollars",
            effect=f"{{value:.0%}} of what falls into {span} dollars a year",
            effect_scale=1.0,
        )
        for k, span in enumerate(spans(edges))
    )
    return ParameterSpace(
        "income_tax", parameters, sentence="Takes of each income {effects}; all workers share the revenue equally."
    )
