"""`agent=bot`: plays what the environment's own expert would do."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from llmrl.core.errors import Incompatible, Misfit
from llmrl.core.non_learning_agent import NonLearningAgent
from llmrl.core.observers import Transition
from llmrl.core.records import Observation, PolicyOutput, State
from llmrl.core.spaces import EnvSpec

EXPERT = "expert"
"""Channel with the place of the action an expert would take; -1 where it has given up."""
HARMLESS = ("done", "turn left")
"""Names of actions that leave a game as it is, but for where somebody looks; the first that there is."""


class BotPolicy:
    """Takes the action that the channel `expert` names; where the expert has given up, `done`, else a turn
    (`turn left`, or the first action if none is called so).

    It is a `StepObserver`, so that only what happens in games that are played is counted.

    Attributes:
        given_up: actions taken without an expert since the start.
        decisions: all actions taken since then.

    Raises:
        ConfigError: the environment has no such channel.
    """

    channels: tuple[str, ...] = (EXPERT,)

    def __init__(self, spec: EnvSpec) -> None:
        self.adapt(spec)
        self.given_up = self.decisions = 0

    def adapt(self, spec: EnvSpec) -> None:
        """Play with the actions of `spec` from now on, in games that have not begun."""
        if EXPERT not in spec.observation:
            raise Incompatible(
                Misfit.ONE_GAME,
                f"agent=bot plays what an expert would do, and env={spec.name} knows none (no channel {EXPERT!r} among "
                f"{', '.join(sorted(spec.observation))}); use env=babyai_text, or agent=heuristic, agent=random",
            )
        spec.need_discrete("agent=bot")
        self.instead = next((spec.action_names.index(name) for name in HARMLESS if name in spec.action_names), 0)
        self.playing = np.zeros(spec.n_envs, dtype=bool)

    def on_reset(self, games: np.ndarray, observation: Observation) -> None:
        """As a `StepObserver`: new episodes have begun; games in which none has begun wait."""
        self.playing |= games

    def on_step(self, transition: Transition) -> None:
        """As a `StepObserver`: games that are over wait."""
        self.playing &= ~transition.ended

    def act(
        self,
        observation: dict[str, torch.Tensor],
        state: torch.Tensor | None = None,
        generator: torch.Generator | None = None,
        greedy: bool = False,
    ) -> PolicyOutput:
        """The same actions for the same observations."""
        expert = observation[EXPERT].long()
        lost = expert < 0
        playing = torch.from_numpy(self.playing)[:, None].expand_as(lost)
        self.given_up += int((lost.cpu() & playing).sum())
        self.decisions += int(playing.sum())
        return PolicyOutput(torch.where(lost, self.instead, expert))

    def values(self, observation: dict[str, torch.Tensor], state: torch.Tensor | None = None) -> torch.Tensor:
        """Zeros: it expects nothing."""
        return torch.zeros(observation[EXPERT].shape)


class BotAgent(NonLearningAgent):
    """`agent=bot`: see `BotPolicy`.

    Raises:
        ConfigError: the environment knows no expert.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self.policy = BotPolicy(spec)

    def adapt(self, spec: EnvSpec) -> None:
        """Play with the actions of `spec` from now on."""
        self.policy.adapt(spec)

    def describe(self) -> dict[str, Any]:
        return {"policy": "the environment's own expert", "parameters": 0}

    def metrics(self) -> dict[str, float]:
        """bot/decisions: actions taken; bot/gave_up: those without an expert, as it had given up; both counted."""
        return {"bot/decisions": float(self.policy.decisions), "bot/gave_up": float(self.policy.given_up)}

    def state_dict(self) -> State:
        policy = self.policy
        return {"playing": policy.playing.copy(), "given_up": policy.given_up, "decisions": policy.decisions}

    def load_state_dict(self, state: State) -> None:
        policy = self.policy
        policy.playing = np.array(state["playing"])
        policy.given_up, policy.decisions = state["given_up"], state["decisions"]
