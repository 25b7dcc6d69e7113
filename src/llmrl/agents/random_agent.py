"""The agent every other one is compared with: uniform over the legal actions."""

from __future__ import annotations

from typing import Any

import torch

from llmrl.core.only_plays import OnlyPlays
from llmrl.core.records import Act
from llmrl.core.spaces import EnvSpec
from llmrl.networks import categorical


class RandomPolicy:
    """Uniform over actions, or over those that `action_mask` allows; uniform inside the bounds where an action is
    several numbers."""

    def __init__(self, spec: EnvSpec) -> None:
        self.adapt(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Play with the actions of `spec` from now on."""
        self.numbers = spec.numbers
        self.n_agents, self.n_actions, self.n_envs = spec.n_agents, spec.n_actions, spec.n_envs
        self.channels: tuple[str, ...] = tuple(name for name in ("action_mask",) if name in spec.observation)

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> Act:
        """All legal actions are equally likely, so `greedy` draws one of them, too."""
        if self.numbers is not None:
            low, high = torch.tensor(self.numbers.low), torch.tensor(self.numbers.high)
            share = torch.rand(self.n_envs, self.n_agents, self.numbers.dim, generator=generator)
            if self.numbers.whole:
                return Act(torch.floor(low + share * (high - low + 1)).clamp(max=high))
            return Act(low + share * (high - low))
        mask = observation.get("action_mask")
        device = None if mask is None else mask.device
        logits = categorical.mask_logits(torch.zeros(self.n_envs, self.n_agents, self.n_actions, device=device), mask)
        return Act(categorical.sample(logits, generator), logits=logits)

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it expects nothing."""
        return torch.zeros(self.n_envs, self.n_agents)


class RandomAgent(OnlyPlays):
    """`agent=random`: acts uniformly, never learns."""

    def __init__(self, spec: EnvSpec) -> None:
        self.policy = RandomPolicy(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Play with the actions of `spec` from now on."""
        self.policy.adapt(spec)

    def describe(self) -> dict[str, Any]:
        return {"policy": "uniform random", "parameters": 0}
