"""Checks of option files that are not part of the package, before Hydra reads them.

Hydra prints a traceback for a file that is not valid YAML, and does not end for an alias that contains itself.
"""

from __future__ import annotations

import functools
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from hydra.plugins.config_source import ConfigResult, ConfigSource

MAX_NODES = 100_000
"""Maximum number of values of an option file, counting those of an alias wherever it is used."""
_PACKAGES = ("llmrl.conf", "hydra.")
"""Packages whose option files are valid."""


def check_option_file(path: Path) -> None:
    """Check that a file is UTF-8 and YAML, holds a mapping, and has no alias that contains itself.

    Raises:
        ConfigError: the file is invalid. The message has the file and the reason, and as a rule line and column.
    """
    try:
        _check_text(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
        raise ConfigError(f"{path}{place}: {error.problem or error.context}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: values are nested too deeply") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error


def _check_text(text: str) -> None:
    """Raise YAMLError unless `text` can be composed and constructed, and holds a mapping with unique keys."""
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return
        if not isinstance(node, yaml.MappingNode):
            raise yaml.MarkedYAMLError(problem="an option file holds a mapping of keys", problem_mark=node.start_mark)
        _count(node, (), {})
        loader.construct_document(node)
    finally:
        loader.dispose()


def _count(node: yaml.Node, parents: tuple[yaml.Node, ...], counts: dict[int, int]) -> int:
    """Return the number of values in a node, with those of every alias counted where it is used.

    Raises:
        MarkedYAMLError: the node contains itself, has more than `MAX_NODES` values, or has a key twice.
    """
    if any(node is parent for parent in parents):
        raise yaml.MarkedYAMLError(problem="an alias contains itself", problem_mark=node.start_mark)
    if id(node) not in counts:
        children = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            children = [member for pair in node.value for member in pair]
            keys = {key.value: key for key, _ in reversed(node.value)}  # first node of each
            if duplicate := next((key for key, _ in node.value if keys[key.value] is not key), None):
                raise yaml.MarkedYAMLError(
                    problem=f"duplicate key {duplicate.value}", problem_mark=duplicate.start_mark
                )
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
        source = self._find_object_source(config_path, ObjectType.CONFIG)
        path = None if source is None else _path(source, config_path)
        if path is not None and path.is_file():
            check_option_file(path)
        return load(self, config_path)

    ConfigRepository.load_config = checked  # type: ignore[method-assign]


def _path(source: ConfigSource, config_path: str) -> Path | None:
    """Return the path of an option file; None if it is part of the package or of Hydra, or not a file."""
    name = source._normalize_file_name(config_path)
    if source.scheme() == "file":
        return Path(source.path) / name
    if source.scheme() == "pkg" and not source.path.startswith(_PACKAGES):
        return Path(str(resources.files(source.path).joinpath(name)))
    return None
