"""Agents `agent=ppo` and `agent=pg`: actor-critics trained by PPO or plain policy gradient, shared or one per agent."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.agents.pretraining import pretraining_of
from llmrl.algorithms.meta_gradient import MetaGradient
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop, Teacher
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt
from llmrl.core.records import MetaSettings, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks.actor_critic import ActorCritic, CoreType, Critic, Encoding, Join, NetworkSettings
from llmrl.networks.film import FilmSettings
from llmrl.networks.grid_cores import MAP_CHANNELS
from llmrl.networks.mlp import Activation
from llmrl.networks.multi_agent_policy import SocietyPolicy
from llmrl.run.artifacts import saved_state

logger = logging.getLogger(__name__)

Freeze = Literal["auto", "none", "core", "all"]


class PPOAgent:
    """Society of actor-critics with its learner.

    Args:
        spec: spec of the environment.
        seeds: seed tree; initial weights come from its stream `weights`.
        device: torch device.
        has_principal: whether a principal governs these agents.
        share_parameters: one network for all agents, with the agent's index as input, or one network each.
        observation_channels: names of the channels that networks read; None: all numeric ones.
        features: width of the core's output; None: 512 for pixels, 32 with a `film` core, the whole map for other maps,
            else 64.
        core: `auto`: convolutions for pixels and maps, else an MLP; `mlp`: always an MLP; `film`: convolutions that the
            words of a mission modulate; `planes`: one linear layer on facts about the cells of a map.
        encoding: input of convolutions over a map: `onehot` codes, or `codes` as numbers (as published for students).
        core_hidden: hidden widths of an MLP core (unused for pixels and maps), and of a central critic.
        head_hidden: hidden widths of actor and critic heads; empty: linear heads.
        memory: units of an LSTM between core and heads; None: no memory.
        memory_layers: number of LSTM layers.
        critic: `own`: a head beside the actor's; `separate`: a network that reads what the actor reads; `central`: one
            that reads the observations of all agents.
        freeze: weights that never change: `none`, the `core` (its features are then computed once per rollout), or
            `all`; `auto`: the core if a principal governs agents that see pixels (as published), else none.
        init_from: run folder whose newest checkpoint gives the initial weights; None: random weights.
        init_from_seed: seed of that run; unused here, since `init_from` names the run already.
        init_parts: load `all` weights, or only those of the `core`.
        keep_optimizer: whether Adam's moments are kept when weights are reset, as in one published study.
        ppo: hyperparameters of PPO.
        teacher: teacher that adds a loss; None: no teacher.
        film: architecture of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map; None: those of `GridCore`.
        map_stride: stride of the first convolution over a map.
        planes: names of the facts that a `planes` core reads; None: all that the map has.
        join: where numbers enter beside an image or a map: at the `heads`, or before the last layer of the `core`.
        activation: nonlinearity of MLP layers.
        initial_std: initial standard deviation of real-valued actions, in units of half their range.
        state_dependent_std: whether the actor puts these deviations out; otherwise they are parameters.
        squash_actions: whether real-valued actions are the tanh of a Gaussian.
        normalize_observations: whether numbers are normalised by their running mean and deviation.

    Raises:
        ConfigError: the loaded weights do not fit this agent, a teacher is given to an agent that does not learn, or
            network settings exclude each other.
        CheckpointError: `init_from` holds no checkpoint.
    """

    loop: ClassVar[AgentLoop] = "learn"
    plays_if = ("freeze", "all")
    """Option, and its value with which the agent does not learn."""
    remembers_by = "memory"
    """Option that is null unless networks have a memory."""

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        *,
        has_principal: bool,
        share_parameters: bool,
        observation_channels: list[str] | None,
        features: PositiveInt | None,
        core: CoreType,
        encoding: Encoding,
        core_hidden: list[PositiveInt],
        head_hidden: list[PositiveInt],
        memory: PositiveInt | None,
        memory_layers: PositiveInt,
        critic: Critic,
        freeze: Freeze,
        init_from: str | None,
        init_parts: Literal["all", "core"],
        keep_optimizer: bool,
        ppo: PPOSettings,
        teacher: Teacher | None = None,
        film: FilmSettings | None = None,
        map_channels: list[PositiveInt] | None = None,
        map_stride: PositiveInt = 1,
        planes: list[str] | None = None,
        join: Join = "heads",
        activation: Activation = "relu",
        initial_std: PositiveFloat = 1.0,
        state_dependent_std: bool = False,
        squash_actions: bool = False,
        normalize_observations: bool = False,
        init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own",
    ) -> None:
        if freeze == "auto":
            freeze = "core" if has_principal and "pixels" in spec.observation else "none"
        generator = seeds.torch("weights")
        if critic != "own" and freeze == "core":
            raise ConfigError(
                f"agent.critic={critic} has no core in common with the actor; use agent.freeze=none with it"
            )
        if normalize_observations and freeze == "core":
            raise ConfigError(
                "agent.normalize_observations changes what a core is given, and agent.freeze=core keeps its output; "
                "use agent.freeze=none with it"
            )
        if map_channels is not None and not map_channels:
            raise ConfigError(
                "agent.map_channels is empty: name at least one convolution, e.g. [8, 16], or agent.core=mlp"
            )
        if teacher is not None and freeze == "all":
            raise ConfigError("agent.freeze=all: agents that do not learn cannot be taught; use teacher=none")
        shape = NetworkSettings(
            features=features,
            core_hidden=core_hidden,
            head_hidden=head_hidden,
            observation_channels=observation_channels,
            memory=memory,
            memory_layers=memory_layers,
            critic=critic,
            core=core,
            encoding=encoding,
            film=film,
            map_channels=map_channels or MAP_CHANNELS,
            map_stride=map_stride,
            planes=planes,
            join=join,
            activation=activation,
            initial_std=initial_std,
            state_dependent_std=state_dependent_std,
            squash_actions=squash_actions,
            normalize_observations=normalize_observations,
        )
        networks = [ActorCritic(spec, generator, shape) for _ in range(1 if share_parameters else spec.n_agents)]
        self.policy = SocietyPolicy(spec, networks, core_frozen=freeze == "core").to(device)
        self.learns = freeze != self.plays_if[1]
        self._keep_optimizer = keep_optimizer
        if freeze == "core" and init_from is None:
            logger.info("the agents' core is frozen at random weights; agent.init_from=<run> would load trained ones")
        self.shares_learning = init_from is not None
        self.pretraining = None if init_from is None else pretraining_of(Path(init_from))
        self._ppo = PPO(self.policy, ppo, teacher) if self.learns else None
        if init_from is not None:
            self._start_from(Path(init_from), init_parts)
        self._original = copy.deepcopy(self.policy.state_dict())

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
            ConfigError: the agents do not learn, or have a memory, or the learner cannot be differentiated.
        """
        if self._ppo is None:
            raise ConfigError("agent.freeze=all: agents that do not learn have no learning to differentiate")
        if self.policy.recurrent:
            raise ConfigError(
                "agent.memory: the learning of agents that remember is not differentiated; use memory=null"
            )
        return MetaGradient(self._ppo, values, settings)

    def reset(self) -> None:
        self.policy.load_state_dict(self._original)
        if self._ppo is not None:
            self._ppo.reset(self._keep_optimizer)

    def describe(self) -> dict[str, Any]:
        parameters = list(self.policy.parameters())
        trainable = sum(p.numel() for p in parameters if p.requires_grad) if self.learns else 0
        return {
            "policy": " + ".join(_pieces(self.policy.groups()[0][0])) + " actor-critic",
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

    def _start_from(self, run: Path, parts: str) -> None:
        agent = saved_state(run)[1].get("agents", [{}])[-1]
        saved = agent.get("policy")
        if saved is None:
            raise ConfigError(f"agent.init_from={run}: that run's agent has no weights to start from")
        if parts == "core":
            saved = {name: x for name, x in saved.items() if ".core." in name}
        mine = self.policy.state_dict()
        wrong = [n for n, x in saved.items() if n not in mine or mine[n].shape != x.shape]
        if wrong or (parts == "all" and set(saved) != set(mine)):
            first = (wrong or sorted(set(mine) ^ set(saved)))[0]
            core_fits = parts == "all" and not any(".core." in name for name in wrong)
            raise ConfigError(
                f"agent.init_from={run}: its weights do not fit this agent (first difference: {first}); "
                "use the same env (and env.rules), agent.features and "
                f"agent.share_parameters{', or agent.init_parts=core for the core alone' if core_fits else ''}"
            )
        self.policy.load_state_dict({**mine, **saved})
        learner = agent.get("learner") or {}
        if self._ppo is not None and parts == "all" and "scales" in learner:
            self._ppo.begin_with(learner["scales"])  # the loaded critic predicts values in these units


def _pieces(network: ActorCritic) -> list[str]:
    """Return the names of a network's parts, for display."""
    pieces = [type(network.core).__name__]
    pieces += [] if network.memory is None else [f"LSTM {network.memory.layers}x{network.memory.units}"]
    return [*pieces, "central critic"] if network.central else pieces
