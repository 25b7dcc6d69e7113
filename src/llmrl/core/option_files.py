"""The option files that the package ships (`llmrl.conf`), and the files that they are composed from.

Files whose names begin with `_`, and files in the folders `BASE_FOLDERS`, are bases of options and cannot be chosen.

A shipped file may contain further options of its group under its last key, `variants`:

    # agent/ppo.yaml
    memory: null
    variants:
      # PPO with a memory.
      lstm:
        memory: 64

A variant includes the values of its file, as if the file were the first of its `defaults`, unless these include another
variant of the file. In this module, the path of a variant is that of a file with its name (`agent/lstm.yaml`).
"""

from __future__ import annotations

import copy
import functools
import itertools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

BASE_FOLDERS = ("numbers",)
"""Names of folders of base files, which cannot be chosen."""
FREE_FORM_KEYS = ("kwargs", "arguments", "replace")
"""Keys below which any entries are allowed: arguments of classes of libraries, and replacements of texts."""
VARIANTS_KEY = "variants"
"""Key of an option file for its variants."""
SCHEMA_FOLDER = "schema"
"""Folder of generated JSON schemas, which editors use to check option files."""


@functools.cache
def get_root() -> Path:
    """Return the folder of the shipped options; in a checkout that is `conf/`, to which `llmrl/conf` links."""
    return Path(str(resources.files("llmrl.conf"))).resolve()


def is_choosable(path: str) -> bool:
    """Return whether an option or a folder of options can be chosen.

    >>> is_choosable("env/cartpole"), is_choosable("env/_rooms"), is_choosable("agent/numbers/none/llm_player")
    (True, False, False)
    """
    return not any(name.startswith("_") or name in BASE_FOLDERS for name in path.split("/"))


def list_part_groups() -> list[str]:
    """Return the groups whose options are parts of a run, sorted."""
    other_groups = ("experiment", "regime", "treatment", "hydra", "suite", SCHEMA_FOLDER, "__pycache__")
    folders = (path.name for path in get_root().iterdir() if path.is_dir() and is_choosable(path.name))
    return sorted(name for name in folders if name not in other_groups)


def list_option_names(group: str) -> list[str]:
    """Return the names of the options of a group, sorted."""
    folder = get_root() / group
    return sorted(filter(is_choosable, (*(path.stem for path in folder.glob("*.yaml")), *find_variants(folder))))


def list_nested_options(group: str) -> list[str]:
    """Return the names of the options in the folders of a group, `<folder>/<name>`, sorted."""
    return [
        f"{subgroup.rpartition('/')[2]}/{name}"
        for subgroup in list_subgroups(group)
        for name in list_option_names(subgroup)
    ]


@functools.cache
def find_variants(folder: Path) -> dict[str, Path]:
    """Return the file of each variant in a folder of shipped options, by the name of the variant."""
    texts = ((file.read_text(encoding="utf-8"), file) for file in sorted(folder.glob("*.yaml")))
    sections = ((text.partition(f"\n{VARIANTS_KEY}:\n")[2], file) for text, file in texts)
    return {name: file for section, file in sections for name in re.findall(r"^  (\w+):", section, re.MULTILINE)}


def list_paths() -> list[Path]:
    """Return the paths of all shipped files and variants, sorted, without files that contain only variants."""
    files = list(get_root().rglob("*.yaml"))
    variant_files = {
        folder / f"{name}.yaml": file
        for folder in {file.parent for file in files}
        for name, file in find_variants(folder).items()
    }
    return sorted({*files, *variant_files} - {file for file in variant_files.values() if not read_file(file)})


def find_file(path: Path) -> Path | None:
    """Return the file with the option of a path: the path itself, or the file of the variant; None without one."""
    if path.is_file():
        return path
    return find_variants(path.parent).get(path.stem) if path.is_relative_to(get_root()) else None


def get_file(path: Path) -> Path:
    """Return the file with the option of a path.

    Raises:
        FileNotFoundError: there is no such option.
    """
    if (file := find_file(path)) is None:
        raise FileNotFoundError(path)
    return file


def list_subgroups(group: str) -> list[str]:
    """Return the groups inside a group, e.g. `llm/learn`, sorted."""
    folders = (path for path in (get_root() / group).glob("*") if path.is_dir() and is_choosable(path.name))
    return sorted(f"{group}/{path.name}" for path in folders if list_option_names(f"{group}/{path.name}"))


def load_options(group: str) -> dict[str, dict[str, Any]]:
    """Return every option of a group by name, as `load_option` returns it."""
    return {name: load_option(group, name) for name in list_option_names(group)}


