"""Prompts of a language player: rules of the game, question for a lesson, and request to correct a reply."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.agents.llm_player.answer_format import AnswerFormat
from llmrl.agents.llm_player.conversation import PlayerConversation, to_json
from llmrl.agents.llm_player.episode_examples import examples as example_episodes
from llmrl.agents.llm_player.player_settings import PlayerContent, PlayerSettings
from llmrl.agents.llm_player.talk import Talk
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily

PROMPTS = Path(__file__).with_name("prompts")


class PlayerPrompts:
    """Prompts of all players of a game.

    Args:
        spec: spec of the environment; its text is the description of the game.
        settings: options of the players.
        content: examples, personas and user's prompts.
        answers: format of their answers.
        decimals: digits after the decimal point of the numbers of an action.
        channels: observation channels that are read.
        talk: rounds of talk; None: there are none.
    """

    def __init__(
        self,
        spec: EnvSpec,
        settings: PlayerSettings,
        content: PlayerContent,
        answers: AnswerFormat,
        decimals: int,
        channels: Sequence[str],
        talk: Talk | None,
    ) -> None:
        self._spec, self._settings, self._content, self._answers, self._talk = spec, settings, content, answers, talk
        self._decimals, self._masked = decimals, "action_mask" in channels
        self._files = PromptFamily("player", PROMPTS, content.prompt_folder)
        self._episodes = example_episodes(content.examples, spec, answers, settings.example_steps, settings.reflection)

    def system(self, agent: int, lessons: tuple[str, ...]) -> Prompt:
        """Return the first message of an agent's questions, with lessons of earlier episodes."""
        spec, settings, text = self._spec, self._settings, self._spec.text
        assert text is not None
        personas = self._content.personas
        examples = [self._answers.as_json(action) for action in self._answers.examples()]
        preamble = {"reflection": "..."} if settings.reflection else {}
        preamble |= {"plan": "..."} if settings.plan else {}
        talk: dict[str, Any] | None = None
        if self._talk is not None:
            talk = {"every": self._talk.every, "to": self._talk.to, "length": self._talk.length}
        return self._files.render(
            "system",
            goal=text.goal,
            observation=text.observation,
            actions=self._answers.descriptions,
            amount=bool(text.amount),
            numbers=spec.continuous_actions is not None,
            n_agents=spec.n_players,
            agent=spec.player_names[agent],
            reflect=settings.reflection,
            plan=settings.plan,
            numbered=self._answers.numbered,
            frames=settings.show_frames,
            text=settings.show_text,
            show=[name for name in settings.additions if name != "legal_actions" or self._masked],
            action_interval=settings.action_interval,
            decimals=self._decimals,
            examples=[to_json({**preamble, "action": example}) for example in examples],
            episodes=self._episodes,
            by=settings.example_player,
            lessons=lessons,
            talk=talk,
            persona=personas[agent % len(personas)] if personas else "",
        )

    def lesson(self, seat: PlayerConversation, kept: int) -> Prompt:
        """Return the question for a lesson from the `kept` newest turns of a completed episode."""
        return self._files.render(
            "lesson",
            turns=seat.turns[len(seat.turns) - kept :],
            left_out=max(seat.before - kept, 0),
            end=to_json(seat.last_episode),
            lessons=seat.lessons,
        )

    def repair(self, reason: str) -> Prompt:
        """Return the request for another reply, with the reason why the previous one is invalid."""
        return self._files.render("_repair", fault=reason)
