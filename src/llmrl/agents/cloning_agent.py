"""Agent `agent=bc`, which learns by behavioral cloning of recorded trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.algorithms.cloning import BehavioralCloning, CloningSettings
from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError, IncompatibilityReason, Incompatible
from llmrl.core.protocols import Agent, AgentLoop, Teacher
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.text_array import TextArray, TextTable
from llmrl.run.artifacts import CONFIG_NAME, read_config
from llmrl.run.trajectories import FOLDER, Trajectories, read_trajectories

PROMPT_WORDING_OPTIONS = ("language", "actions", "history", "template", "replace")
"""Options of text environments that determine the wording of prompts."""


@dataclass(frozen=True)
class CloningAgentSettings:
    """Options of `CloningAgent`; ranges are in `conf/agent/bc.yaml`.

    Attributes:
        data: run folder, or a file in it, with trajectories to imitate.
        episodes: whether all episodes are used, or only those with a success above 0.
        limit: maximum number of steps to use, from the first on; None: all.
        held_out: fraction of the episodes that is used only for validation.
        cloning: hyperparameters.
    """

    data: str | None
    episodes: Literal["all", "successful"]
    limit: PositiveInt | None
    held_out: UnitInterval
    cloning: CloningSettings


class CloningAgent:
    """Agent that learns only from recorded trajectories, with the network of the agent `student`.

    Its weights are saved in the student's format, so that `agent.init_from` of that agent can load them.

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree; stream `held_out` selects validation episodes, `order` the order of samples.
        device: torch device.
        student: agent whose policy is trained: one network that reads a text channel.
        teacher: must be None.
        env_options: options of the environment, as in the config; None: unknown.

    Raises:
        ConfigError: the student has no such policy, or there is a teacher.
    """

    loop: ClassVar[AgentLoop] = "clone"
    learns = True
    reads_texts: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        settings: CloningAgentSettings,
        seeds: Seeds,
        device: str,
        student: Agent,
        teacher: Teacher | None = None,
        env_options: Mapping[str, Any] | None = None,
    ) -> None:
        if teacher is not None:
            raise Incompatible(
                IncompatibilityReason.NOT_TRAINABLE, "agent=bc learns only from recorded trajectories; use teacher=none"
            )
        self.student, self.policy, self.spec, self.device = student, student.policy, spec, device
        self._seeds, self._settings, self._data = seeds, settings, settings.data
        self._env_options = env_options or {}
        self._text_channel = _find_text_channel(student, spec)
        self._learner: BehavioralCloning | None = None

    def imitate(self, epochs: int) -> BehavioralCloning:
        """Read the trajectories from disk and return a learner that makes `epochs` passes over them.

        Raises:
            ConfigError: there are no trajectories to learn from, or they do not fit this agent.
            RunFolderError: the folder contains no trajectories, or its config cannot be read.
        """
        if self._data is None:
            raise ConfigError(
                "agent.data=<run folder> is missing: agent=bc learns from the trajectories of another run, e.g. of "
                "llmrl-train agent=bot play.trajectories=true"
            )
        path = Path(self._data).expanduser()
        trajectories = self._select_steps(read_trajectories(path))
        self._check_wording(_read_recorded_env_options(path))
        actions = self._map_actions(trajectories)
        validation_mask = self._sample_validation_mask(trajectories)
        table = TextTable(trajectories.prompts)
        batches: list[Batch] = []
        for indices in (np.flatnonzero(~validation_mask), np.flatnonzero(validation_mask)):
            prompt_indices = torch.from_numpy(trajectories.prompt[indices].astype(np.int64))
            batches.append(
                {
                    self._text_channel: TextArray(prompt_indices, table),
                    "action": torch.from_numpy(actions[indices]).to(self.device),
                }
            )
        [(network, _)] = self.policy.list_networks()  # type: ignore[attr-defined]
        self._learner = BehavioralCloning(network, self._settings.cloning, batches[0], batches[1], self._seeds, epochs)
        return self._learner

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Return no metrics: the agent does not learn from rollouts."""
        return {}

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on.

        Raises:
            ConfigError: the student does not support it.
        """
        adapt = getattr(self.student, "adapt", None)
        if adapt is None:
            raise ConfigError(
                f"agent.student: {type(self.student).__name__} cannot play with other actions than those it was built "
                "with; use agent@agent.student=llm_ppo"
            )
        adapt(spec)

    def reset(self) -> None:
        self.student.reset()

    def describe(self) -> dict[str, Any]:
        return {**self.student.describe(), "imitates": self._data or "nobody"}

    def state_dict(self) -> State:
        return {**self.student.state_dict(), "cloning": None if self._learner is None else self._learner.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.student.load_state_dict(state)
        if self._learner is not None and state["cloning"] is not None:
            self._learner.load_state_dict(state["cloning"])

    def _select_steps(self, trajectories: Trajectories) -> Trajectories:
        """Return the steps to learn from."""
        if not trajectories.action_names:
            raise ConfigError(
                f"agent.data={self._data}: its actions consist of several numbers, but agent=bc imitates discrete "
                "actions; use other data"
            )
        steps = trajectories.select(np.flatnonzero(trajectories.prompt >= 0)[: self._settings.limit])
        if not len(steps):
            raise ConfigError(
                f"agent.data={self._data}: none of its {len(trajectories):,} steps has a text; record them in a text "
                "environment, e.g. env=babyai_text"
            )
        if self._settings.episodes == "successful":
            success_indices = np.flatnonzero(steps.success > 0)
            if not len(success_indices):
                raise ConfigError(
                    f"agent.data={self._data}: none of its {len(steps):,} steps is from a successful episode; use "
                    "agent.episodes=all or other data"
                )
            steps = steps.select(success_indices)
        return steps

    def _check_wording(self, recorded_options: Mapping[str, Any]) -> None:
        """Raise ConfigError if the trajectories' prompts were built with other wording options than the environment's.

        `recorded_options`: options of the environment in which they were recorded. Options that only one of the
        environments has are not compared.
        """
        env_options = self._env_options
        for name in PROMPT_WORDING_OPTIONS:
            if name in recorded_options and name in env_options and recorded_options[name] != env_options[name]:
                recorded_setting, env_setting = (
                    f"env.{name}={_format_as_yaml(options[name])}" for options in (recorded_options, env_options)
                )
                raise ConfigError(
                    f"agent.data={self._data}: its prompts were built with {recorded_setting}, but "
                    f"env={self.spec.name} has {env_setting}; use {recorded_setting}, or data recorded with "
                    f"{env_setting}"
                )

    def _map_actions(self, trajectories: Trajectories) -> np.ndarray:
        """Return the recorded actions as indices of this environment's actions, [n] int64."""
        names, index_by_name = trajectories.action_names, {name: i for i, name in enumerate(self.spec.action_names)}
        recorded_actions = np.asarray(trajectories.action, dtype=np.int64)
        unknown_names = [names[i] for i in np.unique(recorded_actions) if names[i] not in index_by_name]
        if unknown_names:
            raise ConfigError(
                f"agent.data={self._data}: its action {unknown_names[0]!r} does not exist in env={self.spec.name}, "
                f"which has {', '.join(index_by_name)}; use the env.actions and env.language of the data"
            )
        return np.array([index_by_name.get(name, -1) for name in names], dtype=np.int64)[recorded_actions]

    def _sample_validation_mask(self, trajectories: Trajectories) -> np.ndarray:
        """Return whether each step is used for validation, [n] bool, for random whole episodes."""
        episode_ids = np.unique(trajectories.episode)
        fraction = self._settings.held_out
        n_validation = round(fraction * len(episode_ids))
        if n_validation == len(episode_ids):
            raise ConfigError(
                f"agent.held_out={fraction:g} of {len(episode_ids)} episodes leaves none to learn from; use a smaller "
                "share"
            )
        permutation = torch.randperm(len(episode_ids), generator=self._seeds.torch("held_out")).numpy()
        return np.isin(trajectories.episode, episode_ids[permutation[:n_validation]])


