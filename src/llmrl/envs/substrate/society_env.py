"""Settings, spec and base class of Clean Up and Harvest for both engines (Melting Pot and native loops)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.metrics import DerivedMetric, RatioOfTotals, WeightedMeanStep, derive_quarter_means
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.envs.array_games import GroupedGames
from llmrl.envs.mechanism_text import MechanismReport
from llmrl.envs.mechanisms import RAW_REWARD_TEXT, Mechanism, Settlement, SocietyEvents
from llmrl.envs.substrate.grid_text import build_grid_planes, count_grid_codes, describe_game, describe_observation
from llmrl.envs.substrate.sprites import TileSource, compute_agent_colors
from llmrl.envs.substrate.substrate_rules import (
    FIRST_RANDOM_END_STEP,
    GRID_SHAPE,
    MAX_AGENTS,
    PIXELS_SHAPE,
    SUBSTRATES,
    Rules,
    SiteCounts,
    SubstrateName,
    find_rule_changes,
    list_action_names,
)

ChannelName = Literal["pixels", "grid", "vector", "text"]
MAX_HORIZON = 5000
"""Number of steps after which both engines end every episode."""


@dataclass(frozen=True)
class SubstrateSettings:
    """Settings of Clean Up or Harvest, for either engine.

    Attributes:
        substrate: `cleanup` or `harvest`.
        n_envs: number of parallel copies (games); with Melting Pot also the number of worker processes.
        n_agents: number of players per game.
        horizon: steps after which an episode is truncated, at most 5000; None: 5000. Under upstream rules an episode
            may end at random from step 1099 on.
        rules: `upstream`, or `legislative` (see `substrate_rules.RULE_CHANGES`).
        observe: channels that every player observes; None: `pixels`.
        mechanism: mechanism whose values a principal sets; None: rewards are not changed.
        show_mechanism: whether players observe the mechanism's values.
        map: `auto` or `melting_pot`: the substrate's map; for other values see `llmrl.envs.substrate.maps.load_map`.

    Raises:
        ConfigError: there are no channels or too many players for texts, the horizon is too long, or the substrate does
            not support the mechanism.
    """

    substrate: SubstrateName
    n_envs: PositiveInt
    n_agents: PositiveInt = 7
    horizon: PositiveInt | None = 1000
    rules: Rules = "upstream"
    observe: Sequence[ChannelName] | None = None
    mechanism: Mechanism | None = None
    show_mechanism: bool = True
    map: str = "auto"

    def __post_init__(self) -> None:
        mechanism, channels = self.mechanism, self.channels
        if mechanism is not None and mechanism.needs_dirt and not SUBSTRATES[self.substrate].has_dirt:
            raise ConfigError(
                f"env.mechanism={type(mechanism).__name__} pays for cleaning, and {self.substrate} has no dirt. Use "
                "BracketedTax or env=cleanup."
            )
        if not channels:
            raise ConfigError(f"env.observe is empty; the channels are {', '.join(get_args(ChannelName))}")
        if "text" in channels and self.n_agents > MAX_AGENTS:
            raise ConfigError(
                f"env.n_agents={self.n_agents} is too large for the channel text, which distinguishes at most "
                f"{MAX_AGENTS} players; use fewer players, or observe grid"
            )
        if self.horizon is not None and self.horizon > MAX_HORIZON:
            raise ConfigError(
                f"env.horizon={self.horizon} must be at most {MAX_HORIZON}, the steps after which every episode ends, "
                "or null"
            )

    @property
    def channels(self) -> tuple[str, ...]:
        """Names of the observation channels without duplicates, pixels by default."""
        return ("pixels",) if self.observe is None else tuple(dict.fromkeys(self.observe))

    @property
    def shows_mechanism(self) -> bool:
        """True if players observe a mechanism's values."""
        return self.mechanism is not None and self.show_mechanism


