"""Saved runs that are evaluated: the newest checkpoint of a run, and its config with changes for evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.permissions import check_permissions
from llmrl.core.errors import ConfigError
from llmrl.core.records import State
from llmrl.run.artifacts import load_saved_state, read_config

ProposalRow = Mapping[str, Any]
"""A row about a proposal in a run's history or recommendations; it contains the objective."""


@dataclass(frozen=True)
class SavedRun:
    """A saved run whose agents can play.

    Attributes:
        folder: run folder.
        config: resolved config in plain containers, with `hardware.device=auto`, so that machines without a GPU can
            evaluate runs that were computed on a GPU.
        iteration: iteration of the loop at the checkpoint.
        loop_state: state of the loop in the checkpoint.
    """

    folder: Path
    config: dict[str, Any]
    iteration: int
    loop_state: State

    @property
    def society_index(self) -> int:
        """Index of the saved agent that plays.

        This is the agent of the best proposal of the last step. If each proposal has several societies, it is the agent
        of the first society, whose seed is that of the run.
        """
        row = find_best_row_of_last_step(self.loop_state.get("history", []))
        return 0 if row is None else int(row["candidate"]) * int(self.config.get("design", {}).get("replicates", 1))

    @property
    def agent_state(self) -> State:
        """State of the agent that plays."""
        return dict(self.loop_state["agents"][self.society_index])


def find_best_row_of_last_step(history: Sequence[ProposalRow]) -> ProposalRow | None:
    """Return the proposal of the last step with the highest objective; None without a history."""
    rows = [row for row in history if row["step"] == history[-1]["step"]]
    return max(rows, key=lambda row: float(row["objective"]), default=None)


def read_saved_run(folder: Path, trusted: Sequence[str] = ()) -> SavedRun:
    """Read the config and the newest checkpoint of a run.

    Args:
        folder: run folder.
        trusted: modules outside llmrl from which the config may import code.

    Raises:
        CheckpointError: `folder` is not a run folder, or has no intact checkpoint.
        RunFolderError: the config cannot be read.
        ConfigError: the run is one of `llmrl-finetune`, or the config names code that is not trusted.
    """
    iteration, state = load_saved_state(folder)
    config = read_config(folder, trusted)
    if "method" in config:
        raise ConfigError(
            f"{folder} is a run of llmrl-finetune, which has no agent to play; see its own evaluation.json"
        )
    check_permissions(config, str(folder / "config.yaml"))
    return SavedRun(folder, {**config, "hardware": {**config["hardware"], "device": "auto"}}, iteration, state)


def remove_principal(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without its principal, which does not play and may need a language model."""
    return {**config, "principal": {"_target_": None}}


def remove_teacher(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without its teacher, unless the agent cannot be built without one."""
    builder = Builder(trusted=config["trusted_modules"])
    needs_teacher = builder.needs(config["agent"], "teacher", "agent") and builder.requires(
        config["agent"], "teacher", "agent"
    )
    return dict(config) if needs_teacher else {**config, "teacher": {"_target_": None}}


def change_llm_budget(config: Mapping[str, Any], calls: int | None) -> Mapping[str, Any]:
    """Return the config with a budget of `calls` replies, unless `calls` is None, and with `llm.max_invalid=null`.

    Invalid replies do not end an evaluation, because it saves its results only at its end.
    """
    if "llm" not in config:  # no part uses a model
        return config
    llm = {**config["llm"], "max_invalid": None}
    if calls is not None:
        llm["budget"] = {**config["llm"]["budget"], "calls": calls, "tokens": None, "usd": None}
    return {**config, "llm": llm}
