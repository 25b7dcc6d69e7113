"""JSON schemas of option files and experiments, with which editors check them.

Keys come from shipped option files and the signatures of the classes that they name, types and ranges from these
signatures, and descriptions from comments in the files. `python -m llmrl.config.option_schema` writes the schemas to
`conf/schema/`, which is not under version control, and prints the comment with which a file refers to its schema.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.option_docs import PART_SCHEMA, build_hint_schemas, read_documented_keys
from llmrl.config.run_options import TYPE_HINTS
from llmrl.core.arguments import get_signature
from llmrl.core.hydra_composition import TABLE_GROUPS
from llmrl.core.option_files import (
    SCHEMA_FOLDER,
    get_root,
    list_files,
    list_option_names,
    list_part_groups,
    list_subgroups,
    load_option,
    override_fields,
    read_file,
)
from llmrl.core.services import SERVICE_NAMES

Schema = dict[str, Any]

TRAIN_SCHEMA_FILE = "train.schema.json"
_PLACEHOLDER_SCHEMA = {"type": "string", "pattern": r"^\?\?\?$|\$\{"}
"""Schema of texts that may replace any value: `???` (missing), or an interpolation `${...}`."""
_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def build_schema_files() -> dict[str, Schema]:
    """Return the schemas by file name in `conf/schema/`."""
    files = {TRAIN_SCHEMA_FILE: build_experiment_schema()}
    for group in list_part_groups():
        files[f"{group}.schema.json"] = {
            "$schema": _SCHEMA_DIALECT,
            "title": f"An option of {group}=",
            # An option that sets keys of several groups (`# @package _global_`) has the schema of an experiment.
            "anyOf": [{"$ref": f"{TRAIN_SCHEMA_FILE}#/$defs/{group}"}, {"$ref": TRAIN_SCHEMA_FILE}],
        }
    files["regime.schema.json"] = {
        "$schema": _SCHEMA_DIALECT,
        "title": "An option of regime=",
        "$ref": TRAIN_SCHEMA_FILE,
    }
    return files


def build_experiment_schema() -> Schema:
    """Return the schema of `conf/train.yaml` and `conf/finetune.yaml`, with a definition of each group."""
    from llmrl.config.loop_sections import LOOP_SETTINGS, get_section

    primary_files = [get_root() / f"{name}.yaml" for name in ("_run", "train", "finetune")]
    meanings = _read_meanings((path, ()) for path in primary_files)
    values: dict[str, Any] = {}
    for path in primary_files:
        override_fields(
            values, {key: value for key, value in read_file(path).items() if key not in ("defaults", "hydra")}
        )
    properties: Schema = {"defaults": {"type": "array"}, "hydra": PART_SCHEMA}
    # The options in a table, such as `per_env`, may have all keys of an experiment.
    properties |= {table: {"type": "object", "additionalProperties": {"$ref": "#"}} for table in TABLE_GROUPS}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            loop_targets = [target for loop_kind, target in LOOP_SETTINGS.items() if get_section(loop_kind) == key]
            properties[key] = _build_node_schema([value], loop_targets, meanings, f"{key}.")
        else:
            properties[key] = _combine_schemas(build_hint_schemas(TYPE_HINTS[key]), meanings.get(key))
    groups: dict[str, Schema] = {}
    for group in list_part_groups():
        options = [(path, name) for path in (group, *list_subgroups(group)) for name in list_option_names(path)]
        group_meanings = meanings | _read_meanings(file for path, name in options for file in list_files(path, name))
        nodes = [load_option(group, name) for name in list_option_names(group)]
        if group == "llm":
            groups[group] = _build_node_schema(
                [*nodes, values["llm"]], ["llmrl.llms.client.build_client"], group_meanings, f"{group}."
            )
        else:
            groups[group] = (
                PART_SCHEMA if group == "transfer" else _build_node_schema(nodes, [], group_meanings, f"{group}.")
            )
        properties[group] = {"$ref": f"#/$defs/{group}"}
    return {
        "$schema": _SCHEMA_DIALECT,
        "title": "An experiment of llmrl: what llmrl-train and llmrl-finetune compose",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "$defs": groups,
    }


def _read_meanings(files: Iterable[tuple[Path, tuple[str, ...]]]) -> dict[str, str]:
    """Return the meanings of documented keys by dotted key; `files` as in `read_documented_keys`."""
    return {key: entry.meaning for key, entry in read_documented_keys(list(files)).items() if entry.meaning}


def _build_node_schema(
    nodes: Sequence[Mapping[str, Any]], additional_targets: Sequence[str], meanings: Mapping[str, str], prefix: str
) -> Schema:
    """Return the schema of a node.

    With a known `_target_`, a node has the arguments of this class and of `additional_targets`, and the keys of shipped
    nodes with this `_target_`. Without a `_target_`, as in experiments that change an option, it has the keys of all
    possible classes and nodes. With an unknown `_target_`, all keys are valid.

    Args:
        nodes: nodes of shipped options at this key.
        additional_targets: dotted names of classes and functions whose arguments the node has in addition.
        meanings: meanings of keys, by dotted key.
        prefix: dotted key of the node, with a dot at the end.
    """
    targets = sorted({str(node["_target_"]) for node in nodes if node.get("_target_")})
    hints = {target: _get_option_type_hints(target) for target in (*targets, *additional_targets)}
    common_properties: Schema = {"_target_": {"type": ["string", "null"]}, "defaults": {"type": "array"}}
    properties = dict(common_properties)
    for key in dict.fromkeys(
        [*(key for node in nodes for key in node), *(key for class_hints in hints.values() for key in class_hints)]
    ):
        if key in common_properties:
            continue
        schemas_by_class = [build_hint_schemas(hint[key]) for hint in hints.values() if key in hint]
        # A class without schemas for an argument accepts any value.
        accepts_any_value = not all(schemas_by_class)
        alternatives = [] if accepts_any_value else [schema for schemas in schemas_by_class for schema in schemas]
        if children := _find_child_nodes(nodes, prefix, key):
            child_schema = _build_node_schema(children, [], meanings, f"{prefix}{key}.")
            alternatives = [*(schema for schema in alternatives if schema != PART_SCHEMA), child_schema]
        properties[key] = _combine_schemas(alternatives, meanings.get(prefix + key))
    rules = []
    for target in targets:
        keys = {key for name in (target, *additional_targets) for key in hints[name]}
        keys.update(key for node in nodes if node.get("_target_") == target for key in node)
        # An argument that may be a part, with its own `_target_`, has no further restriction than that in `properties`.
        alternatives_by_key = {key: build_hint_schemas(hint) for key, hint in hints[target].items()}
        schema_by_key = {key: _combine_schemas(x) for key, x in alternatives_by_key.items() if PART_SCHEMA not in x}
        allowed_properties = {key: schema_by_key.get(key, True) for key in sorted(keys | common_properties.keys())}
        rules.append(
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": {"properties": allowed_properties, "additionalProperties": False},
            }
        )
    unknown_target_schema = {"type": "string", **({"not": {"enum": targets}} if targets else {})}
    has_unknown_target = {"properties": {"_target_": unknown_target_schema}, "required": ["_target_"]}
    known_schema = {"properties": properties, "additionalProperties": False, "allOf": rules}
    return {"type": ["object", "null"], "if": has_unknown_target, "else": known_schema}


def _get_option_type_hints(target: str) -> dict[str, Any]:
    """Return the type hints of the arguments of a class by argument, without services (`SERVICE_NAMES`)."""
    from llmrl.config.builder import Builder

    signature = get_signature(Builder().locate(target, ""))
    return {name: signature.hints.get(name, Any) for name in signature.parameters if name not in SERVICE_NAMES}


def _find_child_nodes(nodes: Sequence[Mapping[str, Any]], prefix: str, key: str) -> list[Mapping[str, Any]]:
    """Return the nodes at `key` in shipped options, or of its own group, that have a `_target_` or a child with one."""
    values = [node[key] for node in nodes if key in node]
    group = f"{prefix}{key}".replace(".", "/")  # there may be a group for this key, e.g. `hardware/backend`
    if group.count("/") == 1 and (get_root() / group).is_dir():
        values += [load_option(group, name) for name in list_option_names(group)]
    return [
        value
        for value in values
        if isinstance(value, Mapping)
        and any("_target_" in node for node in (value, *value.values()) if isinstance(node, Mapping))
    ]


def _combine_schemas(alternatives: Sequence[Mapping[str, Any]], meaning: str | None = None) -> Schema:
    """Return a schema that accepts what an alternative or `_PLACEHOLDER_SCHEMA` accepts; anything if there is none."""
    unique_schemas = [schema for i, schema in enumerate(alternatives) if schema not in alternatives[:i]]
    description = {"description": meaning} if meaning else {}
    return {"anyOf": [*unique_schemas, _PLACEHOLDER_SCHEMA], **description} if unique_schemas else description


def main() -> None:
    """Write the schemas, and print the comment for an experiment, or for an option of the group named by `argv[1]`.

    Exits with an error if this group has no schema.
    """
    schema_name = sys.argv[1] if len(sys.argv) > 1 else "train"
    schemas = build_schema_files()
    if f"{schema_name}.schema.json" not in schemas:
        accepted_names = ", ".join(sorted(name.removesuffix(".schema.json") for name in schemas))
        sys.exit(f"group={schema_name}: it has no schema; accepted: {accepted_names}")
    folder = get_root() / SCHEMA_FOLDER
    folder.mkdir(exist_ok=True)
    for name, schema in schemas.items():
        (folder / name).write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"# yaml-language-server: $schema={folder / f'{schema_name}.schema.json'}\n")


if __name__ == "__main__":
    main()
