"""Agents `agent=ppo` and `agent=pg`: actor-critics trained by PPO or a plain policy gradient."""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.algorithms.meta_gradient import MetaGradient
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop, Teacher
from llmrl.core.ranges import NonNegativeInt
from llmrl.core.records import MetaSettings, Pretraining, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks.actor_critic import ActorCritic, NetworkSettings
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.run.artifacts import load_saved_state, read_config

logger = logging.getLogger(__name__)

FreezeMode = Literal["auto", "none", "core", "all"]


@dataclass(frozen=True, kw_only=True)
class PPOAgentSettings(NetworkSettings):
    """Options of `PPOAgent`; those of the networks are inherited. Units and ranges are in `conf/agent/ppo.yaml`.

    Attributes:
        share_parameters: whether all agents share one network, with the agent's index as input; else each has one.
        freeze: weights that never change: `none`, the `core` (its features are then computed once per rollout), or
            `all`; `auto`: `core` if a principal governs agents that observe pixels (as in published studies), else
            `none`.
        init_from: run folder whose newest checkpoint contains the initial weights; None: random weights.
        init_from_seed: seed of that run; not used here, because `init_from` already names the run.
        init_parts: whether `all` weights are loaded, or only those of the `core`.
        keep_optimizer: whether Adam's moments are kept when weights are reset, as in one published study.
        ppo: hyperparameters of PPO.
    """

    share_parameters: bool
    freeze: FreezeMode
    init_from: str | None
    init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own"
    init_parts: Literal["all", "core"]
    keep_optimizer: bool
    ppo: PPOSettings


class PPOAgent:
    """Actor-critics of all agents with their learner.

    Args:
        spec: spec of the environment.
        settings: options.
        seeds: seed tree; initial weights come from its stream `weights`.
        device: torch device.
        has_principal: whether a principal governs these agents.
        teacher: teacher that adds a loss; None: no teacher.

    Raises:
        ConfigError: the loaded weights do not fit this agent, there is a teacher but the agent does not learn, or
            network settings exclude each other.
        CheckpointError: `init_from` contains no checkpoint.
    """

    loop: ClassVar[AgentLoop] = "learn"
    no_learning_setting = ("freeze", "all")
    """(option, value): with this value the agent does not learn."""
    memory_option = "memory"
    """Option that is null unless networks have a memory."""

    def __init__(
        self,
        spec: EnvSpec,
        settings: PPOAgentSettings,
        seeds: Seeds,
        device: str,
        has_principal: bool,
        teacher: Teacher | None = None,
    ) -> None:
        freeze = settings.freeze
        if freeze == "auto":
            freeze = "core" if has_principal and "pixels" in spec.observation else "none"
        _check_settings(settings, freeze, teacher)
        generator = seeds.torch("weights")
        n_networks = 1 if settings.share_parameters else spec.n_agents
        networks = [ActorCritic(spec, generator, settings) for _ in range(n_networks)]
        self.policy = SocietyPolicy(spec, networks, core_frozen=freeze == "core").to(device)
        self.learns = freeze != self.no_learning_setting[1]
        self._keep_optimizer = settings.keep_optimizer
        init_dir = None if settings.init_from is None else Path(settings.init_from)
        if freeze == "core" and init_dir is None:
            logger.info("the agents' core is frozen at random weights; agent.init_from=<run> would load trained ones")
        self.shares_learning = init_dir is not None
        self.pretraining = None if init_dir is None else read_pretraining(init_dir)
        self._ppo = PPO(self.policy, settings.ppo, teacher) if self.learns else None
        if init_dir is not None:
            self._load_weights(init_dir, settings.init_parts)
        self._initial_weights = copy.deepcopy(self.policy.state_dict())

    def min_rollout_steps(self, games: int) -> int:
        return 1 if self._ppo is None else self._ppo.min_rollout_steps(games)

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {} if self._ppo is None else self._ppo.update(rollout, generator)

    @property
    def learner(self) -> PPO | None:
        """PPO learner (`HasPPOLearner`); None if the agent does not learn, or a subclass overrides `update`."""
        return self._ppo if type(self).update is PPOAgent.update else None

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaGradient:
        """Return the learner as a differentiable function of the mechanism's `values` [d], for one principal step.

        Raises:
            ConfigError: the agents do not learn or have a memory, or the learner is not differentiable.
        """
        if self._ppo is None:
            raise ConfigError(
                "agent.freeze=all: agents do not learn, so there is no update to differentiate; use another value"
            )
        if self.policy.recurrent:
            raise ConfigError(
                "agent.memory: updates of agents with a memory cannot be differentiated; use agent.memory=null"
            )
        return MetaGradient(self._ppo, values, settings)

    def reset(self) -> None:
        self.policy.load_state_dict(self._initial_weights)
        if self._ppo is not None:
            self._ppo.reset(self._keep_optimizer)

    def describe(self) -> dict[str, Any]:
        parameters = list(self.policy.parameters())
        trainable = sum(p.numel() for p in parameters if p.requires_grad) if self.learns else 0
        return {
            "policy": " + ".join(_list_part_names(self.policy.list_networks()[0][0])) + " actor-critic",
            "networks": len(self.policy.members),
            "parameters": sum(p.numel() for p in parameters),
            "trainable": trainable,
        }

    def state_dict(self) -> State:
        learner = None if self._ppo is None else self._ppo.state_dict()
        return {"policy": dict(self.policy.state_dict()), "learner": learner}

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state["policy"])
        if self._ppo is not None:
            self._ppo.load_state_dict(state["learner"])

    def _load_weights(self, folder: Path, parts: str) -> None:
        agent_state = load_saved_state(folder)[1].get("agents", [{}])[-1]
        weights = agent_state.get("policy")
        if weights is None:
            raise ConfigError(f"agent.init_from={folder}: the agent of that run has no weights; use another run")
        if parts == "core":
            weights = {name: x for name, x in weights.items() if ".core." in name}
        current_weights = self.policy.state_dict()
        mismatched = [n for n, x in weights.items() if n not in current_weights or current_weights[n].shape != x.shape]
        if mismatched or (parts == "all" and set(weights) != set(current_weights)):
            first_difference = (mismatched or sorted(set(current_weights) ^ set(weights)))[0]
            core_fits = parts == "all" and not any(".core." in name for name in mismatched)
            raise ConfigError(
                f"agent.init_from={folder}: its weights do not fit this agent (first difference: {first_difference}); "
                "use the same env (and env.rules), agent.features and "
                f"agent.share_parameters{', or agent.init_parts=core for the core alone' if core_fits else ''}"
            )
        self.policy.load_state_dict({**current_weights, **weights})
        learner_state = agent_state.get("learner") or {}
        if self._ppo is not None and parts == "all" and "scales" in learner_state:
            self._ppo.set_initial_scales(learner_state["scales"])  # units of the loaded critic's predictions


