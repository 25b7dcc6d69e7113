"""Policy of all agents in a game (copy of an environment)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import ActionDistribution, sample_actions
from llmrl.networks.actor_critic import JOINT_CHANNEL, PLAYER_CHANNEL, ActorCritic


class SocietyPolicy(nn.Module):
    """Policy with one `ActorCritic` shared by all agents of a game, or with one for each agent.

    Attributes:
        members: the networks, one or `n_agents`.
        channels: names of the observation channels that the networks read.
        core_frozen: whether cores get no gradient and `act` returns their features for reuse.
        recurrent: whether the networks have a memory.
        distribution: distribution of actions that the networks' outputs parameterize.
    """

    player_one_hots: torch.Tensor

    def __init__(self, spec: EnvSpec, members: Sequence[ActorCritic], core_frozen: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.n_agents = spec.n_agents
        self.core_frozen = core_frozen
        network = members[0]
        self.distribution: ActionDistribution = network.distribution
        self.recurrent, self._has_central_critic = network.memory is not None, network.has_central_critic
        self._vector_channels = network.vector_channels
        channel_names = {network.spatial_channel, network.instruction_channel, *network.vector_channels, "action_mask"}
        self.channels = tuple(name for name in spec.observation if name in channel_names)
        if core_frozen:
            for member in members:
                member.core.requires_grad_(False)
        seats = list(spec.seats or range(spec.n_agents))
        self.register_buffer("player_one_hots", torch.eye(spec.n_players)[seats], persistent=False)

    @property
    def frozen_feature_width(self) -> int | None:
        """Width of the features that rollouts contain instead of observations; None if the cores are trained."""
        return self.members[0].n_features if self.core_frozen else None  # type: ignore[return-value]

    def list_networks(self) -> list[tuple[ActorCritic, slice]]:
        """Return each network with its agents, as a slice of the agent axis."""
        if len(self.members) == 1:
            return [(self.members[0], slice(0, self.n_agents))]  # type: ignore[list-item]
        return [(member, slice(i, i + 1)) for i, member in enumerate(self.members)]  # type: ignore[misc]

    def extend_observation(self, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the channels `player` and, for central critics, `joint` to an observation [n, n_agents, ...]."""
        n = next(iter(observation.values())).shape[0]
        new_channels = {PLAYER_CHANNEL: self.player_one_hots.unsqueeze(0).expand(n, -1, -1)}
        if self._has_central_critic:
            dtype = self.player_one_hots.dtype
            joint = torch.cat([observation[name].flatten(2).to(dtype) for name in self._vector_channels], dim=2)
            new_channels[JOINT_CHANNEL] = joint.flatten(1).unsqueeze(1).expand(-1, self.n_agents, -1)
        return {**observation, **new_channels}

    @torch.inference_mode()
    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values [n_envs, n_agents], without sampling actions."""
        channels = self.extend_observation(observation)
        values = _concatenate([self._compute_outputs(*pair, channels, state)[1] for pair in self.list_networks()])
        assert values is not None
        return values

    @torch.inference_mode()
    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions [n_envs, n_agents], or take the most probable ones if `greedy`.

        The output contains log-probabilities, values, logits (for discrete actions), memory state and features (for a
        frozen core). These are inference tensors; clone them before use in autograd.
        """
        channels = self.extend_observation(observation)
        outputs_by_network = [self._compute_outputs(*pair, channels, state) for pair in self.list_networks()]
        outputs, value, features, next_state = (_concatenate(parts) for parts in zip(*outputs_by_network, strict=True))
        assert outputs is not None
        action = self.distribution.mode(outputs) if greedy else sample_actions(self.distribution, outputs, generator)
        log_prob, _ = self.distribution.log_prob_entropy(outputs, action)
        return PolicyOutput(
            action=action,
            log_prob=log_prob,
            value=value,
            features=features if self.core_frozen else None,
            state=next_state,
            logits=outputs if self.distribution.outputs_are_logits else None,
        )

    def _compute_outputs(
        self, network: ActorCritic, agents: slice, channels: dict[str, torch.Tensor], state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the outputs of a network for its k agents.

        The tensors are outputs [n_envs, k, n_outputs], values [n_envs, k], features [n_envs, k, F] and the next memory
        state [n_envs, k, state_size] (None without a memory).
        """
        member_channels = channels if len(self.members) == 1 else {name: x[:, agents] for name, x in channels.items()}
        shape = member_channels[PLAYER_CHANNEL].shape[:2]
        inputs = {name: x.flatten(0, 1) for name, x in member_channels.items()}
        features = network.encode(inputs)
        head_inputs, next_state = features, None
        if network.memory is not None:
            flat_state = None if state is None else state[:, agents].flatten(0, 1)
            head_inputs, next_state = network.memory.step(features, flat_state)
        results = network.outputs(head_inputs, inputs.get("action_mask")), network.value(head_inputs, inputs), features
        outputs, values, features = (x.reshape(*shape, *x.shape[1:]) for x in results)
        return outputs, values, features, None if next_state is None else next_state.reshape(*shape, -1)


def _concatenate(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Concatenate along the axis of agents; None if all parts are None."""
    tensors = [x for x in parts if x is not None]
    if len(tensors) < 2:
        return tensors[0] if tensors else None
    return torch.cat(tensors, dim=1)
