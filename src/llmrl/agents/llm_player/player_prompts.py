"""Prompts of a language player: rules of the game, questions, and request to correct a reply."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmrl.agents.llm_player.answer_format import AnswerFormat
from llmrl.agents.llm_player.conversation import PlayerConversation, to_json
from llmrl.agents.llm_player.player_settings import PlayerContent, PlayerSettings
from llmrl.agents.llm_player.talk import Talk
from llmrl.core.errors import LLMError
from llmrl.core.spaces import EnvSpec
from llmrl.llms.prompts import Prompt, PromptFamily
from llmrl.llms.structured_query import Query, StructuredQuery, max_fitting

PROMPTS = Path(__file__).with_name("prompts")


class PlayerPrompts:
    """Prompts of all players of a game.

    Args:
        spec: spec of the environment; its text is the description of the game.
        settings: options of the players.
        content: personas and user's prompts.
        answers: format of their answers.
        decimals: digits after the decimal point of the numbers of an action.
        channels: observation channels that are read.
        talk: rounds of talk; None: there are none.

    Attributes:
        system: function from the index of an agent and its lessons to the first message of its questions.
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
        self.system = functools.lru_cache(maxsize=64)(self._render_system)

    def _render_system(self, agent: int, lessons: tuple[str, ...]) -> Prompt:
        spec, settings, text = self._spec, self._settings, self._spec.text
        assert text is not None
        personas = self._content.personas
        examples = [self._answers.as_json(action) for action in self._answers.examples()]
        preamble = {"reflection": "..."} if settings.reflection else {}
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
            numbered=self._answers.numbered,
            frames=settings.show_frames,
            text=settings.show_text,
            show=[name for name in settings.observation_extras if name != "legal_actions" or self._masked],
            action_interval=settings.action_interval,
            decimals=self._decimals,
            examples=[to_json({**preamble, "action": example}) for example in examples],
            lessons=lessons,
            talk=talk,
            persona=personas[agent % len(personas)] if personas else "",
        )

    def query(
        self,
        seat: PlayerConversation,
        agent: int,
        model: str,
        structured_query: StructuredQuery[Any],
        schema: Any,
        place: str,
    ) -> Query:
        """Return a question to a player about its present observation.

        It holds as many earlier turns as the model's context window allows.

        Args:
            seat: conversation of the player.
            agent: index of the player.
            model: model of the player.
            structured_query: sender of the questions for actions, which counts shortened prompts.
            schema: JSON schema of the reply.
            place: place of the question in the run's episodes (`ChatRequest.place`).

        Raises:
            LLMError: not even the observation fits into the context window.
        """
        prompt = self.system(agent, tuple(seat.lessons))
        llm, settings = structured_query.llm, self._settings
        max_turns = seat.window(settings.history, settings.sliding_history)
        n_turns = max_fitting(lambda k: llm.fits(seat.messages(prompt.text, k), model), max_turns)
        if n_turns < 0:
            raise LLMError(
                f"the prompt {prompt.name} and one observation exceed the context window of {llm.label_of(model)}; "
                "choose a model with a larger one, or a smaller llm.max_tokens"
            )
        structured_query.counters["trimmed_prompts"] += n_turns < max_turns
        if n_turns < max_turns and not settings.sliding_history:
            n_turns = -(-n_turns // 2)  # otherwise every further question would drop the oldest turn
        seat.shown_from = seat.decided - n_turns
        return Query(seat.messages(prompt.text, n_turns), prompt.name, prompt.hash, schema, place, model)

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
