"""JSON schemas for structured replies, and the call of parsers, which are in `llmrl.llms.reading`.

Replies are parsed as data and never executed as code.
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
    """Return `parse(reply)`. All parsers are called by this function.

    Raises:
        InvalidReply: `parse` raised any exception. Other exceptions are logged and converted, because a reply that ends
            a run would do so again after a restart, when it comes from the cache.
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
    """Return the JSON schema of `model` for strict structured output: all fields are required, others forbidden."""
    schema = model.model_json_schema(by_alias=True)
    _make_strict(schema)
    return schema


def _to_plain(value: Any) -> Any:
    """Return an object that JSON does not support as plain data."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, BaseModel):
        return value.model_dump()
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) else str(value)  # type: ignore[arg-type]


def _make_strict(schema: dict[str, Any]) -> None:
    """Forbid other properties, require all fields, and remove defaults, in place; strict providers demand this."""
    schema.pop("default", None)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
    subschemas = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for subschema in [*subschemas, schema.get("items")]:
        if isinstance(subschema, dict):
            _make_strict(subschema)
