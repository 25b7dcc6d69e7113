"""The JSON schema of option files and experiments, for editors.

Keys, types and ranges come from the signatures of the targets, meanings from the comments.

The files are built on first use and written to `conf/schema/`, which is not under version control. `python -m
llmrl.config.option_schema` builds them anew and prints the line that makes an editor check a file by them.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.run_options import HINTS
from llmrl.core.atomic_files import atomic_write
from llmrl.core.option_files import chain, choosable, content, merge, names, option, root, subgroups
from llmrl.core.option_tables import TABLES
from llmrl.core.services import SERVICES
from llmrl.run.provenance import code_digest

Schema = dict[str, Any]

FOLDER = "schema"
_SOURCES = "$comment"
"""Key of the schema for the digest of the files that it was built from."""
FILE = "train.schema.json"
_OPEN = {"anyOf": [{"type": "string", "pattern": r"^\?\?\?$|\$\{"}]}
"""Schema of texts that may replace any value: `???` (missing), or a reference to another value."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NO_OPTIONS = ("experiment", "regime", "treatment", "hydra", "suite", FOLDER)


def groups() -> list[str]:
    """Return the groups whose options are parts of a run, in order."""
    group_names = (entry.name for entry in root().iterdir() if entry.is_dir() and choosable(entry.name))
    return sorted(name for name in group_names if name not in (*_NO_OPTIONS, "__pycache__"))


def generated() -> dict[str, str]:
    """Return the contents of the files of `conf/schema` by name."""
    files = {FILE: {_SOURCES: _sources_digest(), **build()}}
    for group in groups():
        place = f"{FILE}#/$defs/{group}"
        files[f"{group}.schema.json"] = {
            "$schema": _DIALECT,
            "title": f"An option of {group}=",
            # Options of several groups at once (`# @package _global_`) are checked as experiments are.
            "anyOf": [{"$ref": place}, {"$ref": FILE}],
        }
    files["regime.schema.json"] = {"$schema": _DIALECT, "title": "An option of regime=", "$ref": FILE}
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in files.items()}


def build() -> Schema:
    """Return the schema of `conf/train.yaml` and `conf/finetune.yaml`, with a definition of each group."""
    from llmrl.config.loop_sections import SETTINGS, section

    parts: dict[str, Schema] = {}
    sections: dict[str, list[str]] = {}
    for kind, target in SETTINGS.items():
        sections.setdefault(section(kind), []).append(target)
    meanings = _meanings([(root() / f"{name}.yaml", ()) for name in ("_run", "train", "finetune")])
    base: dict[str, Any] = {}
    for name in ("_run", "train", "finetune"):
        merge(base, {key: value for key, value in content(root() / f"{name}.yaml").items() if key != "defaults"})
    properties: Schema = {"defaults": {"type": "array"}, "hydra": {"type": "object"}}
    # The rows of a table have the keys of an experiment.
    properties |= {table: {"type": "object", "additionalProperties": {"$ref": "#"}} for table in TABLES}
    for key, value in base.items():
        if key in ("hydra", "llm"):
            continue
        if isinstance(value, Mapping) and value:
            targets = sections.get(key) or [value["_target_"]]
            properties[key] = _node([value], targets, meanings, f"{key}.", parts)
        else:
            properties[key] = _add_description(_type(HINTS[key]), meanings.get(key))
    for group in groups():
        nodes = [option(group, name) for name in names(group)]
        places = [(place, name) for place in (group, *subgroups(group)) for name in names(place)]
        group_meanings = meanings | _meanings([file for place, name in places for file in chain(place, name)])
        if group == "llm":
            nodes.append(base["llm"])
        policies = ["llmrl.llms.client.connect"] if group == "llm" else []
        parts[group] = _node(nodes, policies, group_meanings, f"{group}.", parts)
        properties[group] = {"$ref": f"#/$defs/{group}"}
    return {
        "$schema": _DIALECT,
        "title": "An experiment of llmrl: what llmrl-train and llmrl-finetune compose",
        "type": "object",
        "properties": dict(sorted(properties.items())),
        "additionalProperties": False,
        "$defs": dict(sorted(parts.items())),
    }


def _meanings(files: Iterable[tuple[Path, tuple[str, ...]]]) -> dict[str, str]:
    from llmrl.config.option_docs import document_keys

    return {key: document.meaning for key, document in document_keys(list(files)).items() if document.meaning}


