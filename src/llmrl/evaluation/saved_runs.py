"""A run as it was saved, to be played: its config as evaluations compute it, and its newest checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.config.builder import Builder
from llmrl.config.trusting import check_known
from llmrl.core.errors import ConfigError
from llmrl.core.records import State
from llmrl.run.content import read_config, saved_state


@dataclass(frozen=True)
class SavedRun:
    """A run whose agents can play.

    Attributes:
        folder: of the run.
        config: resolved, plain containers; the device is chosen here, as a run computed on a cluster's GPU can be
            looked at anywhere.
        iteration: of the checkpoint.
        state: of the loop, as the checkpoint has it.
    """

    folder: Path
    config: dict[str, Any]
    iteration: int
    state: State

    @property
    def society(self) -> int:
        """Which of the saved agents plays (`mechanisms.society`)."""
        from llmrl.evaluation.mechanisms import society

        return society(self.state.get("history", []), self.config.get("design", {}).get("societies", 1))

    @property
    def agent(self) -> State:
        """The state of the agent that plays."""
        return dict(self.state["agents"][self.society])


def open_saved(folder: Path, trusted: Sequence[str] = ()) -> SavedRun:
    """Read a run to be played.

    Args:
        folder: of the run.
        trusted: modules that its config may name although they are no part of this package.

    Raises:
        CheckpointError: it is no run folder, or has no whole checkpoint.
        RunFolderError: its config cannot be read.
        ConfigError: it is a run of `llmrl-finetune`, or names code that is not trusted.
    """
    iteration, state = saved_state(folder)
    config = read_config(folder, trusted)
    if "method" in config:
        raise ConfigError(
            f"{folder} is a run of llmrl-finetune, which has no agent to play; it evaluates itself: see its "
            "evaluation.json"
        )
    check_known(config, str(folder / "config.yaml"))
    return SavedRun(folder, {**config, "hardware": {**config["hardware"], "device": "auto"}}, iteration, state)


def alone(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config without its principal, whose language model might cost money."""
    return {**config, "principal": {"_target_": None}}


def without_teacher(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with no teacher where the agent plays without one: a language model behind it is then not needed."""
    builder = Builder(trusted=config["trusted_modules"])
    needed = builder.needs(config["agent"], "teacher", "agent") and builder.insists(config["agent"], "teacher", "agent")
    return dict(config) if needed else {**config, "teacher": {"_target_": None}}


def with_budget(config: Mapping[str, Any], calls: int | None) -> Mapping[str, Any]:
    """The config as evaluations ask: with a budget of their own, so many replies (None: that of the run), and where
    invalid replies are only counted, as an evaluation has nothing to save."""
    if "llm" not in config:  # nobody asks a model
        return config
    llm = {**config["llm"], "max_invalid": None}
    if calls is not None:
        llm["budget"] = {**config["llm"]["budget"], "calls": calls, "tokens": None, "usd": None}
    return {**config, "llm": llm}