def load_option(group: str, name: str) -> dict[str, Any]:
    """Return an option as an unresolved plain dict, including the fields of its bases (`defaults`).

    If an option sets keys of the whole config (`# @package _global_`), only those under the key of its group are
    returned. Its choices of options of other groups are left out.

    Raises:
        FileNotFoundError: there is no such option.
    """
    return copy.deepcopy(_compose_option(group, name))


@functools.cache
def _compose_option(group: str, name: str) -> dict[str, Any]:
    config: dict[str, Any] = {}
    for path, package in list_files(group, name):
        fields = {key: value for key, value in read_file(path).items() if key != "defaults"}
        for key in reversed(package):
            fields = {key: fields}
        override_fields(config, fields)
    for key in group.split("/"):
        config = config.get(key, {})
    return config


def list_files(group: str, name: str) -> list[tuple[Path, tuple[str, ...]]]:
    """Return the files of which an option is composed, each with the keys that lead to its values in a config.

    Later files override earlier ones. The option's choices of options of other groups are left out.

    Raises:
        FileNotFoundError: there is no such option.
    """
    path = get_root() / group / f"{name}.yaml"
    return _list_files_with_bases(path, () if sets_global_keys(path) else tuple(group.split("/")))


def _list_files_with_bases(path: Path, package: tuple[str, ...]) -> list[tuple[Path, tuple[str, ...]]]:
    """Return the files of an option, bases first; `package` has the config keys above the keys of the file `path`."""
    files: list[tuple[Path, tuple[str, ...]]] = []
    for base in read_file(path).get("defaults", []):
        if isinstance(base, dict):
            # The choice of an option in a subgroup (`backend: slurm`); choices of other groups are left out.
            ((group, option_name),) = base.items()
            if isinstance(option_name, str) and (path.parent / group).is_dir():
                base = f"{group}/{option_name}@{group}"
        if not isinstance(base, str) or base == "_self_" or base.startswith(("/experiment/", "/treatment/")):
            continue
        reference, _, base_package = base.partition("@")
        base_folder = get_root() if reference.startswith("/") else path.parent
        file = (base_folder / reference.removeprefix("/")).with_suffix(".yaml")
        inner_keys = (key for key in base_package.split(".") if key)
        files += _list_files_with_bases(file, () if sets_global_keys(file) else (*package, *inner_keys))
    return [*files, (path, package)]


def sets_global_keys(path: Path) -> bool:
    """Return whether a file sets keys of the whole config instead of keys of its group."""
    return any(line.split() == ["#", "@package", "_global_"] for line in read_comment(get_file(path)))


def read_comment(path: Path) -> list[str]:
    """Return the lines of the comment at the top of an option file, or above the name of a variant.

    Raises:
        FileNotFoundError: there is no such option.
    """
    file = get_file(path)
    lines = file.read_text(encoding="utf-8").splitlines()
    if file == path:
        return list(itertools.takewhile(lambda line: line.startswith("#"), lines))
    variant_index = next(i for i, line in enumerate(lines) if line.startswith(f"  {path.stem}:"))
    comment = itertools.takewhile(lambda line: line.startswith("  #"), reversed(lines[:variant_index]))
    return [line.strip() for line in comment][::-1]


def read_file(path: Path) -> dict[str, Any]:
    """Return the parsed content of an option file, or of a variant. Values are cached: do not change them.

    Raises:
        FileNotFoundError: there is no such option.
    """
    file = get_file(path)
    values = dict(_parse_yaml(file.read_text(encoding="utf-8")))
    file_variants = values.pop(VARIANTS_KEY, {})
    if file == path:
        return values
    variant = file_variants[path.stem]
    bases = variant.get("defaults", [])
    # For a file in a folder of a group (`experiment=<folder>/<name>`), Hydra needs the absolute path of a base.
    folder = file.parent.relative_to(get_root()).as_posix()
    prefix = f"/{folder}/" if "/" in folder else ""
    # A variant whose base is another variant of the file gets the values of the file from that one.
    if values and not any(f"{prefix}{name}" in bases for name in file_variants):
        bases = [f"{prefix}{file.stem}", *bases]
    return {**({"defaults": bases} if bases else {}), **{key: variant[key] for key in variant if key != "defaults"}}


@functools.cache
def _parse_yaml(text: str) -> dict[str, Any]:
    import yaml

    # The parser in C, which is missing in a few builds of PyYAML, is eight times faster.
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


def override_fields(fields: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Override `fields` with `overrides` in place, recursively. A missing value (`???`) overrides nothing."""
    for key, value in overrides.items():
        if isinstance(value, Mapping) and isinstance(fields.get(key), dict):
            override_fields(fields[key], value)
        elif value != "???" or key not in fields:
            fields[key] = copy.deepcopy(value)
