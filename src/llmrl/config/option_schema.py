"""The JSON schema of option files and experiments, for editors: keys, types and ranges from the signatures of what
`_target_` names, meanings from the comments.

`scripts/options.py` writes it to `conf/schema/`. `python -m llmrl.config.option_schema` prints the line that makes an
editor check a file by it.
"""

from __future__ import annotations

import inspect
import json
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.builder import INJECTED
from llmrl.config.run_options import HINTS
from llmrl.core.option_files import chain, choosable, content, merge, names, option, root

Schema = dict[str, Any]

FOLDER = "schema"
FILE = "train.schema.json"
_OPEN = {"anyOf": [{"type": "string", "pattern": r"^\?\?\?$|\$\{"}]}
"""What may stand in place of any value: nothing yet, or a reference to another one."""
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_NO_OPTIONS = ("experiment", "treatment", "hydra", "suite", FOLDER)


def groups() -> list[str]:
    """Return the groups whose options are parts of a run, in order."""
    found = (entry.name for entry in root().iterdir() if entry.is_dir() and choosable(entry.name))
    return sorted(name for name in found if name not in (*_NO_OPTIONS, "__pycache__"))


def generated() -> dict[str, str]:
    """Return the files of `conf/schema` by name."""
    whole = _whole()
    files = {FILE: whole}
    for group in groups():
        place = f"{FILE}#/$defs/{group}"
        files[f"{group}.schema.json"] = {
            "$schema": _DIALECT,
            "title": f"An option of {group}=",
            # Options of several groups at once (`# @package _global_`) are checked as experiments are.
            "anyOf": [{"$ref": place}, {"$ref": FILE}],
        }
    return {name: json.dumps(content, indent=1, ensure_ascii=False) + "\n" for name, content in files.items()}


def _whole() -> Schema:
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
    for key, value in base.items():
        if key in ("hydra", "llm"):
            continue
        if isinstance(value, Mapping) and value:
            targets = sections.get(key) or [value["_target_"]]
            properties[key] = _node([value], targets, meanings, f"{key}.", parts)
        else:
            properties[key] = _described(_type(HINTS[key]), meanings.get(key))
    for group in groups():
        nodes = [option(group, name) for name in names(group)]
        said = meanings | _meanings([file for name in names(group) for file in chain(group, name)])
        if group == "llm":
            nodes.append(base["llm"])
        if group == "transfer":
            parts[group] = {"type": "object"}
        else:
            policies = ["llmrl.llms.client.connect"] if group == "llm" else []
            parts[group] = _node(nodes, policies, said, f"{group}.", parts)
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
    from llmrl.config.option_docs import documented

    return {key: each.meaning for key, each in documented(list(files)).items() if each.meaning}


