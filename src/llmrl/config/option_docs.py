"""Documentation of options: meanings from the comments of the option files, and types from the hints of their classes.

The comment of a key is behind it, or above it in the same column, and continues in lines below that are indented
further. The first file that has a key documents its meaning; files that set it later may give reasons.
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

from llmrl.config.run_options import HINTS
from llmrl.core.arguments import get_signature
from llmrl.core.hydra_composition import read_chosen_options, resolve_table_key
from llmrl.core.option_files import (
    FREE_FORM_KEYS,
    VARIANTS_KEY,
    find_file,
    get_file,
    load_options,
    read_comment,
    read_file,
    root,
)

if TYPE_CHECKING:
    import yaml

Key = tuple[str, ...]

_LIMITS = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<=", "exclusiveMaximum": "<"}
PART: dict[str, Any] = {"type": "object"}
"""JSON schema of a part."""


@dataclass(frozen=True)
class Entry:
    """A key of an option file.

    Attributes:
        key: path of the key in the file.
        line: number of its line, from 1.
        comment: comment in one line; empty without one.
        leaf: whether it holds a value instead of further keys.
    """

    key: Key
    line: int
    comment: str
    leaf: bool


@dataclass(frozen=True)
class DocumentedKey:
    """A key of a composed config.

    Attributes:
        key: path of the key, with dots.
        value: composed value; None if only files were read.
        meaning: comment of the first file that documents it.
        notes: comments of files that set it later, each with its place.
        place: `file:line` of the meaning.
        set_in: `file:line` of its value, or `typed`.
        leaf: whether it holds a value instead of further keys.
    """

    key: str
    value: Any
    meaning: str
    notes: tuple[tuple[str, str], ...]
    place: str
    set_in: str
    leaf: bool


@functools.cache
def entries(path: Path) -> tuple[Entry, ...]:
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
    lines = text.splitlines()
    return tuple(_entries(node, (), lines))


def header(path: Path) -> str:
    """Return the comment at the top of an option file in one line: the description of the option."""
    lines = [line for line in read_comment(path) if not line.startswith(("# @", "# yaml-language-server", "#   "))]
    return " ".join(line.lstrip("# ").rstrip() for line in lines)


def _entries(node: yaml.MappingNode, parent: Key, lines: Sequence[str]) -> Iterable[Entry]:
    import yaml

    for name, value in node.value:
        key = (*parent, str(name.value))
        if key in (("defaults",), (VARIANTS_KEY,)):
            continue
        has_children = isinstance(value, yaml.MappingNode) and bool(value.value)
        if has_children and value.flow_style:  # in one line, a part and keys of the user's choice are a single value
            has_children = name.value not in FREE_FORM_KEYS and all(key.value != "_target_" for key, _ in value.value)
        last = name.end_mark if has_children and not value.flow_style else value.end_mark
        comment = _comment(lines, name.start_mark.line, name.start_mark.column, last.line, last.column)
        yield Entry(key, name.start_mark.line + 1, comment, not has_children)
        if has_children:
            yield from _entries(value, key, lines)


def _comment(lines: Sequence[str], first: int, column: int, last: int, end: int) -> str:
    """Return the comment of the key at `column` of line `first`; its value ends at `end` of line `last`, all from 0."""
    texts: list[str] = []
    if last >= len(lines) or (last > first and end == 0):
        last, end = last - 1, len(lines[last - 1])
    number = first - 1
    while number >= 0 and lines[number].strip().startswith("#") and _indent(lines[number]) == column:
        texts.insert(0, lines[number])
        number -= 1
    if number < 0:
        texts = []  # the comment describes the file
    trailing = lines[last][end:].lstrip(" :")
    if trailing.startswith("#"):
        texts.append(trailing)
        for line in lines[last + 1 :]:
            if not line.strip().startswith("#") or _indent(line) <= column:
                break
            texts.append(line)
    return " ".join(" ".join(text.strip().lstrip("#").split()) for text in texts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def document_keys(
    files: Sequence[tuple[Path, Key]],
    values: Mapping[str, Any] | None = None,
    choices: Mapping[str, str] | None = None,
) -> dict[str, DocumentedKey]:
    """Return the documentation of the keys of a config by dotted key.

    Args:
        files: option files, each with the place of its keys in the config; later files override earlier ones.
        values: composed config; None: the documentation has no values.
        choices: chosen options of the groups of tables (`llmrl.core.hydra_composition`), whose rows count;
            None: no rows.
    """
    sources: dict[str, list[tuple[Entry, str]]] = {}
    for path, package in files:
        for entry in entries(path):
            if (relative_key := resolve_table_key(entry.key, choices or {})) is None:
                continue
            key = ".".join((*package, *relative_key))
            sources.setdefault(key, []).append((entry, f"{display_path(path)}:{entry.line}"))
    documents = {}
    for key, descriptions in sources.items():
        commented = [(entry.comment, place) for entry, place in descriptions if entry.comment] or [
            ("", descriptions[0][1])
        ]
        (meaning, place), notes = commented[0], tuple(commented[1:])
        value = functools.reduce(
            lambda x, name: x.get(name) if isinstance(x, Mapping) else None, key.split("."), values
        )
        documents[key] = DocumentedKey(
            key, value, meaning, notes, place, descriptions[-1][1], all(e.leaf for e, _ in descriptions)
        )
    return documents


@functools.cache
def display_path(path: Path) -> str:
    """Return the name of an option file, relative to the parent of `conf/` if the package ships it."""
    file = get_file(path)
    return file.relative_to(root().parent).as_posix() if file.is_relative_to(root()) else str(file)


def document_config(primary: str, overrides: Sequence[str], folders: Sequence[Path] = ()) -> dict[str, DocumentedKey]:
    """Return the documentation and value of every key of the config that `overrides` compose, by dotted key.

    Args:
        primary: `train` or `finetune`.
        overrides: overrides as typed; sweeps over several values are not supported.
        folders: folders with the user's own options.

    Raises:
        HydraException: the overrides do not compose a config.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl
    from hydra._internal.utils import create_config_search_path
    from hydra.core.plugins import Plugins
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from llmrl.config.hydra_hooks import adapt_hydra
    from llmrl.config.overrides import override_key

    adapt_hydra()
    Plugins.instance()  # registers the sources of configs
    loader = ConfigLoaderImpl(create_config_search_path("pkg://llmrl.conf"))
    search_path = ",".join(f"file://{folder.absolute()}" for folder in folders)
    all_overrides = [*([f"hydra.searchpath=[{search_path}]"] if folders else []), *overrides]
    config = loader.load_configuration(primary, all_overrides, RunMode.RUN, from_shell=False)
    defaults = loader.compute_defaults_list(primary, all_overrides, RunMode.RUN).defaults
    values: Any = OmegaConf.to_container(config, resolve=False)
    files = []
    for default in defaults:
        package, name = default.package or "", f"{str(default.config_path).removesuffix('.yaml')}.yaml"
        # Hydra's order, with shipped files first.
        path = next((path for folder in (root(), *folders) if find_file(path := folder / name) is not None), None)
        if path is not None and not package.startswith("hydra"):
            files.append((path, tuple(filter(None, package.split(".")))))
    documents = document_keys(files, values, read_chosen_options(defaults))
    override_keys = set(map(override_key, overrides))
    return {
        key: replace(document, set_in="typed") if key in override_keys else document
        for key, document in documents.items()
        if key.partition(".")[0] != "hydra"
    }


