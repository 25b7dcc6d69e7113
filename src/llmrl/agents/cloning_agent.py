"""`agent=bc`: learns to do what was done in recorded trajectories, then plays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import yaml

from llmrl.algorithms.cloning import BehaviouralCloning, CloningSettings
from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.errors import ConfigError, Incompatible, Misfit
from llmrl.core.protocols import Agent, AgentLoop, Teacher
from llmrl.core.ranges import PositiveInt, UnitInterval
from llmrl.core.records import State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.core.text_array import TextArray, TextTable
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.trajectories import FOLDER, Trajectories, read

WORDING = ("language", "actions", "history", "template", "replace")
"""Options of environments in words that say how what happens is told."""


class CloningAgent:
    """An agent that is taught by examples alone, and becomes what `student` could have become by reward.

    Its weights are saved as the student saves them, so `agent.init_from` of such an agent can begin with them.

    Args:
        spec: of the environment it plays.
        seeds: what is held out comes from its stream `held_out`, the order of samples from `order`.
        device: torch device.
        student: the agent whose policy is trained; one network that reads a channel of texts.
        data: run folder (or one of its files) with trajectories of whoever is to be imitated.
        episodes: imitate all episodes, or those with a success above 0.
        limit: steps to use at most, those that come first; None: all.
        held_out: share of the episodes that is not learned from, but measured with.
        cloning: hyperparameters.
        teacher: nobody else teaches it: None.
        env_options: fields of the environment it plays, as the config has them; None: not known.

    Raises:
        ConfigError: the student is no such agent, or there is a teacher.
    """

    loop: ClassVar[AgentLoop] = "clone"
    learns = True
    reads_texts: ClassVar[bool] = True

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        student: Agent,
        data: str | None,
        episodes: Literal["all", "successful"],
        limit: PositiveInt | None,
        held_out: UnitInterval,
        cloning: CloningSettings,
        teacher: Teacher | None = None,
        env_options: Mapping[str, Any] | None = None,
    ) -> None:
        if teacher is not None:
            raise Incompatible(Misfit.UNTAUGHT, "agent=bc is taught by what it imitates alone; use teacher=none")
        self.student, self.policy, self.spec, self.device = student, student.policy, spec, device
        self._data, self._episodes, self._limit, self._held_out = data, episodes, limit, held_out
        self._seeds, self._settings = seeds, cloning
        self._env_options = dict(env_options or {})
        self._channel = _text_channel(student, spec)
        self._cloning: BehaviouralCloning | None = None

    def imitate(self, epochs: int) -> BehaviouralCloning:
        """What there is to learn, read from the disk.

        Raises:
            ConfigError: there is nothing, or it cannot be learned here.
            RunFolderError: there are no trajectories.
        """
        if self._data is None:
            raise ConfigError(
                "agent.data=<run folder> is missing: agent=bc learns from trajectories that another run has kept, e.g. "
                "llmrl-train agent=bot play.trajectories=true"
            )
        place = Path(self._data).expanduser()
        trajectories = self._usable(read(place))
        self._check_wording(_recorded_in(place))
        actions = self._translated(trajectories)
        kept_back = self._kept_back(trajectories)
        table = TextTable(trajectories.prompts)
        parts: list[Batch] = []
        for chosen in (np.flatnonzero(~kept_back), np.flatnonzero(kept_back)):
            places = torch.from_numpy(trajectories.prompt[chosen].astype(np.int64))
            parts.append(
                {
                    self._channel: TextArray(places, table),
                    "action": torch.from_numpy(actions[chosen]).to(self.device),
                }
            )
        [(network, _)] = self.policy.groups()  # type: ignore[attr-defined]
        self._cloning = BehaviouralCloning(network, self._settings, parts[0], parts[1], self._seeds, epochs)
        return self._cloning

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        """Its own games teach it nothing."""
        return {}

    def adapt(self, spec: EnvSpec) -> None:
        """Play from now on with this spec's actions.

        Raises:
            ConfigError: the student cannot.
        """
        adapt = getattr(self.student, "adapt", None)
        if adapt is None:
            raise ConfigError(f"{type(self.student).__name__} cannot play with other actions than it was made for")
        adapt(spec)

    def reset(self) -> None:
        self.student.reset()

    def describe(self) -> dict[str, Any]:
        return {**self.student.describe(), "imitates": self._data or "nobody"}

    def state_dict(self) -> State:
        return {**self.student.state_dict(), "cloning": None if self._cloning is None else self._cloning.state_dict()}

    def load_state_dict(self, state: State) -> None:
        self.student.load_state_dict(state)
        if self._cloning is not None and state["cloning"] is not None:
            self._cloning.load_state_dict(state["cloning"])

    def _usable(self, trajectories: Trajectories) -> Trajectories:
        """The steps that can be learned from."""
        if not trajectories.action_names:
            raise ConfigError(
                f"agent.data={self._data}: its actions are several numbers each, and agent=bc imitates choices"
            )
        found = trajectories.rows(np.flatnonzero(trajectories.prompt >= 0)[: self._limit])
        if not len(found):
            raise ConfigError(
                f"agent.data={self._data}: {len(trajectories):,} steps, and of none it is known what could be read; "
                "record them in an environment of texts, e.g. env=babyai_text"
            )
        if self._episodes == "successful":
            chosen = np.flatnonzero(found.success > 0)
            if not len(chosen):
                raise ConfigError(
                    f"agent.data={self._data}: none of its {len(found):,} steps is of an episode that is known to have "
                    "succeeded; use agent.episodes=all, or other data"
                )
            found = found.rows(chosen)
        return found

    def _check_wording(self, recorded: Mapping[str, Any]) -> None:
        """Refuse prompts that were made otherwise than those of the games that are played; `recorded` are the options
        of the environment of the data. What only one of the two environments has is not compared."""
        own = self._env_options
        for name in WORDING:
            if name in recorded and name in own and recorded[name] != own[name]:
                theirs, ours = (f"env.{name}={_typed(options[name])}" for options in (recorded, own))
                raise ConfigError(
                    f"agent.data={self._data}: its prompts were made with {theirs}, and those of env={self.spec.name} "
                    f"are with {ours}; use {theirs}, or data recorded with {ours}"
                )

    def _translated(self, trajectories: Trajectories) -> np.ndarray:
        """What was done, as places in this environment's actions, [n] int64."""
        own = {name: i for i, name in enumerate(self.spec.action_names)}
        done = np.asarray(trajectories.action, dtype=np.int64)
        lacking = [name for i in np.unique(done) if (name := trajectories.action_names[i]) not in own]
        if lacking:
            raise ConfigError(
                f"agent.data={self._data}: there the action {lacking[0]!r} was taken, and env={self.spec.name} has "
                f"{', '.join(own)}; use the env.actions and env.language of the data"
            )
        return np.array([own.get(name, -1) for name in trajectories.action_names], dtype=np.int64)[done]

    def _kept_back(self, trajectories: Trajectories) -> np.ndarray:
        """Which steps are held out, [n] bool: whole episodes, so that no situation is in both parts."""
        # What goes on from before the recording began is one episode for each game.
        episode = np.where(trajectories.episode >= 0, trajectories.episode, -1 - trajectories.game)
        different = np.unique(episode)
        n = round(self._held_out * len(different))
        if n == len(different):
            raise ConfigError(
                f"agent.held_out={self._held_out:g} of {len(different)} episodes leaves none to learn from; use less"
            )
        order = torch.randperm(len(different), generator=self._seeds.torch("held_out")).numpy()
        return np.isin(episode, different[order[:n]])


