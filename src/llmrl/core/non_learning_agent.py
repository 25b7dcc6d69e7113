"""The common base of agents that only play."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmrl.core.protocols import AgentLoop
from llmrl.core.state_fields import StateFields

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


class NonLearningAgent(StateFields):
    """The learning part of an `Agent` that never learns.

    A subclass that stores a memory of its games overrides `state_dict` and `load_state_dict`.
    """

    loop: ClassVar[AgentLoop] = "play"
    learns = False

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """Do nothing, because the agent has learned nothing."""
