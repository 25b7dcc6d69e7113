"""An agent of the signal game whose return is known: it names the right number with probability `skill`."""

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
        return PolicyOutput(
            action, torch.zeros(right.shape), torch.zeros(right.shape)
        )  # a rollout wants both, nobody uses them


class SkilledAgent(EchoAgent):
    """`agent=skilled`: takes `pause_s` for an update, and breaks there if it is too skilled."""

    loop: ClassVar[AgentLoop] = "learn"
    learns = True

    def __init__(self, skill: float, breaks_above: float, pause_s: float, note: str) -> None:
        self.policy, self.breaks_above, self.pause_s = SkillPolicy(skill), breaks_above, pause_s

    def update(self, rollout: Any, generator: torch.Generator) -> dict[str, float]:
        time.sleep(self.pause_s)
        if self.policy.skill > self.breaks_above:
            raise ZeroDivisionError(f"skill {self.policy.skill:g} is too much")
        return {}
