"""Saved runs for evaluation: the config, adapted to evaluations, and the newest checkpoint."""

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

Row = Mapping[str, Any]
"""A row of a run's history."""


@dataclass(frozen=True)
class SavedRun:
    """A saved run whose agents can play.

    Attributes:
        folder: run folder.
        config: resolved config in plain containers, with `hardware.device=auto`, so that the run of a GPU can be played
            on any machine.
        iteration: iteration of the checkpoint.
        state: state of the loop in the checkpoint.
    """

    folder: Path
    config: dict[str, Any]
    iteration: int
    state: State

    @property
    def society_index(self) -> int:
        """Index of the saved agent that plays.

        If each step has several proposals, the agent is that of the best proposal of the last step. If each proposal
        has several societies, the agent is that of the first one, which has the run's own seed.
        """
        row = find_best_row_of_last_step(self.state.get("history", []))
        return 0 if row is None else int(row["candidate"]) * int(self.config.get("design", {}).get("replicates", 1))

    @property
    def agent(self) -> State:
        """State of the agent that plays."""
        return dict(self.state["agents"][self.society_index])


def find_best_row_of_last_step(history: Sequence[Row]) -> Row | None:
    """Return the row of the history with the highest objective of the last step; None without a history."""
    rows = [row for row in history if row["step"] == history[-1]["step"]]
    return max(rows, key=lambda row: float(row["objective"]), default=None)


def read_saved_run(folder: Path, trusted: Sequence[str] = ()) -> SavedRun:
    """Read the config and the newest checkpoint of a run.

    Args:
        folder: run folder.
        trusted: modules outside this package that the config may name.

    Raises:
        CheckpointError: `folder` is not a run folder, or has no intact checkpoint.
        RunFolderError: the config cannot be read.
        ConfigError: it is a run of `llmrl-finetune`, or names code that is not trusted.
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
    """Return the config without its principal, so that no language model of the principal is called."""
    return {**config, "principal": {"_target_": None}}


def remove_teacher(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without its teacher and the teacher's language model, unless the agent needs it."""
    builder = Builder(trusted=config["trusted_modules"])
    needs_teacher = builder.needs(config["agent"], "teacher", "agent") and builder.requires(
        config["agent"], "teacher", "agent"
    )
    return dict(config) if needs_teacher else {**config, "teacher": {"_target_": None}}


def with_budget(config: Mapping[str, Any], calls: int | None) -> Mapping[str, Any]:
    """Return the config with a budget of `calls` replies (None: that of the run).

    Invalid replies are only counted, because an evaluation that stopped at them would save nothing.
    """
    if "llm" not in config:  # no part uses a model
        return config
    llm = {**config["llm"], "max_invalid": None}
    if calls is not None:
        llm["budget"] = {**config["llm"]["budget"], "calls": calls, "tokens": None, "usd": None}
    return {**config, "llm": llm}
