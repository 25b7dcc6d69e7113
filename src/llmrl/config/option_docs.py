"""Documentation of options, from the comments of the option files, the only place where options are documented.

The comment of a key is behind it, or above it in the same column, and continues in lines below that are indented
further. The first file that has a key documents its meaning; files that set it later may give reasons.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.option_files import root

if TYPE_CHECKING:
    import yaml

Key = tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A key of an option file.

    Attributes:
        key: path of the key in the file.
        line: number of its line, from 1.
        comment: comment in one line; empty without one.
        leaf: whether it holds a value, and no further keys.
    """

    key: Key
    line: int
    comment: str
    leaf: bool


@dataclass(frozen=True)
class Documented:
    """A key of a composed config.

    Attributes:
        key: path of the key, with dots.
        value: composed value; None if only files were read.
        meaning: comment of the first file that documents it.
        notes: comments of files that set it later, each with its place.
        place: `file:line` of the meaning.
        set_in: `file:line` of its value, or `typed`.
        leaf: whether it holds a value, and no further keys.
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
    """Return the keys of an option file with their comments, without `defaults`."""
    import yaml

    text = path.read_text(encoding="utf-8")
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(node, yaml.MappingNode):
        return ()
    lines = text.splitlines()
    return tuple(_entries(node, (), lines))


def header(path: Path) -> str:
    """Return the comment at the top of an option file in one line: the description of the option."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        if not line.startswith(("# @", "# yaml-language-server", "#   ")):
            found.append(line.lstrip("# ").rstrip())
    return " ".join(found)


def _entries(node: yaml.MappingNode, above: Key, lines: Sequence[str]) -> Iterable[Entry]:
    import yaml

    for name, value in node.value:
        key = (*above, str(name.value))
        if key == ("defaults",):
            continue
        inside = isinstance(value, yaml.MappingNode) and not value.flow_style and bool(value.value)
        last = name.end_mark if inside else value.end_mark
        comment = _comment(lines, name.start_mark.line, name.start_mark.column, last.line, last.column)
        yield Entry(key, name.start_mark.line + 1, comment, not inside)
        if inside:
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
    behind = lines[last][end:].lstrip(" :")
    if behind.startswith("#"):
        texts.append(behind)
        for line in lines[last + 1 :]:
            if not line.strip().startswith("#") or _indent(line) <= column:
                break
            texts.append(line)
    return " ".join(" ".join(text.strip().lstrip("#").split()) for text in texts)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def documented(files: Sequence[tuple[Path, Key]], values: Mapping[str, Any] | None = None) -> dict[str, Documented]:
    """Return the documentation of the keys of a config by dotted key.

    Args:
        files: option files, each with the place of its keys in the config; later files override earlier ones.
        values: composed config; None: no values are given.
    """
    found: dict[str, list[tuple[Entry, str]]] = {}
    for path, package in files:
        for entry in entries(path):
            key = ".".join((*package, *entry.key))
            found.setdefault(key, []).append((entry, f"{shown(path)}:{entry.line}"))
    documents = {}
    for key, said in found.items():
        commented = [(entry.comment, place) for entry, place in said if entry.comment] or [("", said[0][1])]
        (meaning, place), notes = commented[0], tuple(commented[1:])
        value = None if values is None else _at(values, key)
        documents[key] = Documented(key, value, meaning, notes, place, said[-1][1], all(e.leaf for e, _ in said))
    return documents


def shown(path: Path) -> str:
    """Return the name of an option file, relative to the parent of `conf/` if the package ships it."""
    return path.relative_to(root().parent).as_posix() if path.is_relative_to(root()) else str(path)


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, Mapping) or part not in values:
            return None
        values = values[part]
    return values


def composed(primary: str, overrides: Sequence[str], folders: Sequence[Path] = ()) -> dict[str, Documented]:
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

    Plugins.instance()  # registers where configs are read from
    loader = ConfigLoaderImpl(create_config_search_path("pkg://llmrl.conf"))
    own = ",".join(f"file://{folder.absolute()}" for folder in folders)
    typed_all = [*([f"hydra.searchpath=[{own}]"] if folders else []), *overrides]
    chosen = loader.compute_defaults_list(primary, typed_all, RunMode.RUN).defaults
    config = loader.load_configuration(primary, typed_all, RunMode.RUN)
    values = OmegaConf.to_container(config, resolve=False)
    assert isinstance(values, dict)
    files = [
        (path, tuple(part for part in (each.package or "").split(".") if part))
        for each in chosen
        if not (each.package or "").startswith("hydra") and (path := _file(str(each.config_path), folders)) is not None
    ]
    documents = documented(files, {str(key): value for key, value in values.items()})
    typed = {override.lstrip("+").partition("=")[0] for override in overrides}
    return {
        key: Documented(**{**vars(each), "set_in": "typed"}) if key in typed else each
        for key, each in documents.items()
        if key.partition(".")[0] != "hydra"
    }


def _file(config_path: str, folders: Sequence[Path]) -> Path | None:
    """Return the file of a config, in Hydra's order, with shipped files first; None without one."""
    for folder in (root(), *folders):
        if (path := folder / f"{config_path.removesuffix('.yaml')}.yaml").is_file():
            return path
    return None


def written(value: Any) -> str:
    """Return a value as the text of an override.

    >>> written(None), written([1, "a"]), written(1e-05), written(True)
    ('null', '[1, a]', '1e-05', 'true')
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"[{', '.join(written(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {written(each)}" for key, each in value.items()) + "}"
    return str(value)
