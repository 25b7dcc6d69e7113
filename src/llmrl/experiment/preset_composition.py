"""Composition of the run of a preset: its own options, in the environment of the run that needs it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.experiment.members import parts_of, reads

Config = Mapping[str, Any]

_COMMON_KEYS = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""Keys that the run of a preset takes from the run that needs it; they do not change results."""

_PRESET_ENV_KEYS = ("n_envs", "render")
"""Options of the environment that the preset keeps: the number of games, and options outside the game."""

_SHAPE_KEYS = (
    *(
        "share_parameters",
        "observation_channels",
        "features",
        "core",
        "encoding",
        "map_channels",
        "planes",
    ),
    *("core_hidden", "head_hidden", "memory", "memory_layers", "critic", "film"),
)
"""Options of an agent that determine the shapes of its weights."""


def compose_preset(preset: str, seed: int, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Compose the run of a preset in the environment of `config`, with weights of the same shape.

    Return its plain config, and the overrides that its folder is named after.

    Args:
        preset: `<study>` or `<study>+<treatment>`.
        seed: seed of the preset's run.
        config: resolved config of the run that needs it, in plain containers.

    Raises:
        ConfigError: an unknown preset, one for another environment, one with a principal, or one that starts from
            another preset.
    """
    from llmrl.experiment.composition import plain

    study, _, treatment = preset.partition("+")
    overrides = [f"experiment={study}", *([f"treatment={treatment}"] if treatment else [])]
    run_config = {**copy.deepcopy(plain("train", *overrides)), **{key: config[key] for key in _COMMON_KEYS}}
    run_config["seed"] = seed
    if run_config["principal"].get("_target_") is not None or str(run_config["agent"].get("init_from")).startswith(
        "preset:"
    ):
        raise ConfigError(
            "this preset has a principal, or starts from another preset; use one that trains agents without a "
            "principal from new weights"
        )
    _inherit(run_config, config)
    return run_config, [*overrides, f"seed={seed}"]


def _inherit(preset: dict[str, Any], config: Config) -> None:
    """Copy the environment of `config`, and the options that shape its agents' weights, to the preset's config."""
    env = config["env"]
    for name in ("_target_", "substrate"):
        if preset["env"].get(name) != env.get(name):
            raise Incompatible(
                Misfit.ONE_GAME,
                f"this preset is for another environment: env.{name} is {preset['env'].get(name)} in the preset and "
                f"{env.get(name)} in this run",
            )
    preset["env"] = {
        **copy.deepcopy(dict(env)),
        **{name: preset["env"][name] for name in _PRESET_ENV_KEYS if name in preset["env"]},
    }
    if not reads(preset) and preset["env"].get("observe"):  # texts are only for agents that read
        preset["env"]["observe"] = [channel for channel in preset["env"]["observe"] if channel != "text"]
    for agent in parts_of(config["agent"]):
        if preset["agent"].get("_target_") == agent.get("_target_"):
            preset["agent"] |= {
                name: copy.deepcopy(agent[name]) for name in _SHAPE_KEYS if name in agent and name in preset["agent"]
            }
            break
