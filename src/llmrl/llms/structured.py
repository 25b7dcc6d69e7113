"""Structured replies: the requested JSON schema, and the validation of the reply.

A reply is data: it is parsed and validated, never executed. The parsers are in `llmrl.llms.reading`.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel

from llmrl.core.records import ChatReply
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.llms.reply_cleaning import strip_control_characters

logger = logging.getLogger(__name__)

T = TypeVar("T")


def apply_parser(reply: ChatReply, parse: Callable[[ChatReply], T]) -> T:
    """Return `parse(reply)`. All code that interprets replies calls this function.

    Raises:
        InvalidReply: `parse` raised any exception. A single reply must not end a run, because the cache would return it
            again. Defects of `parse` appear in the log and in the share of invalid replies (`llm.max_invalid`).
    """
    try:
        return parse(reply)
    except InvalidReply:
        raise
    except Exception as error:
        logger.warning("reading a reply raised %s: %.200s", type(error).__name__, strip_control_characters(str(error)))
        logger.debug("while reading a reply", exc_info=True)
        raise InvalidReply(f"the reply cannot be read ({type(error).__name__})") from error


def as_json(value: Any) -> Any:
    """Convert the parsed value of a reply to JSON-compatible values for the call log."""
    return json.loads(json.dumps(value, default=_to_plain))


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of `model` in the dialect of strict structured output: all fields required, no others."""
    schema = model.model_json_schema(by_alias=True)
    _make_strict(schema)
    return schema


def _to_plain(value: Any) -> Any:
    """Convert one object that JSON does not support."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, BaseModel):
        return value.model_dump()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)  # type: ignore[arg-type]


def _make_strict(schema: dict[str, Any]) -> None:
    """Close every object in place, require all its fields, and drop defaults, which strict providers refuse."""
    schema.pop("default", None)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for part in [*inner, schema.get("items")]:
        if isinstance(part, dict):
            _make_strict(part)