def _node(
    nodes: Sequence[Mapping[str, Any]],
    always: Sequence[str],
    meanings: Mapping[str, str],
    prefix: str,
    parts: dict[str, Schema],
) -> Schema:
    """Return the schema of a node.

    With a known `_target_`, the node has the arguments of that target only. Without one, as in experiments that change
    an option, it has those of any target that may be there. With an unknown one, everything is valid.

    Args:
        nodes: nodes of the shipped options at this place.
        always: targets whose arguments the node has in addition.
        meanings: meanings of keys, by dotted key.
        prefix: dotted key of the node, with a dot at the end.
        parts: definitions of groups, by name.
    """
    targets = sorted({str(node["_target_"]) for node in nodes if node.get("_target_")})
    hints = {target: _hints(target) for target in dict.fromkeys([*targets, *always])}
    properties: Schema = {"_target_": {"type": ["string", "null"]}, "defaults": {"type": "array"}}
    for key in dict.fromkeys(key for node in nodes for key in node if key != "_target_"):
        values = [(node.get("_target_"), node[key]) for node in nodes if key in node]
        group = f"{prefix}{key}".replace(".", "/")  # whose options the key selects, if there is such a group
        if group.count("/") == 1 and (root() / group).is_dir():
            values += [(None, option(group, name)) for name in names(group)]
        child_nodes = [
            value for _, value in values if isinstance(value, Mapping) and ("_target_" in value or _plain_node(value))
        ]
        schemas = [_type(hints[target][key]) for target in hints if key in hints[target]]
        if child_nodes:
            arms = [arm for schema in schemas for arm in schema.get("anyOf", [schema]) if arm != _PART]
            schemas = [*arms, _node(child_nodes, [], meanings, f"{prefix}{key}.", parts)]
        properties[key] = _add_description(_any(schemas), meanings.get(prefix + key))
    for target in targets:  # parts inside that an option chooses (`/agent@student: llm_ppo`)
        for key in hints[target]:
            if key not in properties and key not in SERVICES:
                properties[key] = _add_description(_type(hints[target][key]), meanings.get(prefix + key))
    rules = []
    for target in targets:
        keys = [key for key in properties if key in hints[target] or any(key in hints[name] for name in always)]
        keys += [key for node in nodes if node.get("_target_") == target for key in node]
        allowed = dict.fromkeys(("_target_", "defaults", *keys), True)
        target_schemas = {key: _type(hints[target][key]) for key in keys if key in hints[target]}
        narrowed = {
            key: _add_description(schema, None)
            for key, schema in target_schemas.items()
            if _PART not in schema.get("anyOf", [schema])
        }
        rules.append(
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": {
                    "properties": allowed
                    | {k: v for k, v in narrowed.items() if v.get("anyOf") != properties[k].get("anyOf")},
                    "additionalProperties": False,
                },
            }
        )
    unknown = {"properties": {"_target_": {"type": "string", "not": {"enum": targets}}}, "required": ["_target_"]}
    closed = {"properties": properties, "additionalProperties": False, "allOf": rules}
    return {"type": ["object", "null"], "if": unknown, "else": closed}


def _plain_node(value: Mapping[str, Any]) -> bool:
    """Return whether a mapping changes fields of a part (`limits: {concurrency: 4}`) instead of being a value."""
    return any(isinstance(field_value, Mapping) and "_target_" in field_value for field_value in value.values())


_PART: Schema = {"type": "object"}


def _hints(target: str) -> dict[str, Any]:
    """Return the type hints of the arguments of a target."""
    from llmrl.config.builder import Builder
    from llmrl.core.arguments import signature_of

    signature = signature_of(Builder().locate(target, ""))
    return {name: signature.hints.get(name, Any) for name in signature.parameters}


