"""The policy of all agents of a game."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import ActionDistribution, sample
from llmrl.networks.actor_critic import JOINT, PLAYER, ActorCritic


class SocietyPolicy(nn.Module):
    """Policy of one `ActorCritic` shared by all agents of a game, or of one for each agent.

    Attributes:
        members: the networks, one or `n_agents`.
        channels: names of the observation channels read.
        core_frozen: whether cores get no gradient and `act` returns their features for reuse.
        recurrent: whether the networks have a memory.
        distribution: distribution of actions that the networks' outputs describe.
    """

    identity: torch.Tensor

    def __init__(self, spec: EnvSpec, members: Sequence[ActorCritic], core_frozen: bool) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.n_agents = spec.n_agents
        self.core_frozen = core_frozen
        first = members[0]
        self.distribution: ActionDistribution = first.distribution
        self.recurrent, self._central, self._joined = first.memory is not None, first.central, first.joined
        read = {first.image, first.words, *first.joined, "action_mask"}
        self.channels = tuple(name for name in spec.observation if name in read)
        if core_frozen:
            for member in members:
                member.core.requires_grad_(False)
        seats = list(spec.seats or range(spec.n_agents))
        self.register_buffer("identity", torch.eye(spec.n_players)[seats], persistent=False)

    @property
    def frozen_features(self) -> int | None:
        """Width of the features that rollouts hold instead of observations; None if the cores are trained."""
        return self.members[0].n_features if self.core_frozen else None  # type: ignore[return-value]

    def groups(self) -> list[tuple[ActorCritic, slice]]:
        """Return each network with its agents, as a slice of the agent axis."""
        if len(self.members) == 1:
            return [(self.members[0], slice(0, self.n_agents))]  # type: ignore[list-item]
        return [(member, slice(i, i + 1)) for i, member in enumerate(self.members)]  # type: ignore[misc]

    def extended(self, observation: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Add the channels `player` and, for central critics, `joint` to an observation [n, n_agents, ...]."""
        n = next(iter(observation.values())).shape[0]
        added = {PLAYER: self.identity.unsqueeze(0).expand(n, -1, -1)}
        if self._central:
            dtype = self.identity.dtype
            seen = torch.cat([observation[name].flatten(2).to(dtype) for name in self._joined], dim=2)
            added[JOINT] = seen.flatten(1).unsqueeze(1).expand(-1, self.n_agents, -1)
        return {**observation, **added}

    @torch.inference_mode()
    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return state values [n_envs, n_agents], without drawing actions."""
        channels = self.extended(observation)
        found = _joined([self._play(*pair, channels, state)[1] for pair in self.groups()])
        assert found is not None
        return found

    @torch.inference_mode()
    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions [n_envs, n_agents], or take the most probable ones if `greedy`.

        Return them with log-probabilities, values, logits (of choices), entropies, memory and, of a frozen core,
        features. These are inference tensors: clone what autograd is to use.
        """
        channels = self.extended(observation)
        played = [self._play(*pair, channels, state) for pair in self.groups()]
        outputs, value, features, after = (_joined(parts) for parts in zip(*played, strict=True))
        assert outputs is not None
        action = self.distribution.mode(outputs) if greedy else sample(self.distribution, outputs, generator)
        log_prob, entropy = self.distribution.log_prob_entropy(outputs, action)
        return PolicyOutput(
            action=action,
            log_prob=log_prob,
            value=value,
            features=features if self.core_frozen else None,
            state=after,
            logits=outputs if self.distribution.logits else None,
            entropy=entropy,
        )

    def _play(
        self, network: ActorCritic, agents: slice, channels: dict[str, torch.Tensor], state: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return outputs [n_envs, k, n_outputs], values [n_envs, k], features [n_envs, k, F] and next memory
        [n_envs, k, state_size] (None without one) of the k agents of a network."""
        own = channels if len(self.members) == 1 else {name: x[:, agents] for name, x in channels.items()}
        shape = own[PLAYER].shape[:2]
        flat = {name: x.flatten(0, 1) for name, x in own.items()}
        features = network.encode(flat)
        taken, after = features, None
        if network.memory is not None:
            before = None if state is None else state[:, agents].flatten(0, 1)
            taken, after = network.memory.step(features, before)
        results = (network.outputs(taken, flat.get("action_mask")), network.value(taken, flat), features)
        outputs, values, features = (x.reshape(*shape, *x.shape[1:]) for x in results)
        return outputs, values, features, None if after is None else after.reshape(*shape, -1)


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Concatenate along the axis of agents; None if nothing is given."""
    given = [x for x in parts if x is not None]
    if len(given) < 2:
        return given[0] if given else None
    return torch.cat(given, dim=1)
