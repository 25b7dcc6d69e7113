"""Random replies of the scripted model to requests without a rule, drawn from the schema of the reply.

A request for one of several actions, or for a plan of known skills, gets a legal one, and equal requests get equal
replies. The replies are no better than chance.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

TEXT = "Drawn at random, by no rule."
"""Content of every free text of a reply."""

MAX_LIST_LENGTH = 3
"""Maximum length of a list whose schema has none."""

_UNBOUNDED = (0.0, 1.0)
"""Range of a number whose schema has no bounds."""


def reply(schema: Mapping[str, Any], question: str) -> str:
    """Return JSON that satisfies `schema`, drawn from a random stream that `question` determines.

    The schema may contain what pydantic writes for plain fields: objects, lists, enumerations, numbers with bounds,
    booleans, texts, alternatives and references.

    Raises:
        ValueError: the schema contains something else.
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
        min_items = schema.get("minItems", 1)
        max_items = schema.get("maxItems", max(min_items, MAX_LIST_LENGTH))
        return [_draw(schema["items"], definitions, rng) for _ in range(rng.integers(min_items, max_items + 1))]
    if kind in ("integer", "number"):
        return _number(schema, kind, rng)
    simple_types: dict[str | None, Callable[[], Any]] = {
        "boolean": lambda: bool(rng.integers(2)),
        "string": lambda: TEXT,
        "null": lambda: None,
    }
    if kind not in simple_types:
        raise ValueError(f"no reply can be drawn from the schema {json.dumps(schema)[:200]}")
    return simple_types[kind]()


def _number(schema: Mapping[str, Any], kind: str, rng: np.random.Generator) -> int | float:
    """Draw a number within the bounds. If one bound is missing, the number is within 1 of the other."""
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
    # The bounds themselves may be excluded.
    return float(low + (high - low) * (0.05 + 0.9 * rng.random()))
