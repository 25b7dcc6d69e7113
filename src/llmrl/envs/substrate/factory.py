"""Clean Up and Harvest on either engine, selected by `env.engine`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.substrate.substrate_rules import GRID_SHAPE, PIXELS_SHAPE


def substrate_env(
    settings: SubstrateSettings,
    seeds: Seeds,
    device: str,
    engine: Literal["meltingpot", "native"],
    render: bool,
    tiles: Literal["auto", "melting_pot", "plain"],
) -> VecEnv:
    """Return a `melting_pot.vec_env.MeltingPotEnv` or a `native.vec_env.NativeEnv`.

    Raises:
        ConfigError: the substrate or the engine does not support the settings.
        EngineError: Melting Pot is requested and not available.
    """
    if engine == "native":
        from llmrl.envs.native.vec_env import NativeEnv

        return NativeEnv(settings, seeds, device, tiles)
    if tiles != "auto":
        raise ConfigError(f"env.tiles={tiles} requires env.engine=native; use env.tiles=auto with Melting Pot's engine")
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

    try:
        return MeltingPotEnv(settings, seeds, render)
    except EngineError as error:
        raise EngineError(f"{error} Or use env.engine=native, which plays the same game without it.") from error


def _count_game_processes(options: Mapping[str, Any]) -> int:
    return int(options["n_envs"]) if options.get("engine") == "meltingpot" else 0


def _count_observation_bytes(options: Mapping[str, Any]) -> int | None:
    if options.get("engine", "native") != "native":
        return None
    bytes_by_channel = {"pixels": math.prod(PIXELS_SHAPE), "grid": math.prod(GRID_SHAPE), "vector": 8}
    return sum(bytes_by_channel.get(name, 0) for name in options.get("observe") or ["pixels"])


# A launcher calls these functions with the options of the environment before it starts a run. They return the number of
# processes in addition to that of the run, and the bytes of a player's observation in a step (None: runs cannot share
# a batch of games).
substrate_env.game_processes = _count_game_processes  # type: ignore[attr-defined]
substrate_env.observation_bytes = _count_observation_bytes  # type: ignore[attr-defined]
