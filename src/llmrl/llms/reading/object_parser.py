"""Parsers of objects of a pydantic model, and of single texts, in a reply."""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reading.answer_parser import REFUSAL, AnswerParser, CandidateAnswer, parse_answer
from llmrl.llms.reading.name_matcher import letters
from llmrl.llms.reply_cleaning import to_ascii

Model = TypeVar("Model", bound=BaseModel)

_DEEPEST = 5


class ObjectParser(AnswerParser[Model]):
    """Parser of objects of a pydantic model; field names may differ in spelling, and unknown fields are ignored."""

    wanted = "JSON object of the form asked for"

    def __init__(self, model: type[Model]) -> None:
        self.model = model
        self._fields = {letters(field.alias or name): field.alias or name for name, field in model.model_fields.items()}

    def of_value(self, value: Any, depth: int = 0) -> Model | None:
        if depth > _DEEPEST or not isinstance(value, dict | list):
            return None
        inner = value if isinstance(value, list) else list(value.values())
        fault: InvalidReply | None = None
        if isinstance(value, dict) and "properties" not in value:
            fields = {self._fields.get(letters(str(key)), key): item for key, item in value.items()}
            try:
                return self.model.model_validate(fields)
            except ValidationError as error:
                if any(key in fields for key in self._fields.values()):
                    fault = InvalidReply("; ".join(_describe(detail) for detail in error.errors()[:10]))
        if isinstance(value, dict) or len(value) == 1:
            for item in inner:
                if (instance := self.of_value(item, depth + 1)) is not None:
                    return instance
        if fault is not None:
            raise fault
        return None


class TextParser(AnswerParser[str]):
    """Parser of one text under a name; a reply that is only a short text is taken as a whole.

    Args:
        name: name of the text.
        longest: most characters of a reply that is taken as a whole.
    """

    def __init__(self, name: str, longest: int) -> None:
        self.wanted, self.name, self.longest = name, name, longest
        self._label = re.compile(
            rf"^[ \t>*#_]*(?:the |my |one )?{re.escape(name)}[ \t*_]*[:=\n][ \t*_`\"]*([^\n]+)",
            re.IGNORECASE | re.MULTILINE,
        )

    def of_value(self, value: Any, depth: int = 0) -> str | None:
        if depth > _DEEPEST or not isinstance(value, dict | list):
            return None
        if isinstance(value, dict):
            for key, inner in value.items():
                if letters(str(key)) == letters(self.name):
                    if isinstance(inner, list) and len(inner) == 1:
                        inner = inner[0]
                    if not isinstance(inner, str) or not inner.strip(" .<>"):
                        raise InvalidReply(f"the {self.name} is empty or no text")
                    return inner
        texts = [
            text
            for inner in (value.values() if isinstance(value, dict) else value)
            if (text := self.of_value(inner, depth + 1))
        ]
        return texts[0] if len(set(texts)) == 1 else None

    def of_text(self, text: str, cut: bool) -> list[CandidateAnswer[str]]:
        text = to_ascii(text)
        return [
            CandidateAnswer(match.start(), match.end(), match[1].strip(' *`"'))
            for match in self._label.finditer(text)
            if match[1][:1] not in "{[" and not (cut and match.end() == len(text.rstrip()))
        ]

    def of_prose(self, text: str) -> str | None:
        prose = " ".join(text.split())
        return (
            prose
            if 0 < len(prose) <= self.longest
            and "{" not in prose
            and len(prose.split()) > 2
            and not REFUSAL.search(prose)
            else None
        )


def parse_json(text: str, model: type[Model], cut: bool = False) -> Model:
    """Return the object of type `model` in a reply; `cut` says that the reply was cut off.

    Raises:
        InvalidReply: no object fits; the text says where the JSON breaks, or which fields are wrong.
    """
    return parse_answer(text, ObjectParser(model), cut).answer


def _describe(error: Any) -> str:
    """Describe a pydantic error in one line: field, fault, given value."""
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"the field {field!r} is missing"
    return f"the field {field!r}: {error['msg'].lower()}, got {json.dumps(error['input'], default=str)[:80]}"
