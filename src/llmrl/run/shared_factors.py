"""Random factors that several runs share, by level, so that their results are correlated.

Runs of different seeds are independent only if they share no such factor. A report therefore first averages the runs
that start from the same pre-training run.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.seeding import Seeds
from llmrl.run.folder import parse_seed

PRETRAINING = "pre-training"
SOCIETY = "society"
REPLIES = "replies"

SharedFactors = dict[str, list[str]]
"""Names of the factors of a run, by level. Two runs share a factor if both have it at the same level."""

_REPLAY_TARGET = "llmrl.llms.replay.ReplayChat"


def list_shared_factors(config: Mapping[str, Any], uses_llm: bool) -> SharedFactors:
    """Return the factors that the run of a resolved config shares with other runs of its experiment, by level.

    `pre-training`: the earlier runs whose weights or episodes it starts from, each `<name>/<run>/s<seed>`.
    `society`: the roots of its societies' seed trees, if it has several. `replies`: the source of its language model's
    replies, if runs of several seeds get the same ones. A level without factors is left out.

    Args:
        config: resolved config as plain data.
        uses_llm: whether a part of the run uses the language model of the config.
    """
    agent, design = config.get("agent") or {}, config.get("design") or {}
    llm = config["llm"] if uses_llm else {}
    earlier_runs = [agent.get("init_from"), agent.get("data"), llm.get("adapter")]
    factors_by_level = {PRETRAINING: [get_run_name(path) for path in earlier_runs if isinstance(path, str)]}
    if design.get("replicates", 1) != 1 and (config.get("principal") or {}).get("_target_"):
        seeds = Seeds(config["seed"]).replicates(design["replicates"])
        factors_by_level[SOCIETY] = [replicate.replicate_label for replicate in seeds]
    if llm.get("_target_") != _REPLAY_TARGET:
        factors_by_level[REPLIES] = ["all seeds"] if llm.get("share_cache") else []
    elif parse_seed(Path(llm["calls"])) is not None:  # a folder of several runs has replies for each seed
        factors_by_level[REPLIES] = [get_run_name(llm["calls"])]
    return {level: names for level, names in factors_by_level.items() if names}


def get_run_name(folder: str) -> str:
    """Return the last three parts of a run folder's path, `name/run/s<seed>`, which do not depend on `output_root`."""
    return "/".join(Path(folder).expanduser().absolute().parts[-3:])
