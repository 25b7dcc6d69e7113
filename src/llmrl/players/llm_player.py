"""`agent=llm_player`: a chat model plays, without being trained."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.limits import NonNegativeInt, PositiveInt
from llmrl.core.protocols import ChatModel
from llmrl.core.records import CallEstimate, State
from llmrl.core.spaces import EnvSpec
from llmrl.llms.provider import estimate_tokens
from llmrl.players.answers import AnswerWith
from llmrl.players.conversation import Show
from llmrl.players.llm_policy import LLMPolicy

if TYPE_CHECKING:
    import torch

    from llmrl.learners.rollout import Rollout

TURN_TOKENS = 90
"""Tokens of an observation with what accompanies it, about."""
REPLY_TOKENS = 80
"""Tokens of a reply with a reflection, about."""


class LLMPlayer:
    """Plays a game that has been put into words, by reflection and action (`LLMPolicy`).

    Args:
        spec: of the environment.
        llm: who is asked.
        prompt_folder: the user's own prompts, `player/<name>.j2` in it.
        history: earlier turns that are shown with each question.
        action_every: steps an action is taken for.
        reflection: whether replies begin with a reflection.
        show: what an observation is accompanied by.
        lessons: lessons of earlier episodes that are kept; 0: none is drawn.
        answer_with: whether choices are answered by name or by number.
        legal_only: whether an answer must be legal, where the environment tells which actions are.
        decimals: digits after the point of the numbers of an action.
        repair_turns: chances to correct an invalid reply.

    Raises:
        ConfigError: the environment has not been put into words, or a prompt is wrong.
    """

    learns = False

    def __init__(
        self,
        spec: EnvSpec,
        llm: ChatModel,
        prompt_folder: Path | None,
        history: NonNegativeInt = 10,
        action_every: PositiveInt = 1,
        reflection: bool = True,
        show: list[Show] | None = None,
        lessons: NonNegativeInt = 0,
        answer_with: AnswerWith = "name",
        legal_only: bool = True,
        decimals: NonNegativeInt = 2,
        repair_turns: NonNegativeInt = 1,
    ) -> None:
        shown: list[Show] = ["step", "reward", "return", "legal_actions", "last_episode"] if show is None else show
        self.policy = LLMPolicy(
            spec,
            llm,
            history,
            action_every,
            reflection,
            shown,
            lessons,
            answer_with,
            legal_only,
            decimals,
            repair_turns,
            prompt_folder,
        )

    def update(self, rollout: Rollout, generator: torch.Generator) -> dict[str, float]:
        return {}

    def reset(self) -> None:
        """It learns nothing that would have to be forgotten; lessons belong to its games."""

    def metrics(self) -> dict[str, float]:
        """See `LLMPolicy.metrics`."""
        return self.policy.metrics()

    def estimate(self, steps: int, n: int) -> CallEstimate:
        """For `steps` steps of `n` games, without lessons."""
        policy = self.policy
        calls = -(-steps // policy.action_every) * n * policy.spec.n_agents
        system = estimate_tokens(policy.system[0].text)
        reply = REPLY_TOKENS if policy.reflect else 10
        mean_history = min(policy.history, steps / 2)
        prompt = system + TURN_TOKENS * policy.action_every + mean_history * (TURN_TOKENS * policy.action_every + reply)
        most = calls * (1 + policy.asker.repair_turns)
        return CallEstimate(calls, most, int(calls * prompt), calls * reply)

    def describe(self) -> dict[str, Any]:
        policy = self.policy
        return {
            "policy": f"{policy.llm.label}, zero-shot",
            "history": f"{policy.history} turns",
            "action every": f"{policy.action_every} steps",
            "lessons": policy.lessons or "none",
            "system prompt": f"about {estimate_tokens(policy.system[0].text):,} tokens",
        }

    def state_dict(self) -> State:
        return self.policy.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state)
