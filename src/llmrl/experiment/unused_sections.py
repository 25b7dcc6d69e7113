"""What of a config a run reads: this alone is saved and hashed, so an option of another loop changes no run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import LOOPS, section
from llmrl.core.non_learning_agent import NonLearningAgent
from llmrl.experiment.models import asking
from llmrl.experiment.parts import loop_kind

Config = Mapping[str, Any]

JUDGED = ("objective", "spending_cost")
"""Keys of `design` that the agents of every loop are judged by."""
_PROMPTED = ("agent", "teacher", "principal")
"""Groups whose parts may write prompts."""


def only_read(config: Config) -> dict[str, Any]:
    """Return of a resolved config what its run reads; of one that has been through this, the same again.

    Left out are the sections of other loops, `llm` where no part asks a model, and `prompts` where no part writes any.
    Of `design` every run keeps `JUDGED`.

    Args:
        config: of `llmrl-train`, plain containers.

    Raises:
        ConfigError: a part cannot be found, or they do not go together.
    """
    read = sections_read(config)
    left_out = {section(kind) for kind in LOOPS} - read - {"design"}
    builder = Builder(trusted=config["trusted_modules"])
    if not asking(config):
        left_out.add("llm")
    if not any(builder.needs(config[group], "prompt_folder", group) for group in _PROMPTED):
        left_out.add("prompts")
    kept = {key: value for key, value in config.items() if key not in left_out}
    if "design" not in read:
        kept["design"] = {key: value for key, value in config["design"].items() if key in JUDGED}
    return kept


def sections_read(config: Config) -> set[str]:
    """Return the sections of the loops that the run of a config may need: one, or `learn` and `play` for agents of
    which only the one that is built knows whether it learns."""
    kind = loop_kind(config)
    learns = agent_learns(config) if kind == "learn" else True
    if learns is None:
        return {"learn", "play"}
    return {section(kind) if learns else "play"}


def agent_learns(config: Config) -> bool | None:
    """Return whether the agent of a config learns; None if its class does not say before one is built.

    A class says it by `learns`, or by `plays_if`: an option and the value with which it only plays.
    """
    agent = Builder(trusted=config["trusted_modules"]).locate(config["agent"]["_target_"], "agent")
    if isinstance(agent, type) and issubclass(agent, NonLearningAgent):
        return False
    if (plays_if := getattr(agent, "plays_if", None)) is not None:
        option, value = plays_if
        return bool(config["agent"].get(option) != value)
    learns = getattr(agent, "learns", None)
    return learns if isinstance(learns, bool) else None
