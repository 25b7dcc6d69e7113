"""The prompts of a language player: the rules of its game, a question for a lesson, and a request to repair a reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.agents.llm_player.answer_format import AnswerFormat
from llmrl.agents.llm_player.conversation import PlayerConversation, said
from llmrl.agents.llm_player.episode_examples import examples as told_episodes
from llmrl.agents.llm_player.player_settings import PlayerSettings
from llmrl.agents.llm_player.talk import Talk
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily

PROMPTS = Path(__file__).with_name("prompts")


class PlayerPrompts:
    """Prompts of all players of a game.

    Args:
        spec: spec of the environment; its text is the description of the game.
        settings: how players are told of it.
        answers: form of their answers.
        decimals: digits after the point of the numbers of an action.
        channels: observation channels that are read.
        talk: rounds in which they talk; None: they are silent.
    """

    def __init__(
        self,
        spec: EnvSpec,
        settings: PlayerSettings,
        answers: AnswerFormat,
        decimals: int,
        channels: Sequence[str],
        talk: Talk | None,
    ) -> None:
        self._spec, self._settings, self._answers, self._talk = spec, settings, answers, talk
        self._decimals, self._masked = decimals, "action_mask" in channels
        self._files = PromptFamily("player", PROMPTS, settings.prompt_folder)
        self._episodes = told_episodes(settings.examples, spec, answers, settings.example_steps, settings.reflection)

    def system(self, agent: int, lessons: tuple[str, ...]) -> Prompt:
        """Return the first message of an agent's questions, with lessons of earlier episodes."""
        spec, settings, text = self._spec, self._settings, self._spec.text
        assert text is not None
        examples = [self._answers.shown(action) for action in self._answers.examples()]
        before = {"reflection": "..."} if settings.reflection else {}
        before |= {"plan": "..."} if settings.plan else {}
        talk: dict[str, Any] | None = None
        if self._talk is not None:
            talk = {"every": self._talk.every, "to": self._talk.to, "length": self._talk.length}
        return self._files.render(
            "system",
            goal=text.goal,
            observation=text.observation,
            actions=self._answers.told,
            amount=bool(text.amount),
            numbers=spec.continuous_actions is not None,
            n_agents=spec.n_players,
            agent=spec.player_names[agent],
            reflect=settings.reflection,
            plan=settings.plan,
            numbered=self._answers.numbered,
            frames=settings.show_frames,
            text=settings.show_text,
            show=[name for name in settings.show if name != "legal_actions" or self._masked],
            action_every=settings.action_every,
            decimals=self._decimals,
            examples=[said({**before, "action": example}) for example in examples],
            episodes=self._episodes,
            by=settings.examples_by,
            lessons=lessons,
            talk=talk,
            persona=settings.personas[agent % len(settings.personas)] if settings.personas else "",
        )

    def lesson(self, seat: PlayerConversation, kept: int) -> Prompt:
        """Return the question for a lesson from the `kept` newest turns of an episode that is over."""
        return self._files.render(
            "lesson",
            turns=seat.turns[len(seat.turns) - kept :],
            left_out=max(seat.before - kept, 0),
            end=said(seat.last_episode),
            lessons=seat.lessons,
        )

    def repair(self, fault: str) -> Prompt:
        """Return the request for another reply in place of one with a fault."""
        return self._files.render("_repair", fault=fault)
