"""The run of a preset that another run needs (`preset:<study>`): first weights, episodes to imitate, plans."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.experiment.composition import plain

_TAKEN_OVER = ("output_root", "hardware", "trusted_modules", "checkpoint_seconds", "private")
"""What the run of a preset has from the run that needs it, and that changes no numbers."""

OWN_GAMES = ("n_envs", "render", "compile")
"""Options of the environment that the preset keeps: how many games there are, and what is not of the game."""

SHAPE = (
    *("share_parameters", "reads", "features", "core", "encoding", "map_channels", "planes", "join", "core_hidden"),
    *("head_hidden", "memory", "memory_layers", "critic", "film"),
)
"""Options of an agent that say which shapes its weights have."""

Config = Mapping[str, Any]


def composed(preset: str, seed: int, config: Config) -> tuple[dict[str, Any], list[str]]:
    """Compose the run of a preset for the run of `config`: what the preset says, in the environment of that run, with
    agents of the same shape; returns its plain config, and the overrides that its folder is named after.

    Args:
        preset: `<study>` or `<study>+<treatment>`.
        seed: of the preset's run.
        config: of the run that needs it, resolved, plain containers.

    Raises:
        ConfigError: there is no such preset, it is for another environment, or it is no run of agents that learn alone
            from weights of their own.
    """
    study, _, treatment = preset.partition("+")
    overrides = [f"experiment={study}", *([f"treatment={treatment}"] if treatment else [])]
    own = {**copy.deepcopy(plain("train", *overrides)), **{each: config[each] for each in _TAKEN_OVER}}
    own["seed"] = seed
    if own["principal"].get("_target_") is not None or str(own["agent"].get("init_from")).startswith("preset:"):
        raise ConfigError(
            "a preset to begin with trains agents alone, from weights of their own; this one has a principal, or "
            "begins with another preset"
        )
    _inherit(own, config)
    return own, [*overrides, f"seed={seed}"]


def _inherit(own: dict[str, Any], config: Config) -> None:
    """Give the preset's config the environment of `config`, and the shape of its agents' weights."""
    env, agent = config["env"], config["agent"]
    for name in ("_target_", "substrate"):
        if own["env"].get(name) != env.get(name):
            raise ConfigError(
                f"that preset is for another environment: env.{name} is {own['env'].get(name)} there and "
                f"{env.get(name)} here"
            )
    own["env"] = {**copy.deepcopy(dict(env)), **{name: own["env"][name] for name in OWN_GAMES if name in own["env"]}}
    if own["agent"].get("_target_") == agent.get("_target_"):
        own["agent"] |= {name: copy.deepcopy(agent[name]) for name in SHAPE if name in agent and name in own["agent"]}