def _node(
    nodes: Sequence[Mapping[str, Any]],
    always: Sequence[str],
    said: Mapping[str, str],
    where: str,
    parts: dict[str, Schema],
) -> Schema:
    """The schema of a node of which `nodes` are what shipped options hold there; `always` are targets whose arguments
    it has, too.

    With a `_target_` that is known, it has the arguments of that alone; with none, as in experiments that change an
    option, those of any that may stand there; with another one, whatever is written.
    """
    targets = sorted({str(node["_target_"]) for node in nodes if node.get("_target_")})
    hints = {target: _hints(target) for target in dict.fromkeys([*targets, *always])}
    properties: Schema = {"_target_": {"type": ["string", "null"]}, "defaults": {"type": "array"}}
    for key in dict.fromkeys(key for node in nodes for key in node if key != "_target_"):
        values = [(node.get("_target_"), node[key]) for node in nodes if key in node]
        inside = [
            value for _, value in values if isinstance(value, Mapping) and ("_target_" in value or _plain_node(value))
        ]
        found = [_type(hints[target][key]) for target in hints if key in hints[target]]
        if inside:
            arms = [arm for each in found for arm in each.get("anyOf", [each]) if arm != _PART]
            found = [*arms, _node(inside, [], said, f"{where}{key}.", parts)]
        properties[key] = _described(_any(found), said.get(where + key))
    for target in targets:  # parts inside that an option chooses (`/agent@student: llm_ppo`)
        for key in hints[target]:
            if key not in properties and key not in INJECTED:
                properties[key] = _described(_type(hints[target][key]), said.get(where + key))
    rules = []
    for target in targets:
        own = [key for key in properties if key in hints[target] or any(key in hints[each] for each in always)]
        own += [key for node in nodes if node.get("_target_") == target for key in node]
        allowed = dict.fromkeys(("_target_", "defaults", *own), True)
        taken = {key: _type(hints[target][key]) for key in own if key in hints[target]}
        narrowed = {
            key: _described(each, None) for key, each in taken.items() if _PART not in each.get("anyOf", [each])
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
    """Whether a mapping changes some fields of a part (`limits: {concurrency: 4}`), and is no value itself."""
    return any(isinstance(each, Mapping) and "_target_" in each for each in value.values())


_PART: Schema = {"type": "object"}


def _hints(target: str) -> dict[str, Any]:
    """The type hints of what can be set of a target."""
    from llmrl.config.builder import Builder
    from llmrl.core.arguments import type_hints_of

    located = Builder().locate(target, "")
    parameters, hints = inspect.signature(located).parameters, type_hints_of(located)
    return {name: hints.get(name, Any) for name in parameters}


def _type(hint: Any) -> Schema:
    """The schema of a type hint; what no schema can say (a part, a class of ours) is any object."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

    if hint is Any:
        return {}
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _any([_type(arm) for arm in typing.get_args(hint)])
    if inspect.isclass(hint) and hint.__module__.startswith("llmrl"):
        # What reads its own form (`objective: sum`) may be anything.
        return {} if hasattr(hint, "__get_pydantic_core_schema__") else _PART
    try:
        schema: Schema = TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError):
        return _PART
    # Of fields of our own records only the outer form is said.
    return schema if "$defs" not in schema else {key: schema[key] for key in ("type",) if key in schema}


def _any(schemas: Sequence[Schema]) -> Schema:
    """What fits one of the schemas; no schema at all is anything."""
    arms: list[Schema] = []
    for each in schemas:
        arms += [arm for arm in each.get("anyOf", [each]) if arm not in arms]
    if not arms or {} in arms:
        return {}
    return arms[0] if len(arms) == 1 else {"anyOf": arms}


def _described(schema: Schema, meaning: str | None) -> Schema:
    """A value's schema with what it means; a reference to another value may stand in place of any."""
    opened = schema if not schema else {"anyOf": [*schema.get("anyOf", [schema]), *_OPEN["anyOf"]]}
    return opened | ({"description": meaning} if meaning else {})


def arguments(schema: Schema) -> dict[str, Schema]:
    """Return the keys of every `_target_` that a schema knows, each with its schema."""
    found: dict[str, Schema] = {}
    for node in _nodes(schema):
        for rule in node.get("allOf", []):
            own = rule["then"]["properties"]
            target = rule["if"]["properties"]["_target_"]["const"]
            found[target] = {key: node["properties"][key] if each is True else each for key, each in own.items()}
    return found


def _nodes(value: Any) -> Iterable[Schema]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from _nodes(each)
    elif isinstance(value, list):
        for each in value:
            yield from _nodes(each)


def kind_of(key: str, schema: Mapping[str, Any], arguments: Mapping[str, Any], targets: Mapping[str, str]) -> str:
    """Return type and range of a key by the shipped schema, e.g. `integer >= 1 | null`; empty where it says nothing.

    Args:
        key: with dots.
        schema: the shipped one.
        arguments: of every `_target_` that it knows.
        targets: the `_target_` of each place that has one.
    """
    place, _, name = key.rpartition(".")
    node = arguments.get(targets.get(place, ""), {}).get(name) or _by_place(key, schema)
    return " | ".join(dict.fromkeys(word for arm in node.get("anyOf", [node]) if (word := _word(arm))))


def _by_place(key: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a schema says of a key by its place alone."""
    node: Mapping[str, Any] = schema
    for part in key.split("."):
        if "$ref" in node:
            node = schema["$defs"][node["$ref"].rpartition("/")[2]]
        arms = [node, *node.get("anyOf", [])]
        node = next(
            (a.get("else", a)["properties"][part] for a in arms if part in a.get("else", a).get("properties", {})), {}
        )
    return node


_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}


def _word(arm: Mapping[str, Any]) -> str:
    if "pattern" in arm:  # a reference to another value
        return ""
    if "const" in arm or "enum" in arm:
        return " | ".join(str(each) for each in arm.get("enum", [arm.get("const")]))
    kind = arm.get("type", "")
    if kind == "array":
        items = arm.get("items", {})
        inner = " | ".join(filter(None, (_word(each) for each in items.get("anyOf", [items])))) if items else ""
        return f"list of {inner}" if inner else "list"
    limits = " and ".join(f"{sign} {arm[name]:g}" for name, sign in _LIMITS.items() if name in arm)
    return " ".join(filter(None, [str(kind) if isinstance(kind, str) else "part", limits]))


def shipped() -> Schema:
    """Return the schema that is shipped."""
    schema: Schema = json.loads((root() / FOLDER / FILE).read_text(encoding="utf-8"))
    return schema


def main() -> None:
    """Print the first line of a file that an editor is to check: an experiment, or an option of the group named."""
    group = sys.argv[1] if len(sys.argv) > 1 else "train"
    sys.stdout.write(f"# yaml-language-server: $schema={root() / FOLDER / f'{group}.schema.json'}\n")


if __name__ == "__main__":
    main()
