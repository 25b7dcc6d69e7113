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
    """Return a batch of games on an engine: `melting_pot.vec_env.MeltingPotEnv` or `native.vec_env.NativeEnv`.

    Raises:
        ConfigError: values that the game or the engine cannot play.
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


def _game_processes(options: Mapping[str, Any]) -> int:
    return int(options["n_envs"]) if options.get("engine") == "meltingpot" else 0


def _can_batch_runs(options: Mapping[str, Any]) -> bool:
    return bool(options.get("engine", "native") == "native")


def _observation_bytes(options: Mapping[str, Any]) -> int:
    channels = {"pixels": math.prod(PIXELS_SHAPE), "grid": math.prod(GRID_SHAPE), "vector": 8}
    return sum(channels.get(name, 0) for name in options.get("observe") or ["pixels"])


# A launcher asks these before anything is built: the number of processes that the games use beside that of the run,
# whether the games of several runs can be played as one batch, and the bytes that one player observes in a step.
substrate_env.game_processes = _game_processes  # type: ignore[attr-defined]
substrate_env.plays_in_rows = _can_batch_runs  # type: ignore[attr-defined]
substrate_env.observation_bytes = _observation_bytes  # type: ignore[attr-defined]
