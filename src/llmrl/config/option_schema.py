"""The JSON schema of option files and experiments, for editors.

Keys, types and ranges come from the signatures of the classes that options name, meanings from the comments.

`python -m llmrl.config.option_schema` writes the schema into `conf/schema/`, which is not under version control, and
prints the line that makes an editor check a file by it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.option_docs import PART_SCHEMA, document_keys, type_hint_schemas
from llmrl.config.run_options import TYPE_HINTS
from llmrl.core.arguments import get_signature
from llmrl.core.hydra_composition import TABLES
from llmrl.core.option_files import (
    SCHEMA_FOLDER,
    list_files,
    list_option_names,
    list_part_groups,
    list_subgroups,
    load_option,
    override_fields,
    read_file,
    root,
)
from llmrl.core.services import SERVICE_NAMES

Schema = dict[str, Any]

TRAIN_SCHEMA = "train.schema.json"
_PLACEHOLDER_SCHEMA = {"type": "string", "pattern": r"^\?\?\?$|\$\{"}
"""Schema of texts that may replace any value: `???` (missing), or a reference to another value."""
_SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_files() -> dict[str, Schema]:
    """Return the schemas by the name of their file in `conf/schema/`."""
    files = {TRAIN_SCHEMA: build_schema()}
    for group in list_part_groups():
        files[f"{group}.schema.json"] = {
            "$schema": _SCHEMA_DIALECT,
            "title": f"An option of {group}=",
            # Options of several groups at once (`# @package _global_`) are checked as experiments are.
            "anyOf": [{"$ref": f"{TRAIN_SCHEMA}#/$defs/{group}"}, {"$ref": TRAIN_SCHEMA}],
        }
    files["regime.schema.json"] = {
        "$schema": _SCHEMA_DIALECT,
        "title": "An option of regime=",
        "$ref": TRAIN_SCHEMA,
    }
    return files


def build_schema() -> Schema:
    """Return the schema of `conf/train.yaml` and `conf/finetune.yaml`, with a definition of each group."""
    from llmrl.config.loop_sections import LOOP_SETTINGS, config_section

    command_files = [root() / f"{name}.yaml" for name in ("_run", "train", "finetune")]
    meanings = _read_meanings((path, ()) for path in command_files)
    values: dict[str, Any] = {}
    for path in command_files:
        override_fields(values, {k: x for k, x in read_file(path).items() if k not in ("defaults", "hydra")})
    properties: Schema = {"defaults": {"type": "array"}, "hydra": PART_SCHEMA}
    # The rows of a table have the keys of an experiment.
    properties |= {table: {"type": "object", "additionalProperties": {"$ref": "#"}} for table in TABLES}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            targets = [target for kind, target in LOOP_SETTINGS.items() if config_section(kind) == key]
            properties[key] = _node_schema([value], targets, meanings, f"{key}.")
        else:
            properties[key] = _any_schema_of(type_hint_schemas(TYPE_HINTS[key]), meanings.get(key))
    groups: dict[str, Schema] = {}
    for group in list_part_groups():
        options = [(place, name) for place in (group, *list_subgroups(group)) for name in list_option_names(place)]
        group_meanings = meanings | _read_meanings(file for place, name in options for file in list_files(place, name))
        nodes = [load_option(group, name) for name in list_option_names(group)]
        if group == "llm":
            groups[group] = _node_schema(
                [*nodes, values["llm"]], ["llmrl.llms.client.build_client"], group_meanings, f"{group}."
            )
        else:
            groups[group] = PART_SCHEMA if group == "transfer" else _node_schema(nodes, [], group_meanings, f"{group}.")
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
    return {key: document.meaning for key, document in document_keys(list(files)).items() if document.meaning}


def _node_schema(
    nodes: Sequence[Mapping[str, Any]], additional_targets: Sequence[str], meanings: Mapping[str, str], prefix: str
) -> Schema:
    """Return the schema of a node.

    With a known `_target_`, the node has the arguments of that class only. Without one, as in experiments that change
    an option, it has those of any class that may be there. With an unknown one, everything is valid.

    Args:
        nodes: nodes of the shipped options at this place.
        additional_targets: classes whose arguments the node has in addition.
        meanings: meanings of keys, by dotted key.
        prefix: dotted key of the node, with a dot at the end.
    """
    targets = sorted({str(node["_target_"]) for node in nodes if node.get("_target_")})
    hints = {target: _option_type_hints(target) for target in (*targets, *additional_targets)}
    known_keys: Schema = {"_target_": {"type": ["string", "null"]}, "defaults": {"type": "array"}}
    properties = dict(known_keys)
    for key in dict.fromkeys(
        [*(key for node in nodes for key in node), *(key for class_hints in hints.values() for key in class_hints)]
    ):
        if key in known_keys:
            continue
        schemas = [type_hint_schemas(class_hints[key]) for class_hints in hints.values() if key in class_hints]
        alternatives = [schema for schema_list in schemas for schema in schema_list] if all(schemas) else []
        if children := _child_nodes(nodes, prefix, key):
            child_schema = _node_schema(children, [], meanings, f"{prefix}{key}.")
            alternatives = [*(schema for schema in alternatives if schema != PART_SCHEMA), child_schema]
        properties[key] = _any_schema_of(alternatives, meanings.get(prefix + key))
    rules = []
    for target in targets:
        keys = {key for name in (target, *additional_targets) for key in hints[name]}
        keys.update(key for node in nodes if node.get("_target_") == target for key in node)
        # The type of an argument in this class, or in all classes if it may be a part.
        schemas_by_key = {key: type_hint_schemas(hint) for key, hint in hints[target].items()}
        own_schemas = {key: _any_schema_of(found) for key, found in schemas_by_key.items() if PART_SCHEMA not in found}
        allowed = {key: own_schemas.get(key, True) for key in sorted(keys | known_keys.keys())}
        rules.append(
            {
                "if": {"properties": {"_target_": {"const": target}}, "required": ["_target_"]},
                "then": {"properties": allowed, "additionalProperties": False},
            }
        )
    unknown = {"properties": {"_target_": {"type": "string", "not": {"enum": targets}}}, "required": ["_target_"]}
    known = {"properties": properties, "additionalProperties": False, "allOf": rules}
    return {"type": ["object", "null"], "if": unknown, "else": known}


def _option_type_hints(target: str) -> dict[str, Any]:
    """Return the type hints of the options of a class."""
    from llmrl.config.builder import Builder

    signature = get_signature(Builder().locate(target, ""))
    return {name: signature.hints.get(name, Any) for name in signature.parameters if name not in SERVICE_NAMES}


def _child_nodes(nodes: Sequence[Mapping[str, Any]], prefix: str, key: str) -> list[Mapping[str, Any]]:
    """Return the nodes of the shipped options that may be at a key of a node."""
    values = [node[key] for node in nodes if key in node]
    group = f"{prefix}{key}".replace(".", "/")  # whose options the key selects, if there is such a group
    if group.count("/") == 1 and (root() / group).is_dir():
        values += [load_option(group, name) for name in list_option_names(group)]
    mappings = [value for value in values if isinstance(value, Mapping)]
    # A part, or changes of fields of one, such as `limits: {concurrency: 4}`.
    return [x for x in mappings if any("_target_" in y for y in (x, *x.values()) if isinstance(y, Mapping))]


def _any_schema_of(alternatives: Sequence[Mapping[str, Any]], meaning: str | None = None) -> Schema:
    """Return a schema that accepts what one of several schemas or `_PLACEHOLDER_SCHEMA` does; anything without any."""
    unique = [schema for i, schema in enumerate(alternatives) if schema not in alternatives[:i]]
    description = {"description": meaning} if meaning else {}
    return {"anyOf": [*unique, _PLACEHOLDER_SCHEMA], **description} if unique else description


def main() -> None:
    """Write the schemas, and print the first line of a file for editors.

    The file is an experiment, or an option of the group that the first argument names.
    """
    schema_name = sys.argv[1] if len(sys.argv) > 1 else "train"
    folder = root() / SCHEMA_FOLDER
    folder.mkdir(exist_ok=True)
    for name, schema in schema_files().items():
        (folder / name).write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    sys.stdout.write(f"# yaml-language-server: $schema={folder / f'{schema_name}.schema.json'}\n")


if __name__ == "__main__":
    main()
