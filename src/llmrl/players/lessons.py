"""The reply to the question for a lesson from an episode."""

from __future__ import annotations

from pydantic import BaseModel, Field

from llmrl.llms.structured import InvalidReply, parse_json

LESSON_TURNS = 50
"""Newest turns of an episode that a lesson is drawn from."""
LONGEST_LESSON = 600
"""Characters of a lesson."""


class Lesson(BaseModel):
    """What such a reply holds."""

    lesson: str = Field(min_length=1)


def read_lesson(text: str) -> str:
    """The lesson of a reply, in one line.

    Raises:
        InvalidReply: there is none.
    """
    lesson = " ".join(parse_json(text, Lesson).lesson.split())
    if not lesson:
        raise InvalidReply("the lesson is empty")
    return lesson[:LONGEST_LESSON]
