"""Parsers of replies that contain an object of a pydantic model, or a single text."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL_PHRASE, AnswerParser, CandidateAnswer, parse_answer
from llmrl.llms.reading.name_matcher import normalize_name
from llmrl.llms.reading.non_answer_text import is_placeholder
from llmrl.llms.reply_cleaning import to_ascii

Model = TypeVar("Model", bound=BaseModel)

_MAX_DEPTH = 5
"""Maximum nesting depth of values that are searched for an answer."""


class ObjectParser(AnswerParser[Model]):
    """Parser of objects of a pydantic model; it accepts all spellings of field names and ignores unknown fields."""

    answer_name = "JSON object of the form asked for"

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self._fields = {
            normalize_name(field.alias or name): field.alias or name for name, field in model.model_fields.items()
        }

    def parse_value(self, value: Any, depth: int = 0) -> Model | None:
        if depth > _MAX_DEPTH or not isinstance(value, dict | list):
            return None
        error: InvalidReply | None = None
        # An object with `properties` is the JSON schema in the prompt, not an answer.
        if isinstance(value, dict) and "properties" not in value:
            fields = {self._fields.get(normalize_name(str(key)), key): item for key, item in value.items()}
            try:
                return self.model.model_validate(fields)
            except ValidationError as validation_error:
                # An object without any field of the model is not the answer, but may contain it.
                if any(key in fields for key in self._fields.values()):
                    error = InvalidReply(
                        "; ".join(_describe_error(detail) for detail in validation_error.errors()[:10])
                    )
        # In a list of several objects, it is unclear which one is the answer.
        nested = value.values() if isinstance(value, dict) else value if len(value) == 1 else ()
        instances = (self.parse_value(inner, depth + 1) for inner in nested)
        instance = next((instance for instance in instances if instance is not None), None)
        if instance is None and error is not None:
            raise error
        return instance


class TextParser(AnswerParser[str]):
    """Parser of one named text, e.g. a message; a short reply in which the name does not occur is itself the text.

    Args:
        name: name of the text.
        max_length: maximum number of characters of a reply that is itself the text.
    """

    def __init__(self, name: str, max_length: int) -> None:
        self.answer_name, self.name, self.max_length = name, name, max_length
        self._label = re.compile(
            rf"^[ \t>*#_]*(?:the |my |one )?{re.escape(name)}[ \t*_]*[:=\n][ \t*_`\"]*([^\n]+)",
            re.IGNORECASE | re.MULTILINE,
        )

    def parse_value(self, value: Any, depth: int = 0) -> str | None:
        if depth > _MAX_DEPTH or not isinstance(value, dict | list):
            return None
        if isinstance(value, dict):
            if "from" in value and "to" not in value:
                return None  # a message of another agent
            for key, inner in value.items():
                if normalize_name(str(key)) == normalize_name(self.name):
                    [inner] = inner if isinstance(inner, list) and len(inner) == 1 else [inner]
                    if not isinstance(inner, str) or is_placeholder(inner):
                        raise InvalidReply(f"the {self.name} is empty or no text")
                    return inner
        nested = value.values() if isinstance(value, dict) else value
        texts = {text for inner in nested if (text := self.parse_value(inner, depth + 1))}
        # Several different texts are ambiguous.
        return texts.pop() if len(texts) == 1 else None

    def find_in_text(self, text: str, truncated: bool) -> list[CandidateAnswer[str]]:
        text = to_ascii(text)
        # `parse_value` reads JSON after a label, and the text at the end of a truncated reply is incomplete.
        return [
            CandidateAnswer(match.start(), match.end(), match[1].strip(' *`"'))
            for match in self._label.finditer(text)
            if match[1][:1] not in "{[" and not (truncated and match.end() == len(text.rstrip()))
        ]

    def parse_prose(self, text: str) -> str | None:
        prose = " ".join(text.split())
        # A brace indicates invalid JSON; one or two words are probably a remark such as "Sure!". Quotation marks and
        # words about the text, such as "say", indicate that it is only a part of the reply, or not in it.
        is_text = len(prose) <= self.max_length and not set('{"?') & set(prose) and len(prose.split()) > 2
        speech_words = re.compile(rf"\b(?:{re.escape(self.name)}|sa(?:ys?|ying|id)|silent)\b", re.IGNORECASE)
        return prose if is_text and not REFUSAL_PHRASE.search(prose) and not speech_words.search(prose) else None


def parse_object(text: str, model: type[Model], truncated: bool = False) -> Model:
    """Return the object of type `model` in a reply.

    Args:
        text: the reply.
        model: pydantic model of the object.
        truncated: whether the reply was cut off at the maximum number of tokens.

    Raises:
        InvalidReply: there is no such object. The message contains the position of invalid JSON, or the wrong fields.
    """
    return parse_answer(text, ObjectParser(model), truncated).answer


def _describe_error(error: Any) -> str:
    """Return one line about a pydantic error: field, reason and value."""
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"the field {field!r} is missing"
    return f"the field {field!r}: {error['msg'].lower()}, got {json.dumps(error['input'], default=str)[:80]}"
