"""The policies of several societies, whose networks are computed at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from llmrl.core.records import Act
from llmrl.networks import categorical
from llmrl.networks.actor_critic import ActorCritic
from llmrl.networks.society import SocietyPolicy
from llmrl.networks.stacked import StackedNetwork, cells_of, stackable, stacks


class StackedPolicies:
    """What `SocietyPolicy`s do that each play their own equal group of games, in order.

    Args:
        policies: `stackable_policies`, K of them, each with G networks of k agents.
        games: of each.
        observation: of all games, as they will come.

    Attributes:
        pays: whether more than one network is computed at a time.
    """

    def __init__(self, policies: Sequence[SocietyPolicy], games: int, observation: dict[str, torch.Tensor]) -> None:
        self.policies, self.games = policies, games
        self._groups = len(policies[0].members)
        members = [network for policy in policies for network, _ in policy.groups()]
        agents = policies[0].n_agents // self._groups
        self._parts = stacks(members, games * agents, cells_of(members[0], observation))
        self.pays = any(part.stop - part.start > 1 for part in self._parts)
        self._stacks = [StackedNetwork(members[part]) for part in self._parts] if self.pays else []

    def read(self) -> None:
        """Take over the weights of the policies."""
        for stack in self._stacks:
            stack.read()

    @torch.no_grad()
    def act(
        self, observation: dict[str, torch.Tensor], generators: Sequence[torch.Generator], greedy: bool = False
    ) -> Act:
        """Actions of all games; groups whose generator is one object draw the same numbers."""
        logits, value, features = self._play(observation)
        action = logits.argmax(-1) if greedy else categorical.choose(logits, self._uniform(logits, generators))
        log_prob, entropy = categorical.log_prob_entropy(logits, action)
        kept = features if self.policies[0].core_frozen else None
        return Act(action, log_prob, value, kept, logits=logits, entropy=entropy)

    @torch.no_grad()
    def values(self, observation: dict[str, torch.Tensor]) -> torch.Tensor:
        """State values [n_envs, n_agents]."""
        return self._play(observation)[1]

    def _play(self, observation: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits [n_envs, n_agents, n_actions], values [n_envs, n_agents] and features [n_envs, n_agents, F]."""
        samples = {name: self._dealt(x) for name, x in self.policies[0].extended(observation).items()}
        found = []
        for part, stack in zip(self._parts, self._stacks, strict=True):
            own = {name: x[part] for name, x in samples.items()}
            network: ActorCritic = stack.network
            features = network.encode(own)
            found.append((network.logits(features, own.get("action_mask")), network.value(features, own), features))
        logits, value, features = (self._gathered(torch.cat(parts)) for parts in zip(*found, strict=True))
        return logits, value, features

    def _dealt(self, x: torch.Tensor) -> torch.Tensor:
        """[n_envs, n_agents, ...] -> [K * G, games * k, ...]."""
        k = x.shape[1] // self._groups
        split = x.reshape(-1, self.games, self._groups, k, *x.shape[2:])  # [K, games, G, k, ...]
        return split.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _gathered(self, x: torch.Tensor) -> torch.Tensor:
        """The reverse."""
        k = x.shape[1] // self.games
        split = x.reshape(-1, self._groups, self.games, k, *x.shape[2:])  # [K, G, games, k, ...]
        return split.transpose(1, 2).flatten(2, 3).flatten(0, 1)

    def _uniform(self, logits: torch.Tensor, generators: Sequence[torch.Generator]) -> torch.Tensor:
        """The numbers that each policy would draw by itself (`categorical.sample`), [n_envs, n_agents, n_actions]."""
        shape = (self.games, *logits.shape[1:])
        drawn: dict[int, torch.Tensor] = {}
        for each in generators:
            if id(each) not in drawn:
                drawn[id(each)] = torch.rand(shape, generator=each, device=each.device, dtype=logits.dtype)
        return torch.cat([drawn[id(each)] for each in generators]).to(logits.device, non_blocking=logits.is_cuda)


def stackable_policies(policies: Sequence[object]) -> bool:
    """Whether the policies are societies of networks of one shape that remember nothing."""
    found = [policy for policy in policies if type(policy) is SocietyPolicy and not policy.recurrent]
    if len(found) < len(policies):
        return False
    alike = {(policy.n_agents, len(policy.members), policy.core_frozen, policy.channels) for policy in found}
    return len(alike) == 1 and stackable([network for policy in found for network, _ in policy.groups()])
