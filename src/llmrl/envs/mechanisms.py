"""Mechanisms that a principal can impose on a society: a tax, or incentives. Environment-independent and batched.

Given the events of a step, rewards are linear in the values that the principal sets:

    reward[e, i] = base_reward[e, i] + sum_k reward_jacobian[e, i, k] * values[e, k]

A mechanism therefore only computes each player's base reward and the Jacobian, i.e. the player's exposure to each
value. The Jacobian is also the exact derivative that a meta-gradient needs.

Events are NumPy arrays or torch tensors. Results have the same type, float32, on the same device; no computation here
waits for that device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt
from llmrl.core.records import Array, State, to_numpy
from llmrl.core.spaces import Aggregate, Parameter, ParameterSpace
from llmrl.core.state_fields import StateFields
from llmrl.envs.compiled_mechanisms import compile_incentives, compile_tax


def _get_array_module(like: Array) -> Any:
    """Return the library of an array, `numpy` or `torch`, whose functions used here have the same names."""
    if isinstance(like, np.ndarray):
        return np
    import torch

    return torch


def _to_array_like(x: NDArray[Any], like: Array) -> Array:
    """Return a NumPy array as an array of the type of `like`, on its device."""
    if isinstance(like, np.ndarray):
        return x
    import torch

    # Memory that is not pinned is read before the call returns, and the call does not wait for the device.
    return torch.from_numpy(x).to(like.device, non_blocking=like.is_cuda)


class SocietyEvents(NamedTuple):
    """Events of one step of all games.

    Attributes:
        raw_reward: the environment's own reward, [n_envs, n_agents] float32.
        n_cleaned: number of dirt cells that each player cleaned, [n_envs, n_agents]; None: there is no dirt.
        is_present: whether each player could act, i.e. was not removed from the world, [n_envs, n_agents] bool, or
            float32 with 1 for true.
    """

    raw_reward: Array
    n_cleaned: Array | None
    is_present: Array


class Settlement(NamedTuple):
    """Rewards and metrics of one step under a mechanism.

    Attributes:
        base_reward: reward before the mechanism, on which welfare is measured, [n_envs, n_agents].
        reward: reward after the mechanism, [n_envs, n_agents].
        reward_jacobian: derivative of each player's reward by each of the d values, [n_envs, n_agents, d].
        metrics: the mechanism's `metrics`, each [n_envs].
        player_facts: the mechanism's `player_facts`, each [n_envs, n_agents].
    """

    base_reward: Array
    reward: Array
    reward_jacobian: Array
    metrics: Mapping[str, Array] = MappingProxyType({})
    player_facts: Mapping[str, Array] = MappingProxyType({})


def apply_payments(base_reward: Array, reward_jacobian: Array, values: Array) -> Array:
    """Return the rewards after a mechanism, [n_envs, n_agents]; arguments as in `Settlement` and `Mechanism.settle`."""
    return base_reward + (reward_jacobian * values[:, None, :]).sum(-1)


RAW_REWARD_TEXT = "an apple 1"
"""Base reward in words, unless a mechanism replaces it."""


class Mechanism(StateFields, ABC):
    """Base class of rules that turn events into rewards. By default a mechanism has no memory.

    Attributes:
        space: space of the values that a principal sets.
        metrics: per-step metrics that it reports, with their aggregation over an episode.
        details: metrics that are hidden from principals (`EnvSpec.details`).
        needs_dirt: whether it pays for cleaning, and so needs an environment with dirt.
        facts: facts for prompts in addition to the parameters' descriptions (`EnvSpec.facts`).
        base_reward_text: reward of an agent before the mechanism, in words.
        rule_text: sentence for players that holds for all values: who gets the revenue, and who pays.
        player_facts: numbers that determine a player's payments in the next step: name -> description for that player.
    """

    space: ParameterSpace
    metrics: Mapping[str, Aggregate]
    details: tuple[str, ...] = ()
    needs_dirt: bool = False
    facts: Mapping[str, float | bool] = {}
    base_reward_text: str
    rule_text: str
    player_facts: Mapping[str, str] = {}

    @abstractmethod
    def settle(self, events: SocietyEvents, values: Array) -> Settlement:
        """Return the settlement of one step. Call it exactly once per step, because a mechanism may have a memory.

        `values` [n_envs, d] float32 are of the same type and on the same device as the events.
        """

    def reset(self, mask: NDArray[np.bool_]) -> None:
        """Clear the memory of the games where `mask` [n_envs] is true, which begin a new episode.

        `mask` is a NumPy array even if events are tensors.
        """


def charge_equally(payments: Array) -> Array:
    """Return payments (or their Jacobian), [n_envs, n_agents, ...], less the equal shares that all agents pay.

    Each agent is charged the mean payment of the step, so the sum of rewards does not depend on the values.
    """
    return payments - payments.mean(1)[:, None]


class BracketedTax(Mechanism):
    """A tax on rewards whose rate depends on recent income. The revenue is shared equally among the players.

    Income is the sum of raw rewards over this step and the `window` steps before it. It selects the bracket. Only the
    raw reward of this step is taxed: tax = `multiplier` * rate[bracket] * raw reward. Every player gets the mean tax
    back, so the sum of rewards does not change. With multiplier 4, a rate of 0.25 takes the whole reward, and a rate of
    1 takes four times the reward.

    Source: the Harvest experiment of "Large Legislative Models" (arXiv 2410.08345).

    Args:
        edges: lower income edge of each bracket, in apples, starting at 0 and increasing.
        window: steps before the current one that count as income.
        multiplier: tax per unit of rate and reward.

    Raises:
        ConfigError: the edges do not start at 0 or do not increase.
    """

    base_reward_text = RAW_REWARD_TEXT
    rule_text = "What is taken in a step is shared equally among all players, those who paid it included."

    def __init__(
        self, edges: Sequence[float] = (0.0, 3.0, 5.0), window: NonNegativeInt = 10, multiplier: NonNegativeFloat = 4.0
    ) -> None:
        self.edges = validate_bracket_edges(edges)
        self.window, self.multiplier = window, multiplier
        # `takes_all`: the rate that takes exactly the whole reward, if there is one in [0, 1].
        self.facts: Mapping[str, float | bool] = {"takes_all": 1 / multiplier} if multiplier >= 1 else {}
        self.space = ParameterSpace(
            "tax",
            tuple(self._build_rate_parameter(k) for k in range(len(self.edges))),
            sentence=f"Takes of each apple {{effects}} in the last {window + 1} steps; all agents share it equally.",
        )
        self._income_fact_name = name = f"apples_in_the_last_{window}_steps"
        self.player_facts: Mapping[str, str] = (
            {name: "apples that you ate in these steps; with those of the next step they decide which rate holds"}
            if window
            else {}
        )
        self.details = tuple(f"apples_bracket_{k + 1}" for k in range(len(self.edges)))
        self.metrics: Mapping[str, Aggregate] = {"tax_collected": "sum", **dict.fromkeys(self.details, "sum")}
        self._past_rewards: Array | None = None  # [window, n_envs, n_agents], newest first
        self._metric_names = tuple(self.metrics)
        self._edge_array = np.array([*self.edges, np.inf], dtype=np.float32)
        self._multiplier_array = np.array([multiplier], dtype=np.float32)
        self._device_edges: Array | None = None

    def _build_rate_parameter(self, k: int) -> Parameter:
        low, high = self.edges[k], self.edges[k + 1] if k + 1 < len(self.edges) else None
        income_range = f"{low:g} to under {high:g}" if high is not None else f"{low:g} or more"
        short_income_range = f"{low:g} or more" if high is None else f"under {high:g}" if low == 0 else income_range
        return Parameter(
            name=f"rate_{k + 1}",
            low=0.0,
            high=1.0,
            unit="tax rate",
            description=f"players who earned {income_range} apples in the last {self.window + 1} steps pay "
            f"{self.multiplier:g} times this rate of an apple for each apple they eat",
            effect=f"{{value:.0%}} from who ate {short_income_range}",
            effect_scale=self.multiplier,
        )

    def settle(self, events: SocietyEvents, values: Array) -> Settlement:
        raw_reward = events.raw_reward
        if isinstance(raw_reward, np.ndarray):
            return self._settle_arrays(raw_reward, values)
        import torch

        income = raw_reward
        if self.window:
            past = self._past_rewards
            if past is None:
                past = torch.stack([torch.zeros_like(raw_reward)] * self.window)
            elif isinstance(past, np.ndarray):  # loaded from a checkpoint
                past = torch.as_tensor(past).to(raw_reward.device)
            income = raw_reward + past.sum(0)
            self._past_rewards = torch.concatenate([raw_reward[None], past[:-1]])
        if self._device_edges is None:
            self._device_edges = _to_array_like(self._edge_array, raw_reward)
        low, high = self._device_edges[:-1], self._device_edges[1:]
        # Raw reward of each player in its own bracket, [n_envs, n_agents, K], and of all players in each, [n_envs, K].
        bracket_reward = raw_reward[..., None] * ((income[..., None] >= low) & (income[..., None] < high))
        bracket_apples = bracket_reward.sum(1)
        mean_apples = (bracket_apples / raw_reward.shape[1])[:, None]
        reward_jacobian = self.multiplier * mean_apples - self.multiplier * bracket_reward
        tax_collected = self.multiplier * (values * bracket_apples).sum(-1)
        reward = apply_payments(raw_reward, reward_jacobian, values)
        recent_income = None if self._past_rewards is None else self._past_rewards.sum(0)
        metrics = [tax_collected, *bracket_apples.T]
        return self._build_settlement(raw_reward, reward, reward_jacobian, metrics, recent_income)

    def _settle_arrays(self, raw_reward: NDArray[np.float32], values: Array) -> Settlement:
        """Return the result of `settle` for NumPy arrays, which a compiled function computes."""
        if self._past_rewards is None:
            self._past_rewards = np.zeros((self.window, *raw_reward.shape), np.float32)
        raw_reward = np.ascontiguousarray(raw_reward)
        reward, recent_income = np.empty_like(raw_reward), np.empty_like(raw_reward)
        reward_jacobian = np.empty((*raw_reward.shape, len(self.edges)), np.float32)
        metrics = np.empty((len(self._metric_names), len(raw_reward)), np.float32)
        compile_tax()(
            raw_reward,
            np.ascontiguousarray(values),
            self._edge_array,
            self._multiplier_array,
            self._past_rewards,
            reward,
            reward_jacobian,
            metrics,
            recent_income,
        )
        return self._build_settlement(raw_reward, reward, reward_jacobian, metrics, recent_income)

    def _build_settlement(
        self, raw_reward: Array, reward: Array, reward_jacobian: Array, metrics: Iterable[Array], recent_income: Array
    ) -> Settlement:
        """Return a settlement; `metrics` are in the order of `self.metrics`, each [n_envs]."""
        player_facts = {self._income_fact_name: recent_income} if self.window else {}
        return Settlement(
            raw_reward, reward, reward_jacobian, dict(zip(self._metric_names, metrics, strict=True)), player_facts
        )

    def reset(self, mask: NDArray[np.bool_]) -> None:
        if self._past_rewards is not None:
            reset_mask = _to_array_like(mask, self._past_rewards)[:, None]
            self._past_rewards = _get_array_module(self._past_rewards).where(reset_mask, 0.0, self._past_rewards)

    def state_dict(self) -> State:
        return {"past": None if self._past_rewards is None else to_numpy(self._past_rewards).copy()}

    def load_state_dict(self, state: State) -> None:
        past = state["past"]
        self._past_rewards = None if past is None else np.array(past, dtype=np.float32)  # a copy, changed in place


class RewardTax(Mechanism):
    """A tax on positive rewards at one rate. The revenue of a step is shared equally among the agents in the game.

    It needs no knowledge of the environment. The sum of rewards does not change; a rate of 1 makes the positive rewards
    of a step equal. Agents that have left neither pay nor receive.
    """

    base_reward_text = "what the game pays"
    rule_text = "What is taken in a step is shared equally among all players in the game, those who paid it included."
    metrics: Mapping[str, Aggregate] = {"tax_collected": "sum"}
    space = ParameterSpace(
        "tax",
        (
            Parameter(
                name="rate",
                low=0.0,
                high=1.0,
                unit="share of a reward",
                description="taken from each positive reward; all agents in the game share what is taken equally",
                effect="{value:.0%} of each positive reward",
            ),
        ),
        sentence="Takes {effects}; all agents share it equally.",
    )

    def settle(self, events: SocietyEvents, values: Array) -> Settlement:
        raw_reward = events.raw_reward
        xp = _get_array_module(raw_reward)
        is_present = xp.asarray(events.is_present, dtype=xp.float32)
        income = xp.where(raw_reward > 0, raw_reward, xp.zeros_like(raw_reward)) * is_present
        total_income, n_present = income.sum(-1), is_present.sum(-1)
        equal_share = total_income / xp.where(n_present > 0, n_present, xp.ones_like(n_present))
        jacobian = (equal_share[:, None] * is_present - income)[..., None]
        reward = apply_payments(raw_reward, jacobian, values)
        return Settlement(raw_reward, reward, jacobian, {"tax_collected": values[:, 0] * total_income})


EQUAL_CHARGE_SENTENCE = "What is paid in a step is charged equally to all players, those who are paid included."
"""`Mechanism.rule_text` of payments for which all agents pay."""

_PAID_EVENTS = {"eat": "each apple eaten", "clean": "each step of cleaning", "other": "each other step"}
"""Occasions of the payments of `Incentives`, in sentences for viewers."""


class Incentives(Mechanism):
    """Payments to every player at every step for eating, cleaning, or any other behavior.

    The base reward is rewritten first: `eat_reward` for an apple, `clean_reward` (a cost) for cleaning. The reward of
    other behavior, normally 0, is unchanged.

    Source: the Clean Up experiment of "Large Legislative Models" (arXiv 2410.08345), where clean_count is
    `exactly_one` and removed players are paid as `other`.

    Args:
        eat_reward: base reward for each apple eaten.
        clean_reward: base reward for a step in which dirt was cleaned.
        clean_count: steps that count as eating or cleaning. `any`: a positive raw reward, or at least one cleaned
            cell. `exactly_one`, as in the published code: a raw reward of exactly 1, or exactly one cleaned cell; a
            shot that cleans two or three cells counts as `other`.
        reward_removed: whether players who are out of the game after a zap are paid as `other`.
        max_incentive: upper bound of each of the three incentives, reward per step.
        budget_balanced: whether all players, removed ones included, pay for the payments of a step in equal shares, so
            that the sum of rewards does not change; else nobody pays (published).
    """

    needs_dirt = True
    details = ("incentives_eat", "incentives_clean", "incentives_other")
    metrics: Mapping[str, Aggregate] = {
        "incentives_paid": "sum",
        "paid_cleans": "sum",
        **dict.fromkeys(details, "sum"),
    }

    def __init__(
        self,
        eat_reward: float = 1.0,
        clean_reward: float = -1.0,
        clean_count: Literal["any", "exactly_one"] = "any",
        reward_removed: bool = False,
        max_incentive: NonNegativeFloat = 3.0,
        budget_balanced: bool = False,
    ) -> None:
        self.budget_balanced = budget_balanced
        self.rule_text = EQUAL_CHARGE_SENTENCE if budget_balanced else "No player pays for these payments."
        self.eat_reward, self.clean_reward = eat_reward, clean_reward
        self.requires_exactly_one, self.reward_removed = clean_count == "exactly_one", reward_removed
        self._base_amounts = np.array([eat_reward, clean_reward], dtype=np.float32)
        self._flag_array = np.array([self.requires_exactly_one, reward_removed, budget_balanced])
        self.base_reward_text = f"an apple {eat_reward:g}, a step of cleaning {clean_reward:g}"
        self.facts = {
            "pays_cleaning": True,
            "exactly_one": self.requires_exactly_one,
            "reward_removed": reward_removed,
            "budget_balanced": budget_balanced,
        }
        cells_text = "exactly one dirty cell" if self.requires_exactly_one else "at least one dirty cell"
        exception_texts = [
            *["cleaning two or three cells at once"] * self.requires_exactly_one,
            *["being out of the game after a zap"] * reward_removed,
        ]
        exceptions_text = f" (also {' and '.join(exception_texts)})" if exception_texts else ""
        occasion_texts = {
            "eat": f"eating an apple, which is worth {eat_reward:g} before payments",
            "clean": f"cleaning {cells_text}, which is worth {clean_reward:g} before payments",
            "other": f"doing anything else{exceptions_text}, which is worth 0 before payments",
        }
        self.space = ParameterSpace(
            "incentives",
            tuple(
                Parameter(
                    name=name,
                    low=0.0,
                    high=max_incentive,
                    unit="reward per step",
                    description=f"paid for a step spent {occasion_text}",
                    effect=f"{{value:.3g}} for {_PAID_EVENTS[name]}",
                )
                for name, occasion_text in occasion_texts.items()
            ),
            sentence="Pays agents {effects}" + ("; all agents pay for it equally." if budget_balanced else "."),
        )

    def settle(self, events: SocietyEvents, values: Array) -> Settlement:
        assert events.n_cleaned is not None  # see `needs_dirt`
        raw_reward, n_cleaned = events.raw_reward, events.n_cleaned
        if isinstance(raw_reward, np.ndarray):
            return self._settle_arrays(events, values)
        import torch

        has_eaten = (raw_reward == 1) if self.requires_exactly_one else (raw_reward > 0)
        is_clean_step = (n_cleaned == 1) if self.requires_exactly_one else (n_cleaned >= 1)
        has_cleaned = ~has_eaten & (raw_reward == 0) & is_clean_step
        is_other = ~has_eaten & ~has_cleaned
        base_reward = has_eaten * raw_reward * self.eat_reward + has_cleaned * self.clean_reward + is_other * raw_reward
        if not self.reward_removed:
            is_other = is_other & (events.is_present != 0)
        reward_jacobian = torch.stack([has_eaten, has_cleaned, is_other], -1).to(torch.float32)
        behavior_counts = reward_jacobian.sum(1)
        payments = behavior_counts * values
        if self.budget_balanced:
            reward_jacobian = charge_equally(reward_jacobian)
        reward = apply_payments(base_reward, reward_jacobian, values)
        metrics = payments.sum(-1), behavior_counts[:, 1], *payments.T
        return Settlement(base_reward, reward, reward_jacobian, dict(zip(self.metrics, metrics, strict=True)))

    def _settle_arrays(self, events: SocietyEvents, values: Array) -> Settlement:
        """Return the result of `settle` for NumPy arrays, which a compiled function computes."""
        raw_reward, n_cleaned = np.ascontiguousarray(events.raw_reward), np.ascontiguousarray(events.n_cleaned)
        is_present = np.ascontiguousarray(events.is_present, dtype=np.float32)
        base_reward, reward = np.empty_like(raw_reward), np.empty_like(raw_reward)
        reward_jacobian = np.empty((*raw_reward.shape, self.space.dim), np.float32)
        metrics = np.empty((len(self.metrics), len(raw_reward)), np.float32)
        inputs = raw_reward, n_cleaned, is_present, np.ascontiguousarray(values), self._base_amounts, self._flag_array
        compile_incentives()(*inputs, base_reward, reward, reward_jacobian, metrics)
        return Settlement(base_reward, reward, reward_jacobian, dict(zip(self.metrics, metrics, strict=True)))


def validate_bracket_edges(edges: Sequence[float]) -> tuple[float, ...]:
    """Return the lower edges of tax brackets as floats.

    Raises:
        ConfigError: the edges do not start at 0, do not increase, or are not finite.
    """
    lower_edges = tuple(float(edge) for edge in edges)
    is_increasing = all(low < high for low, high in pairwise(lower_edges))
    if not lower_edges or lower_edges[0] != 0 or not is_increasing or not np.isfinite(lower_edges).all():
        raise ConfigError(f"the brackets {list(edges)} of taxes must start at 0 and increase, e.g. [0, 3, 5]")
    return lower_edges
