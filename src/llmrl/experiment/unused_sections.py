"""Removal of the config's sections that a run does not read, so that an option of another loop changes no run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.loop_sections import LOOPS, agent_learns, section
from llmrl.experiment.models import asking
from llmrl.experiment.parts import loop_kind

Config = Mapping[str, Any]

JUDGED = ("objective", "spending_cost")
"""Keys of `design` that evaluate the agents of every loop."""
_PROMPTED = ("agent", "teacher", "principal")
"""Groups whose parts may write prompts."""


def only_read(config: Config) -> dict[str, Any]:
    """Return a resolved config without the sections that its run does not read.

    These are the sections of other loops, `llm` if no part uses a model, and `prompts` if no part writes any. Every run
    keeps the keys `JUDGED` of `design`. Applying this twice changes nothing more.

    Args:
        config: resolved config of `llmrl-train`, plain data.

    Raises:
        ConfigError: a part cannot be found, or parts cannot work together.
    """
    builder = Builder(trusted=config["trusted_modules"])
    kind = loop_kind(config, builder)
    learns = agent_learns(config, builder) if kind == "learn" else True
    # Of some agents only the built object knows whether it learns.
    read = {"learn", "play"} if learns is None else {section(kind) if learns else "play"}
    excess_keys = {section(loop) for loop in LOOPS} - read - {"design"}
    if not asking(config):
        excess_keys.add("llm")
    if not any(builder.needs(config[group], "prompt_folder", group) for group in _PROMPTED):
        excess_keys.add("prompts")
    run_config = {key: value for key, value in config.items() if key not in excess_keys}
    if "design" not in read:
        run_config["design"] = {key: value for key, value in config["design"].items() if key in JUDGED}
    return run_config
