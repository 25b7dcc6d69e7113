"""Common-pool resource game: players harvest a shared stock that regrows unless they take too much of it.

Rules, default numbers and metrics come from GovSim (Piatti et al., "Cooperate or Collapse: Emergence of Sustainable
Cooperation in a Society of LLM Agents", NeurIPS 2024, arXiv 2404.16698). Section numbers below refer to this paper.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from llmrl.core.records import Array, Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.core.welfare_measures import SUM
from llmrl.envs.array_games import ArrayGames
from llmrl.envs.commons_text import SCENARIOS, CommonsSettings, build_tax_space, describe_game, describe_observation
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import Settlement, apply_payments

_METRICS: Mapping[str, Aggregate] = {
    "harvested": "sum",
    "months": "sum",
    "survived": "sum",
    "over_usage": "mean",
    "stock": "last",
    "efficiency": "last",
}
_PLOT_HEIGHT, _STOCK_WIDTH, _BAR_WIDTH, _GAP = 120, 60, 20, 8  # sizes in frames, in pixels
_BACKGROUND_COLOR, _FRAME_COLOR, _STOCK_COLOR, _LIMIT_COLOR = (
    (244, 242, 236),
    (60, 62, 68),
    (88, 150, 196),
    (190, 60, 50),
)


class Commons(ArrayGames):
    """A vectorized environment of `n_envs` parallel copies (games) of the common-pool resource game.

    **Month.** One step. All players simultaneously request amounts. If the sum exceeds the stock, the stock is
    distributed unit by unit: each unit goes to a player sampled uniformly from those whose request is not yet met
    (appendix B.1). The remaining stock is multiplied by `growth`, up to `capacity`. Amounts are integers. The initial
    stock is `capacity`.

    **Sustainable harvest.** f = max {x: growth * (stock - x) >= stock}: the maximum that all players together can take
    without a smaller stock next month (section 2.3). A player's sustainable share is f // n_agents.

    **Reward before the mechanism.** 1 for each unit taken.

    **Mechanism.** A player pays `harvest_tax` for each unit that it takes, and also `excess_tax` for each unit above
    its sustainable share; both are in [0, `max_tax`]. Every player gets an equal part of all taxes of the month.

    **Observation.** `vector` [n_envs, n_agents, n_agents + 2 or 3] float32: stock / capacity; months played / horizon
    (only with `show_horizon`); the last harvest of every player / capacity; the agent's last harvest / capacity.
    `text`: a JSON object (`commons_text`). `action_mask` [n_envs, n_agents, n_actions] bool: whether an amount is at
    most the stock; only if the stock can be below `max_catch`. A larger request counts as a request of the whole stock.
    `mechanism` [n_envs, n_agents, 2] float32: the taxes, with `show_mechanism`.

    **End.** Terminated when fewer than `collapse_threshold` units are left after a harvest: the stock has collapsed.
    Truncated after `horizon` months.

    **Metrics** (section 2.4). `stock`: units at the end. `harvested`: units taken by all. `months`: months played.
    `survived`: 1 if the last month was reached, whatever stock remained. `over_usage`: fraction of harvests that exceed
    the sustainable share. `efficiency`: min(1, harvested / (horizon * sustainable harvest of a full stock)).

    Args:
        settings: options of the game.
        seeds: seed tree of the environment.
    """

    _state_fields = (
        "_roots",
        "_groups",
        "_taxes_set",
        "_episode",
        "_stock",
        "_month",
        "_wanted",
        "_taken",
        "_total",
        "_collapsed",
        "_report",
    )
    _stream_name = "shares"
    _mechanism_field = "_taxes_set"

    @staticmethod
    def observation_bytes(options: Mapping[str, Any]) -> int | None:
        """Return the bytes of one agent's observation in a step; None if runs cannot share a batch of games."""
        if "text" in options["observe"]:
            return None
        n_actions = options["max_catch"] + 1
        n_mechanism_values = 2 if options["show_mechanism"] else 0
        return int(4 * (options["n_agents"] + 3 + n_mechanism_values) + n_actions)

    def __init__(self, settings: CommonsSettings, seeds: Seeds) -> None:
        self.settings, self._seeds = settings, seeds
        scenario, n_envs, n_agents = settings.scenario, settings.n_envs, settings.n_agents
        n_actions = settings.max_catch + 1
        tax_space = build_tax_space(settings.max_tax, SCENARIOS[scenario].harvest_units) if settings.mechanism else None
        self._report = (
            MechanismReport(tax_space, n_envs, n_agents, settings.show_mechanism)
            if tax_space is not None and "text" in settings.observe
            else None
        )
        sustainable_harvest = int(self._compute_sustainable_harvest(np.array(settings.capacity)))
        # Maximum number of units that can be taken in a game without reducing the stock.
        self._max_sustainable_harvest = settings.horizon * sustainable_harvest
        available_channels = {
            "vector": Channel((1 + settings.show_horizon + n_agents + 1,), "float32", 0.0, 1.0),
            "text": Channel((), "object"),
        }
        channels: dict[str, Channel] = {name: available_channels[name] for name in settings.observe}
        if settings.max_catch > settings.growth * settings.collapse_threshold:
            channels["action_mask"] = Channel((n_actions,), "bool", 0, 1)
        if settings.show_mechanism:
            channels["mechanism"] = Channel((2,), "float32", 0.0, settings.max_tax)
        self.spec = EnvSpec(
            name=scenario,
            n_envs=n_envs,
            n_agents=n_agents,
            observation=channels,
            n_actions=n_actions,
            action_names=tuple(f"take_{n}" for n in range(n_actions)),
            horizon=settings.horizon,
            mechanism=tax_space,
            objective=SUM,
            metrics=_METRICS if tax_space is None else {**_METRICS, "tax_collected": "sum"},
            has_reward_jacobian=tax_space is not None,
            text=describe_game(settings, tax_space) if "text" in settings.observe else None,
            facts={
                **{name: getattr(settings, name) for name in ("capacity", "growth", "collapse_threshold")},
                "sustainable": sustainable_harvest,
            },
        )
        self._reseed([(seeds, self._stream_name)])
        self._episode = np.zeros(n_envs, dtype=np.int64)  # number of episodes since the last seeding
        self._taxes_set = np.zeros((n_envs, 2))
        self._stock = np.full(n_envs, -1)  # -1: the game was never reset
        self._month = np.zeros(n_envs, dtype=np.int64)
        self._wanted = np.zeros((n_envs, n_agents), dtype=np.int64)  # requests of the last month
        self._taken = np.zeros((n_envs, n_agents), dtype=np.int64)  # harvests of the last month
        self._total = np.zeros((n_envs, n_agents), dtype=np.int64)  # harvests of the episode so far
        self._collapsed = np.zeros(n_envs, dtype=bool)

    def resized(self, n_envs: int) -> Self:
        """Return a new environment with the same options and `n_envs` games, none of them reset yet."""
        return type(self)(replace(self.settings, n_envs=n_envs), self._seeds)

    def make_single_game(self) -> Commons:
        """Return a new environment with the same options and one game, not reset yet."""
        return name_env_in_errors(self.resized(1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        if seed is not None:
            self._episode[:] = 0
        return super().reset(mask, seed)

    @property
    def _started_mask(self) -> np.ndarray:
        return np.asarray(self._stock >= 0)

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        self._episode[reset_mask] += 1
        self._stock[reset_mask] = self.settings.capacity
        for array in (self._month, self._wanted, self._taken, self._total, self._collapsed):
            array[reset_mask] = 0
        if self._report is not None:
            self._report.clear(reset_mask)

    def step(self, action: Array) -> Step:
        """Advance by a month with the requests `action` [n_envs, n_agents]. Games that have ended do not change.

        Raises:
            ValueError: the shape is wrong, an action does not exist, or a game was never reset.
        """
        actions = self._check_actions(action)
        active = ~self._ended
        requests = actions * active[:, None]
        harvests = self._allocate_harvests(requests)
        sustainable_shares = self._compute_sustainable_shares()
        over_usage = (harvests > sustainable_shares[:, None]).mean(axis=1)
        settlement = self._settle(harvests, sustainable_shares)
        remaining_stock = self._stock - harvests.sum(axis=1)
        newly_collapsed = active & (remaining_stock < self.settings.collapse_threshold)
        regrown_stock = np.minimum(self.settings.growth * remaining_stock, self.settings.capacity)
        self._stock = np.where(active & ~newly_collapsed, regrown_stock, remaining_stock)
        self._collapsed |= newly_collapsed
        self._month += active
        self._wanted, self._taken = (
            np.where(active[:, None], new, old) for new, old in ((requests, self._wanted), (harvests, self._taken))
        )
        self._total += harvests

        if self._report is not None:
            self._report.record(settlement.base_reward, settlement.reward_jacobian, self._taxes_set, active, {})
        info = {
            "stock": self._stock,
            "harvested": harvests.sum(axis=1),
            "months": active,
            "survived": active & (self._month >= self.settings.horizon),
            "over_usage": over_usage,
            "efficiency": np.minimum(1.0, self._total.sum(axis=1) / self._max_sustainable_harvest),
            **settlement.metrics,
        }
        base_reward, reward, jacobian, *_ = settlement
        return self._build_step(reward, base_reward, self._collapsed, self._ended & ~self._collapsed, info, jacobian)

    def share_random_numbers(self, n_groups: int) -> None:
        previous_n_groups = self._groups
        super().share_random_numbers(n_groups)
        if n_groups != previous_n_groups:
            self._episode[:] = self._episode.max()

    def render(self, index: int = 0) -> np.ndarray:
        """Return a frame of game `index`, [136, 84 + 28 * n_agents, 3] uint8.

        Left: the stock, with a red line at the collapse threshold. Right: each player's last harvest, with a red line
        at the sustainable share of a full stock. The scale of harvests is that of the stock times n_agents / 2.
        """
        settings, n_agents = self.settings, self.spec.n_agents
        width = _STOCK_WIDTH + 3 * _GAP + n_agents * (_BAR_WIDTH + _GAP)
        image = np.full((_PLOT_HEIGHT + 2 * _GAP, width, 3), _BACKGROUND_COLOR, dtype=np.uint8)
        bottom = _GAP + _PLOT_HEIGHT

        def draw_bar(start: int, bar_width: int, fraction: float, color: Sequence[int]) -> None:
            image[bottom - round(_PLOT_HEIGHT * min(fraction, 1.0)) : bottom, start : start + bar_width] = color

        image[_GAP - 2 : bottom + 2, _GAP - 2 : _GAP + _STOCK_WIDTH + 2] = _FRAME_COLOR
        draw_bar(_GAP, _STOCK_WIDTH, 1.0, _BACKGROUND_COLOR)
        draw_bar(_GAP, _STOCK_WIDTH, max(int(self._stock[index]), 0) / settings.capacity, _STOCK_COLOR)
        limit_height = round(_PLOT_HEIGHT * settings.collapse_threshold / settings.capacity)
        image[bottom - limit_height, _GAP : _GAP + _STOCK_WIDTH] = _LIMIT_COLOR
        scale = n_agents / 2 / settings.capacity
        for agent in range(n_agents):
            start = _STOCK_WIDTH + 3 * _GAP + agent * (_BAR_WIDTH + _GAP)
            draw_bar(start, _BAR_WIDTH, scale * int(self._taken[index, agent]), _FRAME_COLOR)
        limit_height = round(_PLOT_HEIGHT * scale * self._max_sustainable_harvest / settings.horizon / n_agents)
        image[bottom - limit_height, _STOCK_WIDTH + 3 * _GAP :] = _LIMIT_COLOR
        return image

    @property
    def _ended(self) -> np.ndarray:
        """Mask of the games that have ended, [n_envs] bool."""
        return np.asarray(self._collapsed | (self._month >= self.settings.horizon))

    def _compute_sustainable_harvest(self, stock: np.ndarray) -> np.ndarray:
        """Return the maximum harvest without a smaller stock next month, in units, for each element of `stock`."""
        return np.asarray(stock + -stock // self.settings.growth)

    def _compute_sustainable_shares(self) -> np.ndarray:
        """Return the current sustainable share of each player of a game, in units, [n_envs]."""
        return np.asarray(self._compute_sustainable_harvest(self._stock) // self.spec.n_agents)

    def _allocate_harvests(self, requests: np.ndarray) -> np.ndarray:
        """Return the harvest of each player, in units, given the requests; both [n_envs, n_agents].

        Random numbers are a function of the group's seed, the game's index in it, the episode and the month.
        """
        harvests = requests.copy()
        for game in np.flatnonzero(requests.sum(axis=1) > self._stock).tolist():
            key = np.array(self._find_group_seed_and_index(game), dtype=np.uint64)
            counter = np.array([0, self._month[game], self._episode[game], 0], dtype=np.uint64)
            generator = np.random.Generator(np.random.Philox(key=key, counter=counter))
            harvests[game] = allocate_units(requests[game], int(self._stock[game]), generator)
        return harvests

    def _settle(self, harvests: np.ndarray, sustainable_shares: np.ndarray) -> Settlement:
        """Return the settlement of the `harvests` [n_envs, n_agents], given the sustainable shares [n_envs]."""
        base_reward = harvests.astype(np.float32)
        taxable_units = np.stack([harvests, np.maximum(harvests - sustainable_shares[:, None], 0)], axis=-1)
        jacobian = (taxable_units.mean(axis=1, keepdims=True) - taxable_units).astype(np.float32)
        tax_collected = (taxable_units.sum(axis=1) * self._taxes_set).sum(axis=-1)
        reward = apply_payments(base_reward, jacobian, self._taxes_set)
        return Settlement(base_reward, reward, jacobian, {"tax_collected": tax_collected})

    def _observe(self) -> Observation:
        shape = self._taken.shape
        observation: Observation = {}
        if "vector" in self.spec.observation:
            shared_features = [self._stock[:, None] / self.settings.capacity, self._taken / self.settings.capacity]
            if self.settings.show_horizon:
                shared_features.insert(1, self._month[:, None] / self.settings.horizon)
            shared_vectors = np.repeat(np.concatenate(shared_features, axis=1)[:, None], shape[1], axis=1)
            agent_harvest = self._taken[..., None] / self.settings.capacity
            observation["vector"] = (
                np.concatenate([shared_vectors, agent_harvest], axis=-1).astype(np.float32).clip(0.0, 1.0)
            )
        if "text" in self.spec.observation:
            texts = np.empty(self._taken.shape, dtype=object)
            sustainable_shares = self._compute_sustainable_shares()
            for game, agent in np.ndindex(*texts.shape):
                taxes = self._taxes_set[game]
                report: Mapping[str, Any] = (
                    {} if self._report is None else self._report.build_entries(game, agent, taxes)
                )
                texts[game, agent] = describe_observation(
                    self.settings,
                    report,
                    player=agent,
                    stock=int(self._stock[game]),
                    month=int(self._month[game]),
                    sustainable_share=int(sustainable_shares[game]),
                    harvests=self._taken[game].tolist(),
                    request=int(self._wanted[game, agent]),
                    total_harvest=int(self._total[game, agent]),
                )
            observation["text"] = texts
        if "action_mask" in self.spec.observation:
            is_available = np.arange(self.spec.n_actions) <= np.maximum(self._stock, 0)[:, None]
            observation["action_mask"] = np.repeat(is_available[:, None], shape[1], axis=1)
        if "mechanism" in self.spec.observation:
            observation["mechanism"] = np.repeat(self._taxes_set.astype(np.float32)[:, None], shape[1], axis=1)
        return observation


def allocate_units(requests: np.ndarray, stock: int, generator: np.random.Generator) -> np.ndarray:
    """Return the harvest of each player, in units, [n_agents], if the sum of `requests` [n_agents] exceeds the stock.

    Each unit goes to a player sampled uniformly from those whose request is not yet met. To sample this, each player
    gets a Poisson process of the same rate with as many arrivals as requested units. The next arrival is then equally
    likely for each player that has arrivals left. The first `stock` arrivals get the units.
    """
    unit_indices = np.arange(min(int(requests.max()), stock))
    arrival_times = generator.exponential(size=(len(requests), len(unit_indices))).cumsum(axis=1)
    arrival_times_of_requests = np.where(unit_indices < requests[:, None], arrival_times, np.inf).ravel()
    receivers = np.argsort(arrival_times_of_requests, kind="stable")[:stock] // max(len(unit_indices), 1)
    return np.bincount(receivers, minlength=len(requests))
