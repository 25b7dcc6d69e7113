"""Clean Up and Harvest on either engine: the one place where `env.engine` is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.protocols import VecEnv
from llmrl.core.ranges import PositiveInt
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import Mechanism
from llmrl.envs.melting_pot.env_spec import SubstrateSettings
from llmrl.envs.melting_pot.memory_layout import CELLS, PIXELS
from llmrl.envs.melting_pot.substrate_rules import Rules, SubstrateName

INSTEAD = "env.engine=native plays the same game without it"


def substrate_env(
    substrate: SubstrateName,
    n_envs: PositiveInt,
    seeds: Seeds,
    device: str,
    engine: Literal["meltingpot", "native"] = "native",
    n_agents: PositiveInt = 7,
    horizon: PositiveInt | None = 1000,
    rules: Rules = "upstream",
    observe: list[Literal["pixels", "grid", "vector", "text"]] | None = None,
    mechanism: Mechanism | None = None,
    show_mechanism: bool = True,
    render: bool = False,
    map: str = "auto",
    tiles: Literal["auto", "melting_pot", "plain"] = "auto",
) -> VecEnv:
    """A batch of games on the engine asked for: `melting_pot.vec_env.MeltingPotEnv` or `native.vec_env.NativeEnv`,
    whose arguments these are.

    Raises:
        ConfigError: values that the game or the engine cannot play.
        EngineError: Melting Pot is asked for and cannot be had.
    """
    game = SubstrateSettings(substrate, n_envs, n_agents, horizon, rules, observe, mechanism, show_mechanism, map)
    if engine == "native":
        from llmrl.envs.native.vec_env import NativeEnv

        return NativeEnv(game, seeds, device, tiles)
    if tiles != "auto":
        raise ConfigError("env.tiles is for env.engine=native; Melting Pot has its own way: leave it as it is")
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

    try:
        return MeltingPotEnv(game, seeds, render)
    except EngineError as error:
        raise EngineError(f"{error} Or: {INSTEAD}.") from error


def _game_processes(options: Mapping[str, Any]) -> int:
    return int(options["n_envs"]) if options.get("engine") == "meltingpot" else 0


def _plays_in_rows(options: Mapping[str, Any]) -> bool:
    return bool(options.get("engine", "native") == "native")


def _observation_bytes(options: Mapping[str, Any]) -> int:
    channels = {"pixels": math.prod(PIXELS), "grid": math.prod(CELLS), "vector": 8}
    return sum(channels.get(name, 0) for name in options.get("observe") or ["pixels"])


# From the options, because a launcher asks before anything is built: processes that the games keep busy beside the
# run's own; whether the games of several runs can be played as one batch; bytes that one player observes in a step.
substrate_env.game_processes = _game_processes  # type: ignore[attr-defined]
substrate_env.plays_in_rows = _plays_in_rows  # type: ignore[attr-defined]
substrate_env.observation_bytes = _observation_bytes  # type: ignore[attr-defined]
