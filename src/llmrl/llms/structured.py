"""Numbers and records out of a model's reply. A reply is data: it is parsed and checked, never executed.

Reading is total: every reply is read or invalid (`read`), in time linear in its length. Texts out of JSON are cleaned
after it has been parsed, because its escapes can hold what no file can.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

logger = logging.getLogger(__name__)

Model = TypeVar("Model", bound=BaseModel)
T = TypeVar("T")

LONGEST_REPLY = 30_000
"""Characters at the end of a reply that are looked at: the answer comes last."""
LONGEST_FAULT = 2000
"""Characters of what is said of an invalid reply."""
DEEPEST = 50
"""Levels of objects and lists inside one another; what is nested deeper is no answer to any question."""
LONGEST_INTEGER = 300
"""Digits of an integer that is read as one; longer ones, which Python refuses to convert, become floats."""
ATTEMPTS = 64
"""Times that the whole text is gone through at most, in search of JSON objects."""

# What follows the digits before the point begins with the point: else n digits could be shared out in n ways.
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_OBJECT = re.compile(r"\{(?=\s*[\"}])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_SEPARATORS = re.compile(r"[,;\s]+")
_DECORATION = str.maketrans({**dict.fromkeys("*[](){}_`\\"), "\u2212": "-"})


class InvalidReply(Exception):  # noqa: N818  (a fact about a reply, not a fault of the program)
    """A reply that does not hold what was asked for. The text says what is wrong, for the model to read."""

    def __init__(self, fault: str = "") -> None:
        super().__init__(cleaned(fault)[:LONGEST_FAULT] or "invalid")


def read(text: str, parse: Callable[[str], T]) -> T:
    """`parse(text)`: the one way from a reply to what it says.

    Raises:
        InvalidReply: `parse` raised this or anything else. A reply must never end a run, from the cache again and
            again; a defect of `parse` shows in the log, and by the share of invalid replies (`llm.max_invalid`).
    """
    try:
        return parse(text[-LONGEST_REPLY:])
    except InvalidReply:
        raise
    except Exception as error:
        logger.warning("reading a reply raised %s: %.200s", type(error).__name__, cleaned(str(error)))
        logger.debug("while reading a reply", exc_info=True)
        raise InvalidReply(f"the reply cannot be read ({type(error).__name__})") from error


def fault_of(text: str, parse: Callable[[str], object]) -> str:
    """What is wrong with a reply, "" if `parse` can read it."""
    try:
        read(text, parse)
    except InvalidReply as fault:
        return str(fault)
    return ""


def cleaned(text: str) -> str:
    """`text` as it can be written, sent and shown: no control characters but tabs and line breaks; U+FFFD for halves of
    surrogate pairs, which UTF-8 cannot hold.

    >>> cleaned("a\\x1b[2Jb\\ud800")
    'a[2Jb\ufffd'
    """
    return writable(_CONTROL.sub("", text))


def writable(text: str) -> str:
    """`text` with U+FFFD for halves of surrogate pairs, which no file can hold."""
    return _SURROGATE.sub("\ufffd", text)


def json_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The model's JSON schema in the dialect that strict structured output takes: all fields required, no others."""
    schema = model.model_json_schema(by_alias=True)
    _make_strict(schema)
    return schema


def parse_json(text: str, model: type[Model]) -> Model:
    """The last JSON object in `text` that fits `model`; prose and code fences around it are ignored.

    The last, because models think aloud before they answer.

    Raises:
        InvalidReply: there is no JSON object, or none fits; the text describes the fault of the last one.
    """
    objects = _json_objects(text[-LONGEST_REPLY:])
    if not objects:
        raise InvalidReply("there is no complete JSON object in the reply")
    fault: ValidationError | None = None
    for candidate in reversed(objects):
        try:
            return model.model_validate(candidate)
        except ValidationError as error:
            fault = fault or error
    assert fault is not None
    raise InvalidReply("; ".join(_describe(error) for error in fault.errors()[:10])) from None


