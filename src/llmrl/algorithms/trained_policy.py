"""Protocols of the policies and networks that PPO trains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn

from llmrl.networks.action_distributions import ActionDistribution


class TrainedPolicy(Protocol):
    """Policy that PPO can train: `SocietyPolicy`, or a language model as the policy.

    `channels` names the observation channels read; `recurrent` says whether the networks have a memory.
    """

    channels: tuple[str, ...]
    recurrent: bool

    @property
    def distribution(self) -> ActionDistribution:
        """Distribution of actions that the networks' outputs describe."""
        ...

    def groups(self) -> Sequence[tuple[nn.Module, slice]]:
        """Return each network with its agents, as a slice of the agent axis.

        Called with a batch, a network returns outputs [batch, n_outputs] and values [batch]; see `GradientAccumulation`
        for large networks.
        """
        ...

    def extended(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Return the observation [n, n_agents, ...] with the further channels that the networks read."""
        ...
