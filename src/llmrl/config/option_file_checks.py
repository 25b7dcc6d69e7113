"""Checks of option files that are not part of the package, before Hydra reads them.

Hydra prints a traceback for a file that is not valid YAML, and does not end for an alias that contains itself.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from hydra.plugins.config_source import ConfigSource
    from omegaconf.errors import OmegaConfBaseException

MAX_NODES = 100_000
"""Maximum number of values of an option file, counting those of an alias wherever it is used."""
_PACKAGES = ("llmrl.conf", "hydra.")
"""Packages whose option files are valid."""
Interpolations = Sequence[tuple[tuple[str, ...], int, int]]
"""Interpolations of a file: the keys that lead to each, and its line and column from 0."""
_latest: dict[Path, Interpolations] = {}  # files of the latest composition


def check_option_file(path: Path) -> Interpolations:
    """Check that a file is UTF-8 and YAML, holds a mapping, and has no alias that contains itself.

    Raises:
        ConfigError: the file is invalid. The message has file, line, column and reason, on one line.
    """
    try:
        state = path.stat()
        return _check(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error


@functools.lru_cache
def _check(path: Path, mtime_ns: int, size: int) -> Interpolations:
    data = path.read_bytes()
    try:
        text = data.decode()
        return _check_text(text)
    except UnicodeDecodeError as error:
        prefix = data[: error.start].decode()
        raise _invalid(path, *_place(prefix, len(prefix)), f"byte 0x{data[error.start]:02x} is not UTF-8") from error
    except yaml.reader.ReaderError as error:
        reason = f"character U+{error.character:04X}: {error.reason}"
        raise _invalid(path, *_place(text, error.position), reason) from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = (mark.line, mark.column) if mark is not None else (0, 0)
        raise _invalid(path, *place, error.problem or error.context or "this is not YAML") from error
    except RecursionError as error:
        raise _invalid(path, 0, 0, "values are nested too deeply") from error


def _invalid(path: Path, line: int, column: int, reason: str) -> ConfigError:
    return ConfigError(f"{path}, line {line + 1}, column {column + 1}: {' '.join(reason.split())}")


def _place(text: str, position: int) -> tuple[int, int]:
    """Return line and column of a position in a text, from 0."""
    prefix = text[:position]
    return prefix.count("\n"), len(prefix) - prefix.rfind("\n") - 1


def _check_text(text: str) -> Interpolations:
    """Raise YAMLError unless `text` can be composed and constructed as OmegaConf does, and holds a mapping."""
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    module = (
        "omegaconf._yaml" if importlib.util.find_spec("omegaconf._yaml") else "omegaconf._utils"
    )  # from 2.4 on; 2.3
    get_yaml_loader = importlib.import_module(module).get_yaml_loader

    loader = get_yaml_loader()(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return []
        if not isinstance(root, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="an option file holds a mapping of keys", problem_mark=root.start_mark)
        _count(root, (), {})
        loader.construct_document(root)
    finally:
        loader.dispose()
    interpolations = [(keys, scalar) for keys, scalar in _scalars(root, ()) if "${" in scalar.value]
    for _, scalar in interpolations:
        try:
            parse(scalar.value)
        except GrammarParseError as error:
            raise yaml.MarkedYAMLError(problem=str(error), problem_mark=scalar.start_mark) from error
    return [(keys, scalar.start_mark.line, scalar.start_mark.column) for keys, scalar in interpolations]


def _count(node: yaml.Node, parents: tuple[yaml.Node, ...], counts: dict[int, int]) -> int:
    """Return the number of values in a node, with those of every alias counted where it is used.

    Raises:
        MarkedYAMLError: the node contains itself, or has more than `MAX_NODES` values.
    """
    if any(node is parent for parent in parents):
        raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
    if id(node) not in counts:
        children = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            children = [member for pair in node.value for member in pair]
        counts[id(node)] = 1 + sum(_count(child, (*parents, node), counts) for child in children)
    if counts[id(node)] > MAX_NODES:
        reason = f"there are more than {MAX_NODES:,} values, with those of aliases"
        raise yaml.MarkedYAMLError(problem=reason, problem_mark=node.start_mark)
    return counts[id(node)]


def _scalars(node: yaml.Node | None, keys: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], yaml.ScalarNode]]:
    """Yield the scalars of a node, each with the path of keys to it."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*keys, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _scalars(value, (*keys, str(i)))
    elif isinstance(node, yaml.ScalarNode):
        yield keys, node


def guard_option_files() -> None:
    """Make Hydra check option files before it reads them.

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_repository import ConfigRepository

    find = ConfigRepository._find_object_source
    if hasattr(find, "__wrapped__"):
        return

    @functools.wraps(find)
    def checked(self: ConfigRepository, config_path: str, *args: Any, **kwargs: Any) -> ConfigSource | None:
        source = find(self, config_path, *args, **kwargs)
        path = None if source is None else _path(source, config_path)
        if path is not None and path.is_file():
            _latest[path] = check_option_file(path)
        return source

    ConfigRepository._find_object_source = checked  # type: ignore[method-assign]


def begin_composition() -> None:
    """Forget the files of the previous composition."""
    _latest.clear()


def _path(source: ConfigSource, config_path: str) -> Path | None:
    """Return the path of an option file; None if it is part of the package or of Hydra, or not a file."""
    name = source._normalize_file_name(config_path)
    if source.scheme() == "file":
        return Path(source.path) / name
    if source.scheme() == "pkg" and not source.path.startswith(_PACKAGES):
        return Path(str(resources.files(source.path).joinpath(name)))
    return None


def describe(error: OmegaConfBaseException, overrides: Sequence[str]) -> str:
    """Return one line about an interpolation that cannot be resolved: its place, the key, and the reason.

    Args:
        error: error of OmegaConf.
        overrides: overrides that were typed.
    """
    reason = next(iter((error.msg or str(error)).splitlines()), type(error).__name__)
    if not (key := str(error.full_key or "")):
        return reason
    task = [word for word in overrides if not word.lstrip("+~").startswith("hydra")]
    for i, override in enumerate(task):  # Hydra also resolves its own copy of the overrides
        override_key, _, value = override.lstrip("+").partition("=")
        places = (f"{override_key}.", f"{override_key}[", f"hydra.overrides.task[{i}]")
        if "${" in value and (override_key == key or key.startswith(places)):
            return f"{override}: {reason}"
    path = tuple(key.replace("[", ".").replace("]", "").split("."))
    for file, interpolations in _latest.items():
        for keys, line, column in interpolations:
            if path[-len(keys) :] == keys:
                return str(_invalid(file, line, column, f"{key}: {reason}"))
    return f"{key}: {reason}"
