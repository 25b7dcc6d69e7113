"""Checks of option files that are not part of the package, before Hydra reads them.

Hydra prints a traceback for a file that is not valid YAML, and does not end for an alias that contains itself.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from llmrl.core.composition_cache import cached, is_active, sources_of
from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from hydra.plugins.config_source import ConfigResult, ConfigSource

Key = tuple[str, ...]

MAX_NODES = 100_000
"""Maximum number of values of an option file, counting those of an alias wherever it is used."""
_PACKAGES = ("llmrl.conf", "hydra.")
"""Packages whose option files are valid."""
_interpolations: dict[Path, list[tuple[Key, str]]] = {}
"""Interpolations of the files of the latest composition, as `check_option_file` returns them."""


def begin_composition() -> None:
    """Forget the interpolations of the previous composition, unless its files are cached."""
    if not is_active():
        _interpolations.clear()


def find_interpolation(key: str) -> str | None:
    """Return file, line and column of the interpolation that sets a key of the latest composition; None if unknown."""
    path = tuple(key.replace("[", ".").replace("]", "").split("."))
    places = (place for file in _interpolations.values() for keys, place in file if path[-len(keys) :] == keys)
    return next(places, None)


def check_option_file(path: Path) -> list[tuple[Key, str]]:
    """Check that a file is UTF-8 and YAML, holds a mapping, and has no alias that contains itself.

    Returns:
        The interpolations of the file: the keys that lead to each, and its file, line and column.

    Raises:
        ConfigError: the file is invalid. The message has file, line, column and reason, on one line.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    text = data.decode(errors="replace")
    try:
        data.decode()
        return [(keys, _place(path, scalar.start_mark)) for keys, scalar in _check_text(text)]
    except UnicodeDecodeError as error:
        mark = _mark(text, len(data[: error.start].decode()))
        reason = f"byte 0x{data[error.start]:02x} is not UTF-8"
    except yaml.reader.ReaderError as error:
        mark = _mark(text, error.position)
        reason = f"character U+{error.character:04X}: {error.reason}"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark or _mark(text, 0)
        reason = error.problem or error.context or "this is not YAML"
    except RecursionError:
        mark, reason = _mark(text, 0), "values are nested too deeply"
    raise ConfigError(f"{_place(path, mark)}: {' '.join(reason.split())}")


def _place(path: Path, mark: yaml.Mark) -> str:
    return f"{path}, line {mark.line + 1}, column {mark.column + 1}"


def _mark(text: str, position: int) -> yaml.Mark:
    """Return the mark of a position in a text."""
    prefix = text[:position]
    column = len(prefix) - prefix.rfind("\n") - 1
    return yaml.Mark("", position, prefix.count("\n"), column, None, 0)


def _check_text(text: str) -> list[tuple[Key, yaml.ScalarNode]]:
    """Return the interpolations of a text, each with the keys that lead to it.

    Raises:
        YAMLError: OmegaConf cannot compose and construct the text, it holds no mapping, or an interpolation is invalid.
    """
    from omegaconf.errors import GrammarParseError
    from omegaconf.grammar_parser import parse

    # The first module exists from OmegaConf 2.4 on.
    module = "omegaconf._yaml" if importlib.util.find_spec("omegaconf._yaml") else "omegaconf._utils"
    loader = importlib.import_module(module).get_yaml_loader()(text)
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
    return interpolations


def _scalars(node: yaml.Node, keys: Key) -> Iterator[tuple[Key, yaml.ScalarNode]]:
    """Yield the scalars of a node, each with the keys that lead to it."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*keys, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for i, value in enumerate(node.value):
            yield from _scalars(value, (*keys, str(i)))
    elif isinstance(node, yaml.ScalarNode):
        yield keys, node


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


def guard_option_files() -> None:
    """Make Hydra check option files before it reads them.

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_repository import ConfigRepository
    from hydra.core.object_type import ObjectType

    load = ConfigRepository.load_config
    if hasattr(load, "__wrapped__"):
        return

    @functools.wraps(load)
    def checked(self: ConfigRepository, config_path: str) -> ConfigResult | None:
        def compute() -> ConfigResult | None:
            source = self._find_object_source(config_path, ObjectType.CONFIG)
            path = None if source is None else _path(source, config_path)
            if path is not None and path.is_file():
                _interpolations[path] = check_option_file(path)
            return load(self, config_path)

        result: ConfigResult | None = cached(("file", sources_of(self), config_path), compute)
        return result

    ConfigRepository.load_config = checked  # type: ignore[method-assign]


def _path(source: ConfigSource, config_path: str) -> Path | None:
    """Return the path of an option file; None if it is part of the package or of Hydra, or not a file."""
    name = source._normalize_file_name(config_path)
    if source.scheme() == "file":
        return Path(source.path) / name
    if source.scheme() == "pkg" and not source.path.startswith(_PACKAGES):
        return Path(str(resources.files(source.path).joinpath(name)))
    return None
