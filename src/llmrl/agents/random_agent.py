"""Agent `agent=random`, whose actions are uniformly random among the legal ones; a baseline for other agents."""

from __future__ import annotations

from typing import Any

import torch

from llmrl.core.agent_interfaces import NonLearningAgent
from llmrl.core.records import PolicyOutput
from llmrl.core.spaces import EnvSpec
from llmrl.networks.action_distributions import mask_logits, sample_categorical


class RandomPolicy:
    """Policy that is uniform over discrete (and legal) actions, or over the range of each number of numeric actions."""

    def __init__(self, spec: EnvSpec) -> None:
        self.adapt(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on."""
        self.continuous_actions = spec.continuous_actions
        self.n_agents, self.n_actions, self.n_envs = spec.n_agents, spec.n_actions, spec.n_envs
        self.channels: tuple[str, ...] = tuple(name for name in ("action_mask",) if name in spec.observation)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Sample actions [n_envs, n_agents] int64, or [n_envs, n_agents, a] if numeric; `greedy` is ignored."""
        if self.continuous_actions is not None:
            low, high = torch.tensor(self.continuous_actions.low), torch.tensor(self.continuous_actions.high)
            fraction = torch.rand(self.n_envs, self.n_agents, self.continuous_actions.dim, generator=generator)
            integers = torch.floor(low + fraction * (high - low + 1)).clamp(max=high)
            return PolicyOutput(
                torch.where(torch.tensor(self.continuous_actions.is_integer), integers, low + fraction * (high - low))
            )
        mask = observation.get("action_mask")
        device = None if mask is None else mask.device
        logits = mask_logits(torch.zeros(self.n_envs, self.n_agents, self.n_actions, device=device), mask)
        return PolicyOutput(sample_categorical(logits, generator), logits=logits)

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Return zeros [n_envs, n_agents]: there is no value function."""
        return torch.zeros(self.n_envs, self.n_agents)


class RandomAgent(NonLearningAgent):
    """Agent `agent=random`, with a `RandomPolicy`."""

    def __init__(self, spec: EnvSpec) -> None:
        self.policy = RandomPolicy(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on."""
        self.policy.adapt(spec)

    def describe(self) -> dict[str, Any]:
        return {"policy": "uniform random", "parameters": 0}