def _check_settings(settings: PPOAgentSettings, freeze: FreezeMode, teacher: Teacher | None) -> None:
    """Raise ConfigError if options are invalid or exclude each other; `freeze` must not be `auto`."""
    if settings.critic != "own" and freeze == "core":
        raise ConfigError(
            f"agent.freeze=core needs a shared core, but agent.critic={settings.critic} has its own; use "
            "agent.freeze=none"
        )
    if settings.normalize_observations and freeze == "core":
        raise ConfigError(
            "agent.normalize_observations=true changes the inputs of the core, but agent.freeze=core stores its "
            "outputs; use agent.freeze=none"
        )
    if not settings.map_channels:
        raise ConfigError(
            "agent.map_channels is empty; give at least one convolution, e.g. [8, 16], or use agent.core=mlp"
        )
    if teacher is not None and freeze == "all":
        raise ConfigError("agent.freeze=all: agents that do not learn cannot have a teacher; use teacher=none")


def _list_part_names(network: ActorCritic) -> list[str]:
    """Return the names of a network's parts, for display."""
    names = [type(network.core).__name__]
    names += [] if network.memory is None else [f"LSTM {network.memory.n_layers}x{network.memory.n_units}"]
    return [*names, "central critic"] if network.has_central_critic else names


def read_pretraining(run: Path) -> Pretraining | None:
    """Return the pretraining of the agents of a run; None if the run did not train agents with `learn`.

    Args:
        run: run folder.

    Raises:
        RunFolderError: the config cannot be read.
    """
    learn_settings = read_config(run, ()).get("learn")
    if not isinstance(learn_settings, Mapping) or "env_steps" not in learn_settings:
        return None
    boxes = list(_iterate_boxes(learn_settings.get("mechanism")))
    if not boxes:
        return Pretraining(int(learn_settings["env_steps"]))
    low = np.min([box[0] for box in boxes], axis=0)
    high = np.max([box[1] for box in boxes], axis=0)
    return Pretraining(int(learn_settings["env_steps"]), tuple(low.tolist()), tuple(high.tolist()))


def _iterate_boxes(mechanism: Any) -> Iterator[tuple[list[float], list[float]]]:
    """Yield the lowest and highest values of each box of `learn.mechanism`; a list of values is one point."""
    for distribution in mechanism or ():
        if not isinstance(distribution, Mapping):  # one list of values
            yield list(mechanism), list(mechanism)
            return
        for box in distribution["mixture"]:
            yield box["low"], box["high"]