def _recorded_in(place: Path) -> dict[str, Any]:
    """The options of the environment in which the trajectories of a run folder, or one of its files, were recorded;
    none where no run has its config beside them."""
    folder = place.parent if place.is_file() else place
    path = (folder.parent if folder.name == FOLDER else folder) / CONFIG_NAME
    if not path.is_file():
        return {}
    try:
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"agent.data={place}: {path}, which says how prompts were made, cannot be read ({error}); use another run"
        ) from error
    env = config.get("env") if isinstance(config, dict) else None
    return dict(env) if isinstance(env, dict) else {}


def _typed(value: Any) -> str:
    """A value as one types it on the command line."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{key}: {_typed(x)}' for key, x in value.items())}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_typed, value))}]"
    return "null" if value is None else str(value)


def _text_channel(student: Agent, spec: EnvSpec) -> str:
    """The one channel that the student reads.

    Raises:
        ConfigError: it learns nothing, is not one network, or reads something else than trajectories hold.
    """
    policy: Any = student.policy
    groups = policy.groups() if hasattr(policy, "groups") and student.learns else []
    if len(groups) != 1:
        raise ConfigError(
            f"agent.student: agent=bc trains one network by its gradient, and {type(student).__name__} is none that "
            "learns so; use agent@agent.student=llm_ppo"
        )
    channels: list[str] = [name for name in policy.channels if name != "action_mask"]
    if len(channels) != 1 or spec.observation[channels[0]].dtype != "object" or policy.recurrent:
        raise ConfigError(
            f"agent.student: trajectories hold what was read, and {type(student).__name__} takes in "
            f"{', '.join(channels)}{' and remembers' if policy.recurrent else ''}; use agent@agent.student=llm_ppo"
        )
    return channels[0]