def parse_dollar(text: str, n: int) -> np.ndarray:
    """The `n` numbers of the last list between two dollar signs, e.g. `$0.1, 0.2, 0.3$`; float64 [n].

    The fallback for models that write no JSON. Numbers may be separated by commas, semicolons, spaces or line breaks
    and wear brackets, asterisks or backslashes; `$$` counts as one sign; a price such as `$5` elsewhere is ignored.

    Raises:
        InvalidReply: no such list, another count of numbers, percentages, or anything that is not a finite number.
    """
    pieces = re.sub(r"\$+", "$", text[-LONGEST_REPLY:].replace("\\$", "$")).split("$")
    # The first and the last piece have a dollar sign on one side only.
    inner = pieces[1:-1]
    if not inner:
        raise InvalidReply("there is no list of numbers between two dollar signs")
    complaint: InvalidReply | None = None
    for piece in reversed(inner):
        try:
            return _numbers(piece, n)
        except InvalidReply as error:
            # The piece with the most to say is the one that looked like a list of numbers.
            if complaint is None or (_NUMBER.search(piece) and "are no numbers" in str(complaint)):
                complaint = error
    assert complaint is not None
    raise complaint


def _numbers(piece: str, n: int) -> np.ndarray:
    words = [word for word in _SEPARATORS.split(piece.translate(_DECORATION)) if word]
    shown = " ".join(piece.split())[:80]
    if not words:
        raise InvalidReply("there are no numbers between the dollar signs")
    if any(word.endswith("%") for word in words):
        raise InvalidReply(f"percentages are not accepted (write 0.25, not 25%): ${shown}$")
    if not all(_NUMBER.fullmatch(word) for word in words):
        raise InvalidReply(f"some of the words between the dollar signs are no numbers: ${shown}$")
    values = [float(word) for word in words]
    if len(values) != n:
        raise InvalidReply(
            f"expected {n} number{'s' * (n != 1)} between the dollar signs, got {len(values)}: ${shown}$"
        )
    if not all(math.isfinite(value) for value in values):
        raise InvalidReply(f"numbers must be finite: ${shown}$")
    return np.array(values, dtype=np.float64)


def _json_objects(text: str) -> list[dict[str, Any]]:
    """Every outermost JSON object in `text`, in order, its texts cleaned."""
    objects: list[dict[str, Any]] = []
    position, patience = 0, ATTEMPTS * len(text)
    while patience > 0 and (opening := _OBJECT.search(text, position)):
        start = opening.start()
        position = start + 1
        try:
            value, position = _DECODER.raw_decode(text, start)
            objects.append(_cleaned(value))
        except json.JSONDecodeError as error:
            # Of a string without an end the error names the beginning, and all was read.
            end = len(text) if error.msg.startswith("Unterminated") else error.pos
            patience -= end - start
        except RecursionError:
            patience -= len(text) - start
    return objects


def _cleaned(value: Any, depth: int = 0) -> Any:
    """Parsed JSON with all its texts cleaned.

    Raises:
        RecursionError: it is nested deeper than `DEEPEST`.
    """
    if depth > DEEPEST:
        raise RecursionError
    if isinstance(value, str):
        return cleaned(value)
    if isinstance(value, list):
        return [_cleaned(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): _cleaned(item, depth + 1) for key, item in value.items()}
    return value


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= LONGEST_INTEGER else float(digits)


_DECODER = json.JSONDecoder(parse_int=_integer)


def _describe(error: Any) -> str:
    """One pydantic error in a few words: field, fault, what was given."""
    field = ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        return f"the field {field!r} is missing"
    return f"the field {field!r}: {error['msg'].lower()}, got {json.dumps(error['input'], default=str)[:80]}"


def _make_strict(schema: dict[str, Any]) -> None:
    """In place: every object closed and with all fields required; no defaults, which strict providers refuse."""
    schema.pop("default", None)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
    inner = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values(), *schema.get("anyOf", [])]
    for part in [*inner, schema.get("items")]:
        if isinstance(part, dict):
            _make_strict(part)
