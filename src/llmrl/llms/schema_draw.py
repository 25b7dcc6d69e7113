"""The scripted reply to a question no rule knows: a valid one, drawn from the schema the reply must satisfy.

Whoever asks for one of several actions or for a plan made of known skills gets a legal one, and the same one to the
same question. It is no better than chance, as a stand-in for a player or planner without a rule of its own should be.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TEXT = "Drawn at random, by no rule."
"""What every free text of a reply says."""

LONGEST_LIST = 3
"""Items of a list whose schema names no longest length."""

_UNBOUNDED = (0.0, 1.0)
"""Range of a number whose schema names no bounds."""


def reply(schema: Mapping[str, Any], question: str) -> str:
    """JSON that satisfies `schema`, drawn at random from a stream that `question` decides.

    Understood is what pydantic writes for plain fields: objects, lists, enumerations, numbers with bounds, booleans,
    texts, alternatives and references.

    Raises:
        ValueError: the schema holds something else.
    """
    digest = hashlib.sha256(question.encode("utf-8", errors="replace")).digest()
    rng = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:8], "big")))
    return json.dumps(_draw(schema, schema.get("$defs", {}), rng))


def _draw(schema: Mapping[str, Any], definitions: Mapping[str, Any], rng: np.random.Generator) -> Any:
    if "$ref" in schema:
        return _draw(definitions[schema["$ref"].rpartition("/")[2]], definitions, rng)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][rng.integers(len(schema["enum"]))]
    if "anyOf" in schema:
        return _draw(schema["anyOf"][rng.integers(len(schema["anyOf"]))], definitions, rng)
    kind = schema.get("type")
    if kind == "object":
        return {name: _draw(field, definitions, rng) for name, field in schema.get("properties", {}).items()}
    if kind == "array":
        fewest = schema.get("minItems", 1)
        most = schema.get("maxItems", max(fewest, LONGEST_LIST))
        return [_draw(schema["items"], definitions, rng) for _ in range(rng.integers(fewest, most + 1))]
    if kind in ("integer", "number"):
        return _number(schema, kind, rng)
    plain: dict[str | None, Callable[[], Any]] = {
        "boolean": lambda: bool(rng.integers(2)),
        "string": lambda: TEXT,
        "null": lambda: None,
    }
    if kind not in plain:
        raise ValueError(f"no reply can be drawn from the schema {json.dumps(schema)[:200]}")
    return plain[kind]()


def _number(schema: Mapping[str, Any], kind: str, rng: np.random.Generator) -> int | float:
    """Inside the bounds; where one is missing, within 1 of the other."""
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is None and high is None:
        low, high = _UNBOUNDED
    low = high - 1 if low is None else low
    high = low + 1 if high is None else high
    if kind == "integer":
        first = int(np.ceil(low)) + ("exclusiveMinimum" in schema and float(low).is_integer())
        last = int(np.floor(high)) - ("exclusiveMaximum" in schema and float(high).is_integer())
        return int(rng.integers(first, last + 1))
    # Away from the ends, which may be excluded.
    return float(low + (high - low) * (0.05 + 0.9 * rng.random()))
