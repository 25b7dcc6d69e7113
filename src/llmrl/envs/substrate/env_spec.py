"""The environment spec of Clean Up and Harvest, and the checks of settings, shared by both engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.core.summaries import Derived, MeanStep, Ratio, quarters
from llmrl.envs.mechanisms import RAW_REWARD, Mechanism
from llmrl.envs.substrate.grid_text import game_text, grid_codes, grid_planes
from llmrl.envs.substrate.memory_layout import CELLS, PIXELS, VECTOR_OBSERVATIONS
from llmrl.envs.substrate.substrate_rules import (
    FIRST_END,
    MAX_AGENTS,
    SUBSTRATES,
    Rules,
    Sites,
    SubstrateName,
    action_names,
    changes,
)

ChannelName = Literal["pixels", "grid", "vector", "text"]
CHANNELS = get_args(ChannelName)
MAX_HORIZON = 5000
"""Number of steps after which the engine ends every episode."""
_RATIO_NUMERATORS = {"apples_per_shot": "apples_eaten", "cells_per_shot": "cells_cleaned"}


@dataclass(frozen=True)
class SubstrateSettings:
    """Settings of games of Clean Up or Harvest, for either engine.

    Attributes:
        substrate: `cleanup` or `harvest`.
        n_envs: number of games; on Melting Pot's engine also of worker processes.
        n_agents: players per game.
        horizon: steps per episode, at most 5000; None: 5000. Upstream rules may end an episode at random from step 1099
            on.
        rules: `upstream`, or `legislative` (see `substrate_rules.CHANGES`).
        observe: channels that every player observes; None: pixels.
        mechanism: mechanism whose values a principal sets; None for plain rewards.
        show_mechanism: whether players observe the mechanism's values.
        map: `auto` or `melting_pot`: the substrate's map; for other values see `llmrl.envs.substrate.maps.find`.
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

    @property
    def mechanism_shown(self) -> bool:
        """True if players observe a mechanism's values."""
        return self.mechanism is not None and self.show_mechanism


def check_settings(game: SubstrateSettings) -> tuple[str, ...]:
    """Return the observation channels of the game (pixels by default), after checking its settings.

    Raises:
        ConfigError: no channel or an unknown one, too many players for texts, too long a horizon, or a mechanism that
            does not fit the substrate.
    """
    mechanism, horizon = game.mechanism, game.horizon
    if mechanism is not None and mechanism.needs_dirt and not SUBSTRATES[game.substrate].dirt:
        raise ConfigError(
            f"{type(mechanism).__name__} pays for cleaning, and {game.substrate} has no dirt; use BracketedTax or "
            "env=cleanup"
        )
    channels = tuple(dict.fromkeys(game.observe if game.observe is not None else ["pixels"]))
    if not channels:
        raise ConfigError(f"env.observe is empty; it must contain at least one of {', '.join(CHANNELS)}")
    if unknown := [name for name in channels if name not in CHANNELS]:
        raise ConfigError(f"env.observe contains {unknown[0]!r}; the channels are {', '.join(CHANNELS)}")
    if "text" in channels and game.n_agents > MAX_AGENTS:
        raise ConfigError(
            f"env.n_agents={game.n_agents} is too large for the channel text, which distinguishes at most {MAX_AGENTS} "
            "players; use fewer players, or observe grid"
        )
    if horizon is not None and horizon > MAX_HORIZON:
        raise ConfigError(
            f"env.horizon={horizon} must be at most {MAX_HORIZON}, the steps after which every episode ends, or null"
        )
    return channels


def describe(
    game: SubstrateSettings,
    channels: Sequence[str],
    engine: Literal["meltingpot", "native"],
    device: str | None = None,
    sites: Sites | None = None,
) -> EnvSpec:
    """Return the spec of a batch of games with the observation channels `channels`.

    `device`: as in `EnvSpec`. `sites`: counts of the map's cells; None: those of Melting Pot's map.
    """
    substrate, rules, mechanism, horizon = game.substrate, game.rules, game.mechanism, game.horizon
    grid = grid_codes(game.n_agents)
    available = {
        "pixels": Channel(PIXELS, "uint8", 0, 255),
        "grid": Channel(CELLS, "uint8", 0, max(grid) - 1, codes=grid, planes=grid_planes(substrate, game.n_agents)),
        "vector": Channel((len(VECTOR_OBSERVATIONS[substrate]),), "float32", 0, max(1, game.n_agents - 1)),
        "text": Channel((), "object"),
    }
    observation = {name: channel for name, channel in available.items() if name in channels}
    if mechanism is not None and game.show_mechanism:
        low, high = float(mechanism.spec.low.min()), float(mechanism.spec.high.max())
        observation["mechanism"] = Channel((mechanism.spec.dim,), "float32", low, high)
    names = action_names(substrate, rules)
    return EnvSpec(
        name=substrate,
        n_envs=game.n_envs,
        n_agents=game.n_agents,
        observation=observation,
        n_actions=len(names),
        action_names=names,
        horizon=horizon,
        mechanism=None if mechanism is None else mechanism.spec,
        metrics=_metrics(substrate, mechanism, horizon),
        details=() if mechanism is None else mechanism.details,
        has_reward_jacobian=mechanism is not None,
        deterministic=engine == "native",
        text=game_text(substrate, rules, game.n_agents, mechanism, game.show_mechanism) if "text" in channels else None,
        facts=_facts(substrate, rules, mechanism, horizon, sites or SUBSTRATES[substrate].sites),
        about=(
            ("engine", f"{engine}, {rules} rules"),
            ("reward", RAW_REWARD if mechanism is None else mechanism.base_reward),
        ),
        device=device,
    )


def _metrics(
    substrate: SubstrateName, mechanism: Mechanism | None, horizon: int | None
) -> dict[str, Aggregate | Derived]:
    """Return the metrics of an episode; those of its quarters only if there is a horizon."""
    metrics: dict[str, Aggregate | Derived] = {"apples_live": "last"}
    metrics |= {} if horizon is None else quarters("apples_live", horizon)
    metrics |= {"apples_eaten": "sum", "mean_eating_step": MeanStep("apples_eaten")}
    metrics |= {"zaps": "sum", "players_present": "mean"}
    if SUBSTRATES[substrate].dirt:
        metrics |= {"apples_regrown": "sum", "cells_cleaned": "sum", "cleaning_shots": "sum", "dirt": "last"}
        metrics |= {name: Ratio(numerator, "cleaning_shots") for name, numerator in _RATIO_NUMERATORS.items()}
    metrics |= {} if mechanism is None else mechanism.metrics
    return metrics


def _facts(
    substrate: SubstrateName, rules: Rules, mechanism: Mechanism | None, horizon: int | None, sites: Sites
) -> dict[str, float | bool]:
    """Return the facts that prompts state about the game under these rules, on this map, with this mechanism."""
    change_names = {change.name for change in changes(substrate, rules)}
    facts: dict[str, float | bool] = {"apple_sites": sites.apples, "away": SUBSTRATES[substrate].removal_steps}
    if sites.dirt:
        facts |= {
            "apples_at_start": "apples_at_start" in change_names,
            "river_cells": sites.dirt,
            "dirty_at_start": sites.dirty,
            "pays_cleaning": False,
            "exactly_one": False,
            "reward_removed": False,
            "budget_balanced": False,
        }
    if "no_random_end" not in change_names and (horizon is None or horizon > FIRST_END):
        facts["may_end_from"] = FIRST_END
    return facts if mechanism is None else {**facts, **mechanism.facts}
