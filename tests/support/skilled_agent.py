"""Agent of the signal game that chooses the correct action with probability `skill`, so that its return is known."""

from __future__ import annotations

import time
from typing import Any, ClassVar

import torch

from llmrl.core.protocols import AgentLoop
from llmrl.core.records import PolicyOutput
from signal_game.parts import Echo, EchoAgent


class SkillPolicy(Echo):
    def __init__(self, skill: float) -> None:
        self.skill = skill

    def act(
        self, observation: dict[str, torch.Tensor], state: Any = None, generator: Any = None, greedy: bool = False
    ) -> PolicyOutput:
        right = observation["vector"].argmax(-1)
        is_correct = torch.rand(right.shape, generator=generator) < self.skill
        action = torch.where(is_correct, right, (right + 1) % observation["vector"].shape[-1])
        return PolicyOutput(action, torch.zeros(right.shape), torch.zeros(right.shape))  # required but not used


class SkilledAgent(EchoAgent):
    """Agent of the option `agent=skilled`.

    Args:
        skill: probability of the correct action.
        breaks_above: skill above which an update raises ZeroDivisionError.
        pause_s: duration of an update in seconds.
        note: unused option.
    """

    loop: ClassVar[AgentLoop] = "learn"
    learns = True

    def __init__(self, skill: float, breaks_above: float, pause_s: float, note: str) -> None:
        self.policy, self.breaks_above, self.pause_s = SkillPolicy(skill), breaks_above, pause_s

    def update(self, rollout: Any, generator: torch.Generator) -> dict[str, float]:
        time.sleep(self.pause_s)
        if self.policy.skill > self.breaks_above:
            raise ZeroDivisionError(f"skill {self.policy.skill:g} is too much")
        return {}
