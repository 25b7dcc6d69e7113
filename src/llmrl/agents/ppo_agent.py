"""`agent=ppo` and `agent=pg`: actor-critics trained by PPO or plain policy gradient, one for all agents or one each."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from llmrl.algorithms.meta_gradient import MetaGradient
from llmrl.algorithms.ppo import PPO, PPOSettings
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import AgentLoop, Teacher
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.core.records import MetaSettings, State
from llmrl.core.rollouts import Rollout
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import EnvSpec
from llmrl.networks.actor_critic import ActorCritic, CoreType, Critic, Encoding, Join, NetworkSettings
from llmrl.networks.film import FilmSettings
from llmrl.networks.maps import MAP_CHANNELS
from llmrl.networks.society import SocietyPolicy
from llmrl.run.content import saved_state

logger = logging.getLogger(__name__)

Freeze = Literal["auto", "none", "core", "all"]


class PPOAgent:
    """One society of actor-critics and its learner.

    Args:
        spec: of the environment it plays.
        seeds: initial weights come from its stream `weights`.
        device: torch device.
        governed: whether a principal governs these agents.
        share_parameters: one network for all agents (told who it plays), or one each.
        reads: observation channels its networks take in; None: all numeric ones.
        features: width of the core's output; None gives 512 for pixels, the whole map for a map, 64 otherwise.
        core: `auto`: convolutions for pixels and maps, else an MLP; `mlp`: always an MLP; `film`: convolutions that the
            words of a mission modulate; `planes`: one linear layer on facts about the cells of a map.
        encoding: of maps of codes: `onehot`, or `codes`, the numbers they are (as published for students).
        core_hidden: hidden widths of an MLP core (unused for pixels and maps), and of a central critic.
        head_hidden: hidden widths of actor and critic heads; empty means linear heads.
        memory: units of an LSTM between core and heads; None: none.
        memory_layers: layers of it.
        critic: `own`: a head beside the actor's; `central`: a network that sees what all agents see.
        freeze: what never changes: nothing, the core (its features are then computed once per rollout), or everything;
            auto is the core where a principal governs agents that see pixels (as published), else nothing.
        init_from: run folder whose newest checkpoint gives the first weights; null starts from random ones.
        init_from_seed: which seed's run that is; `init_from` names it already, so nothing depends on it here.
        init_parts: take all weights from there, or only the core.
        keep_optimizer: keep Adam's moments when weights are reset (as one published study does); false forgets them.
        ppo: hyperparameters.
        teacher: extra loss, or None.
        film: shape of a `film` core; None: its defaults.
        map_channels: output channels of the convolutions over a map; None: those of `GridCore`.
        map_stride: of the first of them.
        planes: names of the facts that a `planes` core looks at; None: all that the map has.
        join: where numbers beside a picture or a map come in: at the `heads`, or before the last layer of the `core`.

    Raises:
        ConfigError: the weights to start from do not fit this agent, or it does not learn and is to be taught.
        CheckpointError: there are none.
    """

    loop: ClassVar[AgentLoop] = "learn"
    plays_if = ("freeze", "all")
    """Option, and its value with which the agent only plays."""
    remembers_by = "memory"
    """Option that is null unless its networks remember."""

    def __init__(
        self,
        spec: EnvSpec,
        seeds: Seeds,
        device: str,
        *,
        governed: bool,
        share_parameters: bool,
        reads: list[str] | None,
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
        init_from_seed: Literal["own", "shared"] | NonNegativeInt = "own",
    ) -> None:
        if freeze == "auto":
            freeze = "core" if governed and "pixels" in spec.observation else "none"
        generator = seeds.torch("weights")
        if critic == "central" and freeze == "core":
            raise ConfigError(
                "agent.critic=central has no core in common with the actor; use agent.freeze=none with it"
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
            reads=reads,
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
        )
        networks = [ActorCritic(spec, generator, shape) for _ in range(1 if share_parameters else spec.n_agents)]
        self.policy = SocietyPolicy(spec, networks, core_frozen=freeze == "core").to(device)
        self.learns = freeze != self.plays_if[1]
        self._keep_optimizer = keep_optimizer
        if freeze == "core" and init_from is None:
            logger.info("the agents' core is frozen at random weights; agent.init_from=<run> would load trained ones")
        self.shares_learning = init_from is not None
        self._ppo = PPO(self.policy, ppo, teacher) if self.learns else None
        if init_from is not None:
            self._start_from(Path(init_from), init_parts)
        self._original = copy.deepcopy(self.policy.state_dict())

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {} if self._ppo is None else self._ppo.update(rollout, generator)

    @property
    def learner(self) -> PPO | None:
        """What learns (`LearnsByPPO`); None where nothing does, or where a subclass updates in its own way."""
        return self._ppo if type(self).update is PPOAgent.update else None

    def meta_learner(self, values: np.ndarray, settings: MetaSettings) -> MetaGradient:
        """The learner as a differentiable function of the mechanism's values, for one principal step.

        Raises:
            ConfigError: these agents do not learn, or their dependence on what they see is not kept.
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
        if self._ppo is not None and parts == "all" and "scale" in learner:
            self._ppo.begin_with(learner["scale"])  # the units in which the loaded values are


def _pieces(network: ActorCritic) -> list[str]:
    """What a network is made of, for people."""
    pieces = [type(network.core).__name__]
    pieces += [] if network.memory is None else [f"LSTM {network.memory.layers}x{network.memory.units}"]
    return [*pieces, "central critic"] if network.central else pieces
