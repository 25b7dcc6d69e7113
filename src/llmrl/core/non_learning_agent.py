"""The common base of agents that only play."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmrl.core.protocols import AgentLoop
from llmrl.core.records import State

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


class NonLearningAgent:
    """The learning part of an `Agent` that never learns. A subclass with a memory of its games saves it by overriding
    `state_dict` and `load_state_dict`."""

    loop: ClassVar[AgentLoop] = "play"
    learns = False

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """Do nothing: nothing is learnt."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Do nothing: there is no state."""
