"""What agents that only play have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from llmrl.core.protocols import AgentLoop
from llmrl.core.records import State

if TYPE_CHECKING:
    import torch

    from llmrl.core.rollouts import Rollout


class OnlyPlays:
    """The part of an `Agent` that is about learning, for one that never does. What it has to remember of its games, if
    anything, it adds in `state_dict`."""

    loop: ClassVar[AgentLoop] = "play"
    learns = False

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """Nothing to reset: nothing is learnt."""

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing to load."""
