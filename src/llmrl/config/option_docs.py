"""Documentation of options: meanings from comments in option files, and types from type hints of classes.

The comment of a key is in the same line, or above it in the same column, and continues in lines below that are indented
further. The comment in the first file with a key is its meaning; comments in later files may give reasons for values.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.config.run_options import TYPE_HINTS
from llmrl.core.arguments import get_signature
from llmrl.core.hydra_composition import read_chosen_options, resolve_table_key
from llmrl.core.option_files import (
    FREE_FORM_KEYS,
    VARIANTS_KEY,
    find_file,
    get_file,
    get_root,
    load_options,
    read_comment,
    read_file,
)
from llmrl.core.trust import NO_FURTHER_TRUST, is_never_trusted

if TYPE_CHECKING:
    import yaml

KeyPath = tuple[str, ...]

_LIMIT_SIGNS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
PART_SCHEMA: dict[str, Any] = {"type": "object"}
"""JSON schema of a part whose fields are not described."""
OVERRIDE_LOCATION = "override"
"""Location of a value that an override sets."""
PACKAGE_LOCATION = "installed package"
"""Location of the options that an installed package adds, which have no file."""


@dataclass(frozen=True)
class OptionFileKey:
    """A key of an option file.

    Attributes:
        key: names of the enclosing keys and of this one.
        line: line number, from 1.
        comment: comment, joined to one line; empty without one.
        is_leaf: whether the key has a value instead of further keys.
    """

    key: KeyPath
    line: int
    comment: str
    is_leaf: bool


@dataclass(frozen=True)
class DocumentedKey:
    """A key of a composed config.

    Attributes:
        key: dotted key.
        value: composed value; None if only files were read.
        meaning: comment of the first file that documents the key; empty without one.
        notes: (comment, `file:line`) of later files.
        meaning_location: `file:line` of the meaning, or `PACKAGE_LOCATION`.
        value_location: `file:line` of the value, `OVERRIDE_LOCATION` or `PACKAGE_LOCATION`.
        is_leaf: whether the key has a value instead of further keys.
    """

    key: str
    value: Any
    meaning: str
    notes: tuple[tuple[str, str], ...]
    meaning_location: str
    value_location: str
    is_leaf: bool


@functools.cache
def read_keys(path: Path) -> tuple[OptionFileKey, ...]:
    """Return the keys of an option file, or of a variant, with their comments, without `defaults`."""
    import yaml

    file = get_file(path)
    text = file.read_text(encoding="utf-8")
    node = yaml.compose(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    if file != path:
        for name in (VARIANTS_KEY, path.stem):
            assert isinstance(node, yaml.MappingNode)
            node = next(value for key, value in node.value if key.value == name)
    if not isinstance(node, yaml.MappingNode):
        return ()
    return tuple(_iterate_keys(node, (), text.splitlines()))


def read_description(path: Path) -> str:
    """Return the comment at the top of an option file in one line: the description of the option."""
    lines = [line for line in read_comment(path) if not line.startswith(("# @", "# yaml-language-server", "#   "))]
    return " ".join(line.lstrip("# ").rstrip() for line in lines)


def _iterate_keys(node: yaml.MappingNode, parent: KeyPath, lines: Sequence[str]) -> Iterable[OptionFileKey]:
    import yaml

    for name, value in node.value:
        key = (*parent, str(name.value))
        if key in (("defaults",), (VARIANTS_KEY,)):
            continue
        has_children = isinstance(value, yaml.MappingNode) and bool(value.value)
        if has_children and value.flow_style:  # a part, or free-form keys, in `{...}` count as one value
            has_children = name.value not in FREE_FORM_KEYS and all(key.value != "_target_" for key, _ in value.value)
        end = name.end_mark if has_children and not value.flow_style else value.end_mark
        comment = _find_comment(lines, name.start_mark.line, name.start_mark.column, end.line, end.column)
        yield OptionFileKey(key, name.start_mark.line + 1, comment, not has_children)
        if has_children:
            yield from _iterate_keys(value, key, lines)


def _find_comment(lines: Sequence[str], first_line: int, column: int, last_line: int, end_column: int) -> str:
    """Return the comment of the key at `column` of `first_line`, whose value ends at `end_column` of `last_line`.

    Line numbers and columns are counted from 0.
    """
    comments: list[str] = []
    if last_line >= len(lines) or (last_line > first_line and end_column == 0):
        last_line, end_column = last_line - 1, len(lines[last_line - 1])
    line_index = first_line - 1
    while line_index >= 0 and lines[line_index].strip().startswith("#") and _get_indent(lines[line_index]) == column:
        comments.insert(0, lines[line_index])
        line_index -= 1
    if line_index < 0:
        comments = []  # a comment at the top describes the file
    line_rest = lines[last_line][end_column:].lstrip(" :")
    if line_rest.startswith("#"):
        comments.append(line_rest)
        for line in lines[last_line + 1 :]:
            if not line.strip().startswith("#") or _get_indent(line) <= column:
                break
            comments.append(line)
    return " ".join(" ".join(text.strip().lstrip("#").split()) for text in comments)


def _get_indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def read_documented_keys(
    files: Sequence[tuple[Path, KeyPath]],
    values: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
) -> dict[str, DocumentedKey]:
    """Return the documentation of the keys of a config by dotted key.

    Args:
        files: option files, each with the path of config keys under which its keys are; later files override earlier
            ones.
        values: composed config; None: the documentation has no values.
        choices: chosen options by group, which select the rows of tables (`llmrl.core.hydra_composition`); None: no
            rows.
    """
    file_keys_by_key: dict[str, list[tuple[OptionFileKey, str]]] = {}
    for path, package in files:
        for file_key in read_keys(path):
            if (relative_key := resolve_table_key(file_key.key, choices or {})) is None:
                continue
            key = ".".join((*package, *relative_key))
            file_keys_by_key.setdefault(key, []).append((file_key, f"{format_option_path(path)}:{file_key.line}"))
    documents = {}
    for key, file_keys in file_keys_by_key.items():
        comments = [(file_key.comment, location) for file_key, location in file_keys if file_key.comment]
        (meaning, location), *notes = comments or [("", file_keys[0][1])]
        value = functools.reduce(
            lambda node, name: node.get(name) if isinstance(node, Mapping) else None, key.split("."), values
        )
        is_leaf = all(file_key.is_leaf for file_key, _ in file_keys)
        documents[key] = DocumentedKey(key, value, meaning, tuple(notes), location, file_keys[-1][1], is_leaf)
    return documents


@functools.cache
def format_option_path(path: Path) -> str:
    """Return the path of an option file as text, for shipped files relative to the parent of `conf/`."""
    file = get_file(path)
    return file.relative_to(get_root().parent).as_posix() if file.is_relative_to(get_root()) else str(file)


def read_documented_config(
    primary: str, overrides: Sequence[str], folders: Sequence[Path] = ()
) -> dict[str, DocumentedKey]:
    """Return the documentation and value of every key of the config that `overrides` compose, by dotted key.

    Args:
        primary: name of the primary config, `train` or `finetune`.
        overrides: overrides of one run; sweeps over several values are not supported.
        folders: folders with options of the user.

    Raises:
        HydraException: the overrides do not compose a config.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.plugins import Plugins
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from llmrl.config.hydra_hooks import patch_hydra
    from llmrl.config.overrides import get_override_key

    patch_hydra()
    Plugins.instance()  # registers the sources of configs
    loader = ConfigLoaderImpl(create_config_search_path("pkg://llmrl.conf"))
    search_path = ",".join(f"file://{folder.absolute()}" for folder in folders)
    all_overrides = [*([f"hydra.searchpath=[{search_path}]"] if folders else []), *overrides]
    config = loader.load_configuration(primary, all_overrides, RunMode.RUN, from_shell=False)
    defaults = loader.compute_defaults_list(primary, all_overrides, RunMode.RUN).defaults
    values: Any = OmegaConf.to_container(config, resolve=False)
    files, installed_keys = [], {}
    for default_element in defaults:
        package, name = default_element.package or "", f"{str(default_element.config_path).removesuffix('.yaml')}.yaml"
        # Shipped files come first, as in Hydra's search path.
        file = next((file for folder in (get_root(), *folders) if find_file(file := folder / name) is not None), None)
        if package.startswith("hydra"):
            continue
        if file is not None:
            files.append((file, tuple(filter(None, package.split(".")))))
        elif package:
            node: Any = OmegaConf.to_container(OmegaConf.select(config, package), resolve=False)
            for key, value in ((f"{package}.{name}", value) for name, value in node.items()):
                installed_keys[key] = DocumentedKey(key, value, "", (), PACKAGE_LOCATION, PACKAGE_LOCATION, True)
    documented_keys = installed_keys | read_documented_keys(files, values, read_chosen_options(defaults))
    override_keys = set(map(get_override_key, overrides))
    return {
        key: replace(entry, value_location=OVERRIDE_LOCATION) if key in override_keys else entry
        for key, entry in documented_keys.items()
        if key.partition(".")[0] != "hydra"
    }


