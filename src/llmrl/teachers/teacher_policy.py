"""A teacher as a player: what it is worth by itself."""

from __future__ import annotations

import numpy as np
import torch

from llmrl.core.records import PolicyOutput
from llmrl.teachers.domain import Scene
from llmrl.teachers.plan_policy import PlanPolicy
from llmrl.teachers.plans import plan_text


class TeacherPolicy:
    """Acts as a guide advises.

    Args:
        plan_policy: says which action is how likely.

    Attributes:
        channels: what the guide's domain reads.
    """

    def __init__(self, plan_policy: PlanPolicy) -> None:
        self.plan_policy = plan_policy
        self.channels = plan_policy.domain.channels
        self._scenes: list[Scene] = []
        self._n_agents = 1

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Draw actions from the advice, or with `greedy` take the likeliest (in `hard` mode the likeliest plan's).

        `state` [n_envs, n_agents, k] float64 is the domain's memory, None where it has none.
        """
        arrays = {name: observation[name].cpu().numpy() for name in self.channels}
        device = observation[self.channels[0]].device
        shape = next(iter(arrays.values())).shape[:2]
        memory: np.ndarray | None = None
        if self.plan_policy.domain.memory:
            blank = np.zeros((*shape, self.plan_policy.domain.memory))
            memory = blank if state is None else state.cpu().numpy().astype(np.float64)  # a copy
        scenes = self.plan_policy.scenes(arrays, memory)
        self._scenes, self._n_agents = scenes, shape[1]
        uniform = None
        if self.plan_policy.mode == "hard":
            # The likeliest plan is the first.
            n = len(scenes)
            uniform = np.zeros(n) if greedy else torch.rand(n, generator=generator, dtype=torch.float64).numpy()
        advice = torch.from_numpy(self.plan_policy.advise(scenes, uniform))
        action = advice.argmax(-1) if greedy else torch.multinomial(advice, 1, generator=generator)[:, 0]
        log_probs = advice.clamp_min(torch.finfo(advice.dtype).tiny).log()
        return PolicyOutput(
            action=action.reshape(shape).to(device),
            log_prob=log_probs.gather(-1, action[:, None]).reshape(shape).to(device),
            state=None if memory is None else torch.from_numpy(memory).to(device),
            logits=log_probs.reshape(*shape, -1).to(device),
        )

    def thoughts(self, game: int, agent: int) -> list[str]:
        """What it was told of the state it last acted in, and its plans there, as lines for people."""
        scenes = self._scenes[game * self._n_agents : (game + 1) * self._n_agents]
        plans = self.plan_policy.plans(scenes)[agent]
        return [scenes[agent].sentence, *(f"{probability:.2f} {plan_text(plan)}" for plan, probability in plans)]

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: a teacher knows no values."""
        x = observation[self.channels[0]]
        return torch.zeros(x.shape[:2], device=x.device)