def build_spec(
    settings: SubstrateSettings,
    engine: Literal["meltingpot", "native"],
    device: str | None = None,
    site_counts: SiteCounts | None = None,
) -> EnvSpec:
    """Return the spec of the environment.

    `device`: see `EnvSpec`. `site_counts`: cells of different types in the map; None: as in Melting Pot's map.
    """
    substrate, rules, mechanism, horizon = settings.substrate, settings.rules, settings.mechanism, settings.horizon
    code_counts, planes = count_grid_codes(settings.n_agents), build_grid_planes(substrate, settings.n_agents)
    vector_size, text = len(SUBSTRATES[substrate].vector_observations), None
    if "text" in settings.channels:
        text = describe_game(substrate, rules, settings.n_agents, mechanism, settings.show_mechanism)
    available_channels = {
        "pixels": Channel(PIXELS_SHAPE, "uint8", 0, 255),
        "grid": Channel(GRID_SHAPE, "uint8", 0, max(code_counts) - 1, codes=code_counts, planes=planes),
        "vector": Channel((vector_size,), "float32", 0, max(1, settings.n_agents - 1)),
        "text": Channel((), "object"),
    }
    observation = {name: channel for name, channel in available_channels.items() if name in settings.channels}
    if mechanism is not None and settings.show_mechanism:
        low, high = float(mechanism.space.low.min()), float(mechanism.space.high.max())
        observation["mechanism"] = Channel((mechanism.space.dim,), "float32", low, high)
    action_names = list_action_names(substrate, rules)
    return EnvSpec(
        name=substrate,
        n_envs=settings.n_envs,
        n_agents=settings.n_agents,
        observation=observation,
        n_actions=len(action_names),
        action_names=action_names,
        horizon=horizon,
        mechanism=None if mechanism is None else mechanism.space,
        metrics=_collect_metrics(substrate, mechanism, horizon),
        details=() if mechanism is None else mechanism.details,
        has_reward_jacobian=mechanism is not None,
        deterministic=engine == "native",
        text=text,
        facts=_collect_facts(substrate, rules, mechanism, horizon, site_counts or SUBSTRATES[substrate].site_counts),
        about=(
            ("engine", f"{engine}, {rules} rules"),
            ("reward", RAW_REWARD_TEXT if mechanism is None else mechanism.base_reward_text),
        ),
        device=device,
    )


def _collect_metrics(
    substrate: SubstrateName, mechanism: Mechanism | None, horizon: int | None
) -> dict[str, Aggregate | DerivedMetric]:
    """Return the metrics of an episode. Metrics of quarters of an episode require a horizon."""
    metrics: dict[str, Aggregate | DerivedMetric] = {"apples_live": "last"}
    metrics |= {} if horizon is None else derive_quarter_means("apples_live", horizon)
    metrics |= {"apples_eaten": "sum", "mean_eating_step": WeightedMeanStep("apples_eaten")}
    metrics |= {"zaps": "sum", "players_present": "mean"}
    if SUBSTRATES[substrate].has_dirt:
        metrics |= {"apples_regrown": "sum", "cells_cleaned": "sum", "cleaning_shots": "sum", "dirt": "last"}
        metrics["apples_per_shot"] = RatioOfTotals("apples_eaten", "cleaning_shots")
        metrics["cells_per_shot"] = RatioOfTotals("cells_cleaned", "cleaning_shots")
    metrics |= {} if mechanism is None else mechanism.metrics
    return metrics


def _collect_facts(
    substrate: SubstrateName, rules: Rules, mechanism: Mechanism | None, horizon: int | None, site_counts: SiteCounts
) -> dict[str, float | bool]:
    """Return name -> fact about the environment, for conditions and numbers in prompts (`EnvSpec.facts`)."""
    change_names = {change.name for change in find_rule_changes(substrate, rules)}
    removal_steps = SUBSTRATES[substrate].removal_steps
    facts: dict[str, float | bool] = {"apple_sites": site_counts.n_apple_sites, "away": removal_steps}
    if site_counts.n_dirt_cells:
        facts |= {
            "apples_at_start": "apples_at_start" in change_names,
            "river_cells": site_counts.n_dirt_cells,
            "dirty_at_start": site_counts.n_dirty_cells,
            "pays_cleaning": False,
            "exactly_one": False,
            "reward_removed": False,
            "budget_balanced": False,
        }
    if "no_random_end" not in change_names and (horizon is None or horizon > FIRST_RANDOM_END_STEP):
        facts["may_end_from"] = FIRST_RANDOM_END_STEP
    return facts if mechanism is None else {**facts, **mechanism.facts}