def _type(hint: Any) -> Schema:
    """Return the schema of a type hint; any object for hints that no schema can describe (a part, a class of llmrl)."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

    if hint is Any:
        return {}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _any([_type(arm) for arm in typing.get_args(hint)])
    if inspect.isclass(hint) and hint.__module__.startswith("llmrl"):
        # A class with its own validator (`objective: sum`) may accept anything.
        return {} if hasattr(hint, "__get_pydantic_core_schema__") else _PART
    try:
        schema: Schema = TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError):
        return _PART
    # For records of llmrl only the outer type is given, without their fields.
    return schema if "$defs" not in schema else {key: schema[key] for key in ("type",) if key in schema}


def _any(schemas: Sequence[Schema]) -> Schema:
    """Return a schema that is valid if one of the schemas is; without schemas, everything is valid."""
    arms: list[Schema] = []
    for schema in schemas:
        arms += [arm for arm in schema.get("anyOf", [schema]) if arm not in arms]
    if not arms or {} in arms:
        return {}
    return arms[0] if len(arms) == 1 else {"anyOf": arms}


def _add_description(schema: Schema, meaning: str | None) -> Schema:
    """Return a schema with a description, in which `_OPEN` is also valid."""
    open_schema = schema if not schema else {"anyOf": [*schema.get("anyOf", [schema]), *_OPEN["anyOf"]]}
    return open_schema | ({"description": meaning} if meaning else {})


def arguments(schema: Schema) -> dict[str, Schema]:
    """Return the keys of every `_target_` that a schema knows, each with its schema."""
    argument_schemas: dict[str, Schema] = {}
    for node in _nodes(schema):
        for rule in node.get("allOf", []):
            rule_properties = rule["then"]["properties"]
            target = rule["if"]["properties"]["_target_"]["const"]
            argument_schemas[target] = {
                key: node["properties"][key] if property_schema is True else property_schema
                for key, property_schema in rule_properties.items()
            }
    return argument_schemas


def _nodes(value: Any) -> Iterable[Schema]:
    if isinstance(value, dict):
        yield value
        for child in value.values():
            yield from _nodes(child)
    elif isinstance(value, list):
        for child in value:
            yield from _nodes(child)


def kind_of(key: str, schema: Mapping[str, Any], arguments: Mapping[str, Any], targets: Mapping[str, str]) -> str:
    """Return type and range of a key by the shipped schema, e.g. `integer >= 1 | null`; empty if unknown.

    Args:
        key: dotted key.
        schema: shipped schema.
        arguments: schemas of the arguments of every known `_target_`.
        targets: `_target_` of each place that has one.
    """
    place, _, name = key.rpartition(".")
    node = arguments.get(targets.get(place, ""), {}).get(name) or _find_schema(key, schema)
    return " | ".join(dict.fromkeys(word for arm in node.get("anyOf", [node]) if (word := _word(arm))))


def _find_schema(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a key by its place in the config, whatever the target; empty if there is none."""
    node: Mapping[str, Any] = schema
    for part in key.split("."):
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        arms = [node, *node.get("anyOf", [])]
        node = next(
            (
                arm.get("else", arm)["properties"][part]
                for arm in arms
                if part in arm.get("else", arm).get("properties", {})
            ),
            {},
        )
    return node


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _word(arm: Mapping[str, Any]) -> str:
    if "pattern" in arm:  # a reference to another value
        return ""
    if "const" in arm or "enum" in arm:
        return " | ".join(str(element) for element in arm.get("enum", [arm.get("const")]))
    kind = arm.get("type", "")
    if kind == "array":
        items = arm.get("items", {})
        inner = " | ".join(filter(None, (_word(element) for element in items.get("anyOf", [items])))) if items else ""
        return f"list of {inner}" if inner else "list"
    limits = " and ".join(f"{sign} {arm[name]:g}" for name, sign in _LIMITS.items() if name in arm)
    return " ".join(filter(None, [str(kind) if isinstance(kind, str) else "part", limits]))


def load() -> Schema:
    """Return the schema of `conf/train.yaml` and `conf/finetune.yaml` and all groups.

    It is built, which takes several seconds, if `conf/schema/` does not hold it or if an option file or a module has
    changed since, as after an upgrade. It is written there if the folder is writable.
    """
    path = root() / FOLDER / FILE
    if path.is_file():
        schema: Schema = json.loads(path.read_text(encoding="utf-8"))
        if schema.get(_SOURCES) == _sources_digest():
            return schema
    files = generated()
    with contextlib.suppress(PermissionError):
        _write(files)
    return typing.cast("Schema", json.loads(files[FILE]))


def _sources_digest() -> str:
    """Return a digest of all option files and of the code of the package."""
    digest = hashlib.sha256(code_digest().encode())
    for file in sorted(root().rglob("*.yaml")):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def _write(files: Mapping[str, str]) -> None:
    (root() / FOLDER).mkdir(exist_ok=True)
    for name, text in files.items():
        with atomic_write(root() / FOLDER / name) as file:
            file.write(text.encode())


def main() -> None:
    """Build the schema, and print the first line of a file for editors.

    The file is an experiment, or an option of the group that the first argument names.
    """
    group = sys.argv[1] if len(sys.argv) > 1 else "train"
    _write(generated())
    sys.stdout.write(f"# yaml-language-server: $schema={root() / FOLDER / f'{group}.schema.json'}\n")


if __name__ == "__main__":
    main()