def format_value(value: Any) -> str:
    """Return a value as the text of an override.

    >>> format_value(None), format_value([1, "a"]), format_value(1e-05), format_value(True)
    ('null', '[1, a]', '1e-05', 'true')
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(format_value(element) for element in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {format_value(element)}" for key, element in value.items()) + "}"
    return str(value)


def format_option_type(key: str, targets: Mapping[str, str]) -> str:
    """Return type and range of an option, e.g. `integer >= 1 | null`; empty if unknown.

    Args:
        key: dotted key of a config.
        targets: `_target_` of nodes of the config by dotted key. For other nodes, all classes of shipped options are
            considered.
    """
    texts = (_format_schema(schema) for hint in _list_type_hints(key, targets) for schema in build_hint_schemas(hint))
    return " | ".join(dict.fromkeys(text for text in texts if text))


def _list_type_hints(key: str, targets: Mapping[str, str]) -> list[Any]:
    """Return the type hints of an option, one for each class that may have it."""
    from llmrl.config.builder import Builder

    parent_key, _, name = key.rpartition(".")
    if not parent_key:
        return [TYPE_HINTS[name]] if name in TYPE_HINTS else []
    target_names = [targets[parent_key]] if parent_key in targets else [*_iterate_possible_targets(parent_key)]
    if parent_key == "llm":
        target_names = [*target_names, "llmrl.llms.client.build_client"]
    # The config is composed, so it may name any package (`llmrl.config.permissions`).
    packages = {name.partition(".")[0] for name in NO_FURTHER_TRUST.find_untrusted(target_names)}
    builder = Builder(trusted=[package for package in packages if not is_never_trusted(package)])
    signatures = [get_signature(builder.locate(target, parent_key)) for target in dict.fromkeys(target_names)]
    return [signature.hints[name] for signature in signatures if name in signature.hints]


def _iterate_possible_targets(parent_key: str) -> Iterable[str]:
    """Yield the classes that shipped options have at a config key; the section of a loop has one class."""
    from llmrl.config.loop_sections import LOOP_SETTINGS, get_section

    yield from (target for kind, target in LOOP_SETTINGS.items() if get_section(kind) == parent_key)
    group, *subkeys = parent_key.split(".")
    primary_configs = [read_file(get_root() / f"{name}.yaml") for name in ("_run", "train", "finetune")]
    for node in (*(config.get(group) for config in primary_configs), *load_options(group).values()):
        for subkey in subkeys:
            node = node.get(subkey) if isinstance(node, Mapping) else None
        if isinstance(node, Mapping) and node.get("_target_"):
            yield node["_target_"]


def build_hint_schemas(hint: Any) -> list[dict[str, Any]]:
    """Return the JSON schemas of the alternatives of a type hint; empty if it accepts anything.

    The schema of a part, or of another class without a JSON schema, is `PART_SCHEMA`.
    """
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError

    if hint is Any:
        return []
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        alternatives = [build_hint_schemas(alternative) for alternative in typing.get_args(hint)]
        return [schema for schemas in alternatives for schema in schemas] if all(alternatives) else []
    if inspect.isclass(hint) and hint.__module__.startswith("llmrl"):
        # A class with its own validator (`objective: sum`) may accept anything.
        return [] if hasattr(hint, "__get_pydantic_core_schema__") else [PART_SCHEMA]
    try:
        schema = TypeAdapter(hint).json_schema()
    except (PydanticInvalidForJsonSchema, PydanticSchemaGenerationError, PydanticUserError):
        return [PART_SCHEMA]
    if "$defs" in schema:  # for containers of llmrl's classes, only the type of the container
        return [{"type": schema["type"]}] if "type" in schema else []
    alternatives = schema.get("anyOf", [schema])
    return alternatives if all(alternatives) else []


def _format_schema(schema: Mapping[str, Any]) -> str:
    """Return the type that a JSON schema describes as text, e.g. `integer >= 1`."""
    if "const" in schema or "enum" in schema:
        return " | ".join(str(element) for element in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "array":
        items = schema.get("items", {})
        element_types = " | ".join(filter(None, (_format_schema(element) for element in items.get("anyOf", [items]))))
        return f"list of {element_types}" if element_types else "list"
    limits = " and ".join(f"{sign} {schema[name]:g}" for name, sign in _LIMIT_SIGNS.items() if name in schema)
    return " ".join(filter(None, [schema.get("type", ""), limits]))
