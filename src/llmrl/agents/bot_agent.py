"""Agent `agent=bot`, which takes the actions of the environment's expert (channel `expert`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llmrl.core.agent_interfaces import NonLearningAgent, PolicyWithoutValues
from llmrl.core.errors import IncompatibilityReason, Incompatible
from llmrl.core.observers import Transition
from llmrl.core.records import Observation, PolicyOutput, State
from llmrl.core.spaces import EnvSpec
from llmrl.core.state_fields import StateFields

EXPERT_CHANNEL = "expert"
"""Channel with the index of the expert's action; -1: the expert has failed."""
NO_OP_ACTION_NAMES = ("done", "turn left")
"""Names of actions that change nothing except, perhaps, the player's heading, in order of priority."""


class BotPolicy(PolicyWithoutValues, StateFields):
    """Policy that takes the action in the channel `expert`.

    If the expert has failed, it takes the first existing action of `NO_OP_ACTION_NAMES`, else action 0. As a
    `StepObserver` it counts only decisions in games whose episodes have not ended.

    Attributes:
        playing: whether an episode is in progress in each game, [n_envs] bool.
        given_up: number of decisions for which the expert had failed.
        decisions: number of all decisions.

    Raises:
        ConfigError: actions are not discrete.
        Incompatible: the environment has no channel `expert`.
    """

    _state_fields = ("playing", "given_up", "decisions")

    channels: tuple[str, ...] = (EXPERT_CHANNEL,)

    def __init__(self, spec: EnvSpec) -> None:
        self.adapt(spec)
        self.given_up = self.decisions = 0

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on. No episode may be in progress."""
        if EXPERT_CHANNEL not in spec.observation:
            raise Incompatible(
                IncompatibilityReason.WRONG_GAME,
                f"agent=bot needs the channel {EXPERT_CHANNEL!r}, but env={spec.name} has only "
                f"{', '.join(sorted(spec.observation))}; use env=babyai_text, agent=heuristic or agent=random",
            )
        spec.require_discrete_actions("agent=bot")
        self.fallback_action = next(
            (spec.action_names.index(name) for name in NO_OP_ACTION_NAMES if name in spec.action_names), 0
        )
        self.playing = np.zeros(spec.n_envs, dtype=bool)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """Count decisions in `games`, in which an episode begins, from now on."""
        self.playing |= games

    def on_step(self, transition: Transition) -> None:
        """Stop counting decisions in games whose episode has ended."""
        self.playing &= ~transition.ended

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """Return the expert's actions and count them; arguments other than `observation` are ignored."""
        expert_actions = observation[EXPERT_CHANNEL].long()
        expert_failed_mask = expert_actions < 0
        playing = torch.from_numpy(self.playing)[:, None].expand_as(expert_failed_mask)
        self.given_up += int((expert_failed_mask.cpu() & playing).sum())
        self.decisions += int(playing.sum())
        return PolicyOutput(torch.where(expert_failed_mask, self.fallback_action, expert_actions))


class BotAgent(NonLearningAgent):
    """Agent with a `BotPolicy`, which raises the errors of that class."""

    def __init__(self, spec: EnvSpec) -> None:
        self.policy = BotPolicy(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Use the actions of `spec` from now on."""
        self.policy.adapt(spec)

    def describe(self) -> dict[str, Any]:
        return {"policy": "the environment's own expert", "parameters": 0}

    def metrics(self) -> dict[str, float]:
        """Return the number of decisions (`bot/decisions`), and of those without the expert (`bot/failures`)."""
        return {"bot/decisions": float(self.policy.decisions), "bot/failures": float(self.policy.given_up)}

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
