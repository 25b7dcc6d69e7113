"""What runs have in common that might have come out otherwise: the levels at which results vary together.

Runs of different seeds are only as independent as this allows. A report averages the runs of one
pre-training run first.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.seeding import Seeds
from llmrl.run.folder_names import seed_of

PRETRAINING = "pre-training"
SOCIETY = "society"
REPLIES = "replies"

Shared = dict[str, list[str]]
"""Level -> what a run has there. Two runs that list the same thing at a level share it."""

_REPLAY = "llmrl.llms.replay.ReplayChat"


def shared_of(config: Mapping[str, Any], asks: bool) -> Shared:
    """Return what the run of a resolved config shares with other runs of its experiment, by level.

    `pre-training`: the earlier runs whose weights or episodes it begins with, each `<name>/<run>/s<seed>`.
    `society`: the seed trees of its societies, where it has several. `replies`: where the replies of a language model
    come from, if runs of several seeds get the same ones. A level at which the run has nothing is left out.

    Args:
        config: resolved, plain containers.
        asks: a part of the run uses the language model of the config.
    """
    llm = config["llm"] if asks else {}
    found = {PRETRAINING: _pretraining(config, llm), SOCIETY: _societies(config), REPLIES: _replies(llm)}
    return {level: names for level, names in found.items() if names}


def run_name(folder: str) -> str:
    """Return the end of a run folder's path that tells it from others, wherever the folder is: `name/run/s<seed>`."""
    return "/".join(Path(folder).expanduser().absolute().parts[-3:])


def _pretraining(config: Mapping[str, Any], llm: Mapping[str, Any]) -> list[str]:
    agent = config.get("agent") or {}
    started = [agent.get("init_from"), agent.get("data"), llm.get("adapter")]
    return [run_name(place) for place in started if isinstance(place, str)]


def _societies(config: Mapping[str, Any]) -> list[str]:
    design = config.get("design") or {}
    if design.get("replicates", 1) == 1 or not (config.get("principal") or {}).get("_target_"):
        return []
    trees = Seeds(config["seed"]).replicates(design["replicates"], design["society_seeds"] == "consecutive")
    return [tree.root for tree in trees]


def _replies(llm: Mapping[str, Any]) -> list[str]:
    if llm.get("_target_") == _REPLAY:
        # A folder of all seeds has replies of its own for each.
        return [run_name(llm["calls"])] if seed_of(Path(llm["calls"])) is not None else []
    return ["all seeds"] if llm.get("cache_across_seeds") else []
