"""Lessons that players write after episodes and are shown in later ones (Reflexion, arXiv 2303.11366)."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field

from llmrl.agents.llm_player.conversation import Message, PlayerConversation, message
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.core.model_protocols import ChatModel, ConversationGenerator
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.object_parser import TextParser
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import Query, QueryStats, StructuredQuery, max_fitting

LESSON_TURNS = 50
"""Maximum number of turns of an episode, the newest ones, from which a lesson is drawn."""
MAX_LESSON_LENGTH = 600
"""Maximum number of characters of a lesson."""
_LESSON = TextParser("lesson", MAX_LESSON_LENGTH)

Pupil = tuple[PlayerConversation, int, str, str, str]
"""Player with a completed episode: its conversation, index, model and adapter, and the place of the question."""


class Lesson(BaseModel):
    """Reply to the question for a lesson from an episode."""

    lesson: str = Field(min_length=1)


class Lessons:
    """Questions for lessons, and the lessons that players keep.

    Args:
        llm: the chat model.
        prompts: prompts of the players.
        max_lessons: maximum number of lessons that a player keeps, the newest ones; 0: none are drawn.
        repair_turns: maximum number of corrections of an invalid reply.
    """

    def __init__(self, llm: ChatModel, prompts: PlayerPrompts, max_lessons: int, repair_turns: int) -> None:
        self._llm, self._prompts, self.max_lessons = llm, prompts, max_lessons
        self.structured_query = StructuredQuery(
            llm, "lesson", lambda x: read_lesson(x.text, x.cut), prompts.repair, json_schema(Lesson), repair_turns
        )
        self.question(PlayerConversation(turns=[("{}", "{}")]), 0, "", "", "")  # raises early if the prompt is wrong

    def draw(self, pupils: Sequence[Pupil]) -> ConversationGenerator[list[tuple[str | None, QueryStats]]]:
        """Request a lesson from each completed episode, and add it to the conversation of the player.

        Returns:
            Lesson of each player (None: no valid one), and the statistics of the question.
        """
        if not pupils:
            return []
        lessons = yield from self.structured_query.ask_generator([self.question(*pupil) for pupil in pupils])
        for (conversation, *_), lesson in zip(pupils, lessons, strict=True):
            if lesson is not None:
                conversation.lessons = [*conversation.lessons, lesson][-self.max_lessons :]
            conversation.turns, conversation.needs_lesson = [], False
        return list(zip(lessons, self.structured_query.query_stats, strict=True))

    def question(self, conversation: PlayerConversation, agent: int, model: str, adapter: str, place: str) -> Query:
        """Return the question for a lesson, with as much of the episode as the model's context window allows."""
        system = self._prompts.system(agent, tuple(conversation.lessons))

        def render(n_turns: int) -> tuple[Prompt, tuple[Message, ...]]:
            prompt = self._prompts.lesson(conversation, n_turns)
            return prompt, (message("system", system.text), message("user", prompt.text))

        max_turns = min(len(conversation.turns), LESSON_TURNS)
        n_turns = max_fitting(lambda k: self._llm.fits(render(k)[1], model), max_turns) if model else max_turns
        prompt, messages = render(max(n_turns, 0))
        return Query(messages, prompt.name, prompt.hash, place=place, model=model, adapter=adapter)


def read_lesson(text: str, is_truncated: bool = False) -> str:
    """Return the lesson of a reply in one line; `is_truncated` says that the reply was cut off at its maximum length.

    Raises:
        InvalidReply: the reply holds no lesson.
    """
    return " ".join(parse_answer(text, _LESSON, is_truncated).answer.split())[:MAX_LESSON_LENGTH]
