"""Lessons that players write after episodes and read in later ones (Reflexion, arXiv 2303.11366)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from llmrl.agents.llm_player.conversation import Message, PlayerConversation, make_message
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.core.model_protocols import ChatModel, ConversationGenerator
from llmrl.core.records import ChatRequest
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.object_parser import TextParser
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import QueryStats, StructuredQuery, find_largest_fit

MAX_LESSON_TURNS = 50
"""Maximum number of turns of an episode, the newest ones, from which a lesson is drawn."""
MAX_LESSON_LENGTH = 600
"""Maximum number of characters of a lesson."""
_LESSON_PARSER = TextParser("lesson", MAX_LESSON_LENGTH)

LessonRequest = tuple[PlayerConversation, int, str, str, str]
"""Conversation, index, model and adapter of a player with a completed episode, and the identifier of the question."""


class Lesson(BaseModel):
    """Reply to the question for a lesson from an episode."""

    lesson: str = Field(min_length=1)


class LessonRequester:
    """Object that requests lessons from players and adds them to the players' conversations.

    Args:
        llm: the chat model.
        prompts: prompts of the players.
        max_lessons: maximum number of lessons that a player keeps, the newest ones; 0: none are drawn.
        repair_turns: maximum number of corrections of an invalid reply.
    """

    def __init__(self, llm: ChatModel, prompts: PlayerPrompts, max_lessons: int, repair_turns: int) -> None:
        self._llm, self._prompts, self.max_lessons = llm, prompts, max_lessons
        self.structured_query = StructuredQuery(
            llm,
            "lesson",
            lambda x: parse_lesson(x.text, x.is_truncated),
            prompts.render_repair,
            json_schema(Lesson),
            repair_turns,
        )
        # Raises if the prompt is wrong, before the first episode.
        self.build_query(PlayerConversation(turns=[("{}", "{}")]), agent=0, model="", adapter="", question_id="")

    def request_lessons(
        self, requests: Sequence[LessonRequest]
    ) -> ConversationGenerator[list[tuple[str | None, QueryStats]]]:
        """Request a lesson from each completed episode, and add it to the conversation of the player.

        Returns:
            Lesson of each player (None: no valid reply), and the statistics of the question for it.
        """
        if not requests:
            return []
        lessons = yield from self.structured_query.ask_generator([self.build_query(*request) for request in requests])
        for (conversation, *_), lesson in zip(requests, lessons, strict=True):
            if lesson is not None:
                conversation.lessons = [*conversation.lessons, lesson][-self.max_lessons :]
            conversation.turns, conversation.needs_lesson = [], False
        return list(zip(lessons, self.structured_query.query_stats, strict=True))

    def build_query(
        self, conversation: PlayerConversation, agent: int, model: str, adapter: str, question_id: str
    ) -> ChatRequest:
        """Return the question for a lesson, with as much of the episode as the model's context window allows."""
        system = self._prompts.render_system(agent, tuple(conversation.lessons))

        def render(n_turns: int) -> tuple[Prompt, tuple[Message, ...]]:
            prompt = self._prompts.render_lesson(conversation, n_turns)
            return prompt, (make_message("system", system.text), make_message("user", prompt.text))

        max_turns = min(len(conversation.turns), MAX_LESSON_TURNS)
        n_turns = find_largest_fit(lambda k: self._llm.fits(render(k)[1], model), max_turns) if model else max_turns
        prompt, messages = render(max(n_turns, 0))
        return ChatRequest(
            messages,
            prompt=prompt.name,
            prompt_hash=prompt.hash,
            question_id=question_id,
            model=model,
            adapter=adapter,
        )


def parse_lesson(text: str, is_truncated: bool = False) -> str:
    """Return the lesson of a reply in one line; `is_truncated` says that the reply was cut off at its maximum length.

    Raises:
        InvalidReply: the reply holds no lesson.
    """
    return " ".join(parse_answer(text, _LESSON_PARSER, is_truncated).answer.split())[:MAX_LESSON_LENGTH]
