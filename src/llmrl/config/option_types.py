"""Types and ranges of options as texts, from the type hints of the classes that option files name."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

from llmrl.config.run_options import HINTS
from llmrl.core.arguments import signature_of
from llmrl.core.option_files import content, options, root

_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
PART: dict[str, Any] = {"type": "object"}
"""JSON schema of a part."""


def option_type(key: str, targets: Mapping[str, str]) -> str:
    """Return type and range of an option, e.g. `integer >= 1 | null`; empty if unknown.

    Args:
        key: dotted key of a config.
        targets: `_target_` of each place of the config that has one. At other places, all classes that the shipped
            options have there are considered.
    """
    words = (_schema_text(schema) for hint in _hints(key, targets) for schema in hint_schemas(hint))
    return " | ".join(dict.fromkeys(word for word in words if word))


def _hints(key: str, targets: Mapping[str, str]) -> list[Any]:
    """Return the type hints of an option in the classes that may have it."""
    from llmrl.config.builder import Builder

    place, _, name = key.rpartition(".")
    if not place:
        return [HINTS[name]] if name in HINTS else []
    names = [targets[place]] if place in targets else _possible_targets(place)
    if place == "llm":
        names = [*names, "llmrl.llms.client.connect"]
    signatures = [signature_of(Builder().locate(target, place)) for target in dict.fromkeys(names)]
    return [signature.hints[name] for signature in signatures if name in signature.hints]


def _possible_targets(place: str) -> Iterable[str]:
    """Yield the classes of the shipped options at a place; a section of a loop has one class without `_target_`."""
    from llmrl.config.loop_sections import SETTINGS, section

    yield from (target for kind, target in SETTINGS.items() if section(kind) == place)
    group, *path = place.split(".")
    commands = [content(root() / f"{name}.yaml") for name in ("_run", "train", "finetune")]
    for node in (*(command.get(group) for command in commands), *options(group).values()):
        for part in path:
            node = node.get(part) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and node.get("_target_"):
            yield node["_target_"]


def hint_schemas(hint: Any) -> list[dict[str, Any]]:
    """Return the JSON schemas of the alternatives of a type hint; empty for a hint that accepts anything.

    The schema of a part, or of another class that no schema can describe, is `PART`.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

    if hint is Any:
        return []
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        alternatives = [hint_schemas(alternative) for alternative in typing.get_args(hint)]
        return [schema for schemas in alternatives for schema in schemas] if all(alternatives) else []
    if inspect.isclass(hint) and hint.__module__.startswith("llmrl"):
        # A class with its own validator (`objective: sum`) may accept anything.
        return [] if hasattr(hint, "__get_pydantic_core_schema__") else [PART]
    try:
        schema = TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError):
        return [PART]
    if "$defs" in schema:  # of values of llmrl's classes only the outer type is given
        return [{"type": schema["type"]}] if "type" in schema else []
    alternatives = schema.get("anyOf", [schema])
    return alternatives if all(alternatives) else []


def _schema_text(schema: Mapping[str, Any]) -> str:
    """Return the text of the JSON schema of one type."""
    if "const" in schema or "enum" in schema:
        return " | ".join(str(element) for element in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        items = schema.get("items", {})
        inner = " | ".join(filter(None, (_schema_text(element) for element in items.get("anyOf", [items]))))
        return f"list of {inner}" if inner else "list"
    limits = " and ".join(f"{sign} {schema[name]:g}" for name, sign in _LIMITS.items() if name in schema)
    return " ".join(filter(None, [schema.get("type", ""), limits]))
