"""Weights that agents begin with, where these are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.run.folder import RESOLVED
from llmrl.run.status import read_status

Config = Mapping[str, Any]


def located(config: Config, play_only: bool = False) -> Config:
    """Return the config to build an agent from: without first weights where these are not there and not needed, because
    the run is only planned, or has weights of its own, which are played. Agents around a language model need them at
    every start, as their checkpoints have only what they have learned.

    Args:
        config: with the runs that it refers to (`run_references.resolved`); of one without them, a preset's run counts
            as not there.
        play_only: the agent is to be given the weights of a checkpoint.
    """
    begun = (config.get("agent") or {}).get("init_from")
    entry = (config.get(RESOLVED) or {}).get("agent.init_from")
    if not isinstance(begun, str) or (entry is None and not begun.startswith("preset:")):
        return config
    preset = entry is None or entry["as"].startswith("preset:")
    folder = Path(begun).expanduser()
    status = read_status(folder) if preset and entry is not None else None
    there = status is not None and status.state == "finished" if preset else folder.is_dir()
    whole = not Builder(trusted=config["trusted_modules"]).needs(config["agent"], "scorer", "agent")
    if not there and (whole or not play_only) and (preset or play_only):
        return {**config, "agent": {**config["agent"], "init_from": None}}
    return config
