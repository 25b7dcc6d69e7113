"""Lessons that players write down after episodes and are told in later ones (Reflexion, arXiv 2303.11366)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pydantic import BaseModel, Field

from llmrl.agents.llm_player.conversation import Message, PlayerConversation, message
from llmrl.agents.llm_player.player_prompts import PlayerPrompts
from llmrl.core.model_protocols import ChatModel
from llmrl.llms.prompts import Prompt
from llmrl.llms.reading.answer_parser import parse_answer
from llmrl.llms.reading.object_parser import TextParser
from llmrl.llms.structured import json_schema
from llmrl.llms.structured_query import Conversing, Query, QueryStats, StructuredQuery, most_that_fit

LESSON_TURNS = 50
"""Most turns of an episode, the newest ones, from which a lesson is drawn."""
LONGEST_LESSON = 600
"""Most characters of a lesson."""
_LESSON = TextParser("lesson", LONGEST_LESSON)

Pupil = tuple[PlayerConversation, int, str, str]
"""A player with an episode to learn from: its conversation, its index, its model, and the place of the question."""
Drawn = tuple[PlayerConversation, str | None, QueryStats]
"""A player, the lesson that it drew (None: none that is valid), and what the question took."""


class Lesson(BaseModel):
    """Reply to the question for a lesson from an episode."""

    lesson: str = Field(min_length=1)


class Lessons:
    """Questions for lessons, and the lessons that players keep.

    Args:
        llm: the chat model.
        prompts: prompts of the players.
        kept: number of newest lessons that a player keeps; 0: none are drawn.
        repair_turns: chances to correct an invalid reply.
    """

    def __init__(self, llm: ChatModel, prompts: PlayerPrompts, kept: int, repair_turns: int) -> None:
        self._llm, self._prompts, self.kept = llm, prompts, kept
        self.asker: StructuredQuery[str] = StructuredQuery(
            llm,
            "lesson",
            lambda reply: read_lesson(reply.text, reply.cut),
            prompts.repair,
            json_schema(Lesson),
            repair_turns,
        )
        self.question(PlayerConversation(turns=[("{}", "{}")]), 0, "", "")  # a fault in the prompt is found at once

    def drawing(self, pupils: Sequence[Pupil]) -> Conversing[Iterator[Drawn]]:
        """Ask for a lesson from each episode that a player leaves behind; what was drawn is kept by the players."""
        lessons = (yield from self.asker.asking([self.question(*pupil) for pupil in pupils])) if pupils else []
        for (seat, *_), lesson in zip(pupils, lessons, strict=False):
            if lesson is not None:
                seat.lessons = [*seat.lessons, lesson][-self.kept :]
            seat.turns, seat.unlearnt = [], False
        return zip([seat for seat, *_ in pupils], lessons, self.asker.asked, strict=False)

    def question(self, seat: PlayerConversation, agent: int, model: str, place: str) -> Query:
        """Return the question for a lesson, with as much of the episode as the model's context window takes."""
        system = self._prompts.system(agent, tuple(seat.lessons))

        def told(kept: int) -> tuple[Prompt, tuple[Message, ...]]:
            prompt = self._prompts.lesson(seat, kept)
            return prompt, (message("system", system.text), message("user", prompt.text))

        most = min(len(seat.turns), LESSON_TURNS)
        kept = most_that_fit(lambda k: self._llm.fits(told(k)[1], model), most) if model else most
        prompt, messages = told(max(kept, 0))
        return Query(messages, prompt.name, prompt.hash, place=place, model=model)


def read_lesson(text: str, cut: bool = False) -> str:
    """Return the lesson of a reply in one line; `cut` says that the reply was cut off because it grew too long.

    Raises:
        InvalidReply: the reply holds no lesson.
    """
    return " ".join(parse_answer(text, _LESSON, cut).answer.split())[:LONGEST_LESSON]
