"""The option files that the package ships (`llmrl.conf`), and the files that they are composed from.

Files whose names begin with `_`, and files in the folders `PIECES`, are bases of options and cannot be chosen.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

PIECES = ("parts", "numbers")
"""Folders of files that options are composed from and that cannot be chosen."""
SCHEMAS = "schema"
"""Folder of the JSON schemas for editors, if they have been built."""


@functools.cache
def root() -> Path:
    """Return the folder of the shipped options; in a checkout that is `conf/`, to which `llmrl/conf` links."""
    return Path(str(resources.files("llmrl.conf"))).resolve()


def choosable(path: str) -> bool:
    """Return whether an option or a folder of options can be chosen.

    >>> choosable("env/cartpole"), choosable("env/_rooms"), choosable("experiment/search/parts/props")
    (True, False, False)
    """
    return not any(name.startswith("_") or name in PIECES for name in path.split("/"))


def part_groups() -> list[str]:
    """Return the groups whose options are parts of a run, sorted."""
    other_groups = ("experiment", "regime", "treatment", "hydra", "suite", SCHEMAS, "__pycache__")
    folders = (path.name for path in root().iterdir() if path.is_dir() and choosable(path.name))
    return sorted(name for name in folders if name not in other_groups)


def names(group: str) -> list[str]:
    """Return the names of the options of a group, sorted."""
    return sorted(path.stem for path in (root() / group).glob("*.yaml") if choosable(path.stem))


def subgroups(group: str) -> list[str]:
    """Return the groups inside a group, e.g. `llm/learn`, each of which selects a part of its options."""
    folders = (path for path in (root() / group).glob("*") if path.is_dir() and choosable(path.name))
    return sorted(f"{group}/{path.name}" for path in folders if names(f"{group}/{path.name}"))


def options(group: str) -> dict[str, dict[str, Any]]:
    """Return every option of a group by name, as `option` returns it."""
    return {name: option(group, name) for name in names(group)}


def option(group: str, name: str) -> dict[str, Any]:
    """Return an option as an unresolved plain dict, with the fields of the bases that its `defaults` name.

    Of an option that sets keys of the whole config (`# @package _global_`), only those under the group's own key are
    returned. Its choices of other groups' options are left out.

    Raises:
        FileNotFoundError: there is no such option.
    """
    return copy.deepcopy(_option(group, name))


@functools.cache
def _option(group: str, name: str) -> dict[str, Any]:
    full_options: dict[str, Any] = {}
    for path, package in chain(group, name):
        fields = {key: value for key, value in content(path).items() if key != "defaults"}
        for part in reversed(package):
            fields = {part: fields}
        merge(full_options, fields)
    for key in group.split("/"):
        full_options = full_options.get(key, {})
    return full_options


def chain(group: str, name: str) -> list[tuple[Path, tuple[str, ...]]]:
    """Return the files that an option is composed from, each with the path of keys at which it stands in a config.

    Later files override earlier ones. The option's choices of other groups' options are left out.

    Raises:
        FileNotFoundError: there is no such option.
    """
    path = root() / group / f"{name}.yaml"
    return _chain(path, () if is_global(path) else tuple(group.split("/")))


def _chain(path: Path, package: tuple[str, ...]) -> list[tuple[Path, tuple[str, ...]]]:
    files: list[tuple[Path, tuple[str, ...]]] = []
    for base in content(path).get("defaults", []):
        if isinstance(base, dict):
            # A choice of a group inside this one (`backend: slurm`); choices of other groups are left out.
            ((inner, option_name),) = base.items()
            if isinstance(option_name, str) and (path.parent / inner).is_dir():
                base = f"{inner}/{option_name}@{inner}"
        if not isinstance(base, str) or base == "_self_" or base.startswith(("/experiment/", "/treatment/")):
            continue
        reference, _, place = base.partition("@")
        file = (root() / reference[1:] if reference.startswith("/") else path.parent / reference).with_suffix(".yaml")
        target_package = () if is_global(file) else (*package, *(part for part in place.split(".") if part))
        files += _chain(file, target_package)
    return [*files, (path, package)]


def is_global(path: Path) -> bool:
    """Return whether a file sets keys of the whole config instead of keys of its group."""
    header = itertools.takewhile(lambda line: line.startswith("#"), _text(path).splitlines())
    return any(line.split() == ["#", "@package", "_global_"] for line in header)


@functools.cache
def content(path: Path) -> dict[str, Any]:
    """Return the parsed content of an option file. It is cached: do not change it."""
    import yaml

    # The parser in C, of which a few builds of PyYAML are without, is eight times faster.
    return yaml.load(_text(path), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


@functools.cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def merge(below: dict[str, Any], above: Mapping[str, Any]) -> None:
    """Override the fields of `below` with those of `above`, in place. A missing value (`???`) overrides nothing."""
    for key, value in above.items():
        if isinstance(value, Mapping) and isinstance(below.get(key), dict):
            merge(below[key], value)
        elif value != "???" or key not in below:
            below[key] = copy.deepcopy(value)


def hide_bases() -> None:
    """Make Hydra list only options that can be chosen (`--help`, messages, completion, `glob(*)`).

    It patches Hydra once per process; further calls do nothing.
    """
    from hydra._internal.config_repository import ConfigRepository

    list_options: Callable[..., list[str]] = ConfigRepository.get_group_options
    if hasattr(list_options, "__wrapped__"):
        return

    @functools.wraps(list_options)
    def list_choosable(self: ConfigRepository, group_name: str, *args: Any, **kwargs: Any) -> list[str]:
        return [name for name in list_options(self, group_name, *args, **kwargs) if choosable(name)]

    ConfigRepository.get_group_options = list_choosable  # type: ignore[method-assign]