def _read_recorded_env_options(path: Path) -> Mapping[str, Any]:
    """Return the options of the environment in which trajectories were recorded; empty if no config is next to them."""
    folder = path.parent if path.is_file() else path
    folder = folder.parent if folder.name == FOLDER else folder
    return (read_config(folder, ()).get("env") or {}) if (folder / CONFIG_NAME).is_file() else {}


def _format_as_yaml(value: Any) -> str:
    """Return a value of YAML as it is typed on the command line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_format_as_yaml(x)}' for key, x in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_format_as_yaml, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


def _find_text_channel(student: Agent, spec: EnvSpec) -> str:
    """Return the text channel, the only channel that the student reads.

    Raises:
        ConfigError: the student does not learn, has several networks or a memory, or reads other inputs than one text.
    """
    policy: Any = student.policy
    networks = policy.list_networks() if hasattr(policy, "list_networks") and student.learns else []
    if len(networks) != 1:
        raise ConfigError(
            f"agent.student: agent=bc trains an agent with one differentiable network, but {type(student).__name__} "
            f"has {len(networks)}; use agent@agent.student=llm_ppo"
        )
    channels: list[str] = [name for name in policy.channels if name != "action_mask"]
    if len(channels) != 1 or spec.observation[channels[0]].dtype != "object" or policy.recurrent:
        raise ConfigError(
            f"agent.student: trajectories hold texts, but {type(student).__name__} reads {', '.join(channels)}"
            f"{' and has a memory' if policy.recurrent else ''}; use agent@agent.student=llm_ppo"
        )
    return channels[0]