class SocietyEnv(GroupedGames):
    """Base class of Clean Up and Harvest on either engine.

    Args:
        settings: settings of the environment.
        spec: spec of the environment.
        tile_source: source of the sprites in frames.

    Attributes:
        settlement: the mechanism's settlement of the last step; None without a mechanism or before the first step.
    """

    settlement: Settlement | None = None

    def __init__(self, settings: SubstrateSettings, spec: EnvSpec, tile_source: TileSource = "melting_pot") -> None:
        self.spec, self._settings, self._tile_source = spec, settings, tile_source
        self._mechanism = mechanism = settings.mechanism
        # Number of games with different random numbers; the games after them repeat these numbers group by group.
        self._group_size = spec.n_envs
        self._report: MechanismReport | None = None
        if mechanism is not None and "text" in settings.channels:
            shape = spec.n_envs, spec.n_agents
            self._report = MechanismReport(mechanism.space, *shape, settings.show_mechanism, mechanism.player_facts)
        low = np.zeros(0) if mechanism is None else mechanism.space.low
        self._set_mechanism_values(np.tile(low.astype(np.float32), (spec.n_envs, 1)))

    def _set_mechanism_values(self, values: NDArray[np.float32]) -> None:
        """Set the mechanism's values, [n_envs, d]."""
        self._mechanism_values: Any = values

    def set_mechanism(self, values: Array) -> None:
        self._set_mechanism_values(self._broadcast_mechanism_values(values).astype(np.float32))

    def agent_colors(self) -> NDArray[np.uint8]:
        """Return the color of each player in frames, [n_agents, 3] uint8."""
        return compute_agent_colors(self._settings.substrate, self._settings.n_agents, self._tile_source)

    def share_random_numbers(self, n_groups: int) -> None:
        """Use the same random numbers in game i of each of `n_groups` equal groups, from the next reset on."""
        self._group_size = self.spec.games_per_group(n_groups)

    def _reset_mechanism(self, reset_mask: NDArray[np.bool_]) -> None:
        """Reset the mechanism's state and report in the games where `reset_mask` [n_envs] is true."""
        if self._mechanism is not None:
            self._mechanism.reset(reset_mask)
        if self._report is not None:
            self._report.clear(reset_mask)

    def _settle(
        self, events: SocietyEvents, values: Array, is_live: NDArray[np.bool_], metrics: dict[str, Any]
    ) -> Settlement:
        """Return the mechanism's settlement of a step, and add its metrics to `metrics`.

        Args:
            events: events of the step.
            values: the mechanism's values [n_envs, d], 0 in games that have ended.
            is_live: whether each game was advanced in the step, [n_envs] bool.
            metrics: metric name -> value [n_envs] in the step.
        """
        assert self._mechanism is not None
        self.settlement = settlement = self._mechanism.settle(events, values)
        metrics |= settlement.metrics
        if self._report is not None:
            jacobian, player_facts = settlement.reward_jacobian, settlement.player_facts
            self._report.record(settlement.base_reward, jacobian, values, is_live, player_facts)
        return settlement

    def _describe_observations(
        self, grids: NDArray[Any], vectors: NDArray[Any], is_present: NDArray[np.bool_], values: NDArray[Any]
    ) -> NDArray[Any]:
        """Return the text observation of each player, [n_envs, n_agents] object; "" for removed players.

        Args:
            grids: the channel `grid`, [n_envs, n_agents, 11, 11, 4].
            vectors: the channel `vector`, [n_envs, n_agents, 1 or 2].
            is_present: whether each player is not removed, [n_envs, n_agents] bool.
            values: the mechanism's values, [n_envs, d].
        """
        texts = np.full(is_present.shape, "", dtype=object)
        for game, player in np.argwhere(is_present).tolist():
            report = None if self._report is None else self._report.build_entries(game, player, values[game])
            vector, substrate, rules = vectors[game, player], self._settings.substrate, self._settings.rules
            texts[game, player] = describe_observation(grids[game, player], substrate, rules, vector, report)
        return texts