def value_text(value: Any) -> str:
    """Return a value as the text of an override.

    >>> value_text(None), value_text([1, "a"]), value_text(1e-05), value_text(True)
    ('null', '[1, a]', '1e-05', 'true')
    """
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(value_text(element) for element in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {value_text(element)}" for key, element in value.items()) + "}"
    return str(value)


def option_type(key: str, targets: Mapping[str, str]) -> str:
    """Return type and range of an option, e.g. `integer >= 1 | null`; empty if unknown.

    Args:
        key: dotted key of a config.
        targets: `_target_` of each place of the config that has one. At other places, all classes that the shipped
            options have there are considered.
    """
    texts = (_schema_text(schema) for hint in _hints(key, targets) for schema in hint_schemas(hint))
    return " | ".join(dict.fromkeys(text for text in texts if text))


def _hints(key: str, targets: Mapping[str, str]) -> list[Any]:
    """Return the type hints of an option in the classes that may have it."""
    from llmrl.config.builder import Builder

    place, _, name = key.rpartition(".")
    if not place:
        return [HINTS[name]] if name in HINTS else []
    names = [targets[place]] if place in targets else _possible_targets(place)
    if place == "llm":
        names = [*names, "llmrl.llms.client.connect"]
    signatures = [get_signature(Builder().locate(target, place)) for target in dict.fromkeys(names)]
    return [signature.hints[name] for signature in signatures if name in signature.hints]


def _possible_targets(place: str) -> Iterable[str]:
    """Yield the classes of the shipped options at a place; a section of a loop has one class without `_target_`."""
    from llmrl.config.loop_sections import SETTINGS, section

    yield from (target for kind, target in SETTINGS.items() if section(kind) == place)
    group, *path = place.split(".")
    commands = [read_file(root() / f"{name}.yaml") for name in ("_run", "train", "finetune")]
    for node in (*(command.get(group) for command in commands), *load_options(group).values()):
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
