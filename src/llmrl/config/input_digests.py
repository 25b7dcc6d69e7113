"""Digests of files and code that results depend on and that are not in the config.

The digests are added to the config, so the hash in the name of a run folder depends on the content of these files.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llmrl.config.permissions import find_code_names
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.run.config_hash import drop_excluded_keys

SOURCES_DIGEST_KEY = "sources_digest"
"""Key of a config: digest of the modules outside llmrl that define its parts; absent without such modules."""
_EXCLUDED_PACKAGES = frozenset({"llmrl", "hydra_plugins", *sys.stdlib_module_names})
"""Top-level packages whose code has no digest."""
_SUBSTRATE_TARGET = "llmrl.envs.substrate.factory.substrate_env"
_OFFLINE_TEACHER_TARGET = "llmrl.teachers.teacher_factory.offline_teacher"


def with_digests(config: dict[str, Any], only: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the resolved config with a digest for each kind of file that it names.

    Args:
        config: resolved config.
        only: keys of the digests to add; None: all.

    The digests are `prompts_digest` (prompts of the user), `adapter_digest` (adapter of a local model),
    `table_digest` (plan table from a file), `text_digest` (game texts from files), `personas_digest` (personas of
    players from files), `map_digest` (map and pictures of a society's games, if they are files or depend on installed
    packages), and `sources_digest` (modules outside llmrl that define parts; `compute_module_digest`).

    Raises:
        ConfigError: a file is missing, or has changed since the run was submitted.
    """
    digests: dict[str, str] = {}
    for key, paths in _list_files_by_digest_key(config).items():
        if not paths or (only is not None and key not in only):
            continue
        file_digests = [_compute_file_digest(key, Path(path).expanduser()) for path in paths]
        digests[key] = file_digests[0]
        if len(file_digests) > 1:
            digests[key] = hashlib.sha256(" ".join(file_digests).encode()).hexdigest()[:12]
        if config.get(key, digests[key]) != digests[key]:
            subject = _DIGEST_DESCRIPTIONS[key][0].format(", ".join(paths))
            raise ConfigError(
                f"{subject} changed since this run was submitted; repeat its command, which starts a new run"
            )
    names = sorted(set(find_code_names(drop_excluded_keys(config)))) if only is None else []
    if digest := compute_module_digest(names):
        if config.get(SOURCES_DIGEST_KEY, digest) != digest:
            raise ConfigError(
                f"the modules of {', '.join(names)} have changed since this run was submitted; repeat its command, "
                "which starts a new run"
            )
        digests[SOURCES_DIGEST_KEY] = digest
    return {**config, **digests}


def without_digests(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config without the digests of `with_digests`."""
    return {key: value for key, value in config.items() if key not in (*_DIGEST_DESCRIPTIONS, SOURCES_DIGEST_KEY)}


def _list_files_by_digest_key(config: dict[str, Any]) -> dict[str, list[str]]:
    """Return the files that a config names, by the key of their digest."""
    agent, teacher = config.get("agent") or {}, config.get("teacher", {})
    # A fine-tuned model is also evaluated on the games in `transfer`.
    env_nodes = [config["env"], *(task["env"] for _, task in sorted(config.get("transfer", {}).items()))]
    texts = [node.get("env", node).get("text") for node in env_nodes]
    table_path = teacher.get("table") if teacher.get("_target_") == _OFFLINE_TEACHER_TARGET else None
    if isinstance(table_path, str):
        from llmrl.teachers.offline_planner import CORRECTED_TABLE, PUBLISHED_TABLE

        table_path = None if table_path in (PUBLISHED_TABLE, CORRECTED_TABLE) else table_path
    agents = [agent, *(member.get("agent") or {} for member in agent.get("members") or () if isinstance(member, dict))]
    values_by_key = {
        "prompts_digest": [config.get("prompts")],
        "adapter_digest": [config.get("llm", {}).get("adapter")],
        "table_digest": [table_path if isinstance(table_path, str) else None],
        "map_digest": _list_map_files(config["env"]),
        "text_digest": [text for text in texts if isinstance(text, str) and text.endswith((".yaml", ".yml"))],
        "personas_digest": [node.get("personas") or None for node in agents if isinstance(node, dict)],
    }
    return {key: [str(value) for value in values if value is not None] for key, values in values_by_key.items()}


def _list_map_files(env: Mapping[str, Any]) -> list[str]:
    """Return the map file, and `auto` if map or tiles of the native engine depend on installed packages."""
    if env.get("_target_") != _SUBSTRATE_TARGET:
        return []
    map_option = str(env["map"])
    files = [] if map_option in ("auto", "melting_pot", "own") or "\n" in map_option else [map_option]
    is_automatic = map_option == "auto" or ("pixels" in env["observe"] and env["tiles"] == "auto")
    return files + (["auto"] if env["engine"] == "native" and is_automatic else [])


def _compute_file_digest(key: str, path: Path) -> str:
    """Return the digest of a file or folder for a key of `_DIGEST_DESCRIPTIONS`, mostly 12 hexadecimal digits.

    Raises:
        ConfigError: the file cannot be read.
    """
    if key == "prompts_digest":
        from llmrl.llms.prompts import compute_folder_digest

        return compute_folder_digest(path)
    if key == "adapter_digest":
        from llmrl.core.errors import LLMError
        from llmrl.llms.local.lora import adapter_fingerprint

        try:
            return adapter_fingerprint(str(path))[:12]
        except LLMError as error:
            raise ConfigError(str(error)) from error
    if key == "map_digest" and str(path) == "auto":
        from llmrl.envs.substrate import install

        return "melting_pot" if install.is_available() else "own"
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"{_DIGEST_DESCRIPTIONS[key][1]}={path} cannot be read: {error.strerror or error}") from error


_DIGEST_DESCRIPTIONS = {
    "prompts_digest": ("the prompts in {} have", "prompts"),
    "adapter_digest": ("the adapter in {} has", "llm.adapter"),
    "table_digest": ("the plan table {} has", "teacher.table"),
    "map_digest": ("the map or the pictures that env.map and env.tiles name, {}, have", "env.map"),
    "text_digest": ("the text {} has", "env.text"),
    "personas_digest": ("the personas in {} have", "agent.personas"),
}
"""For each digest: subject of error messages, and the option that names the files."""


def compute_module_digest(names: Iterable[str]) -> str:
    """Return a digest, 12 hexadecimal digits, of the packages and modules that define some code; empty without any.

    It depends on all Python files of a package, without comments and layout, or on the version of an installed package.
    Nothing is imported.

    Args:
        names: dotted names of modules, classes or functions. Unknown names, the standard library and llmrl are ignored.
    """
    packages = sorted({name.partition(".")[0] for name in names} - _EXCLUDED_PACKAGES - {""})
    sources = [source for package in packages for source in _read_package_sources(package)]
    return hashlib.sha256(repr(sources).encode()).hexdigest()[:12] if sources else ""


@functools.cache  # later edits of a file do not change the imported code of this process
def _read_package_sources(package: str) -> tuple[str, ...]:
    """Return names and code of the files of a package, or its distributions if it is installed."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module without a spec, which was not loaded from a file
        spec = None
    if spec is None:
        return ()
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and spec.origin is not None and spec.has_location:
        files = [Path(spec.origin)]
    parent_folders = [folder.parent for folder in folders] or [file.parent for file in files]
    if any(next(folder.glob("*.dist-info"), None) for folder in parent_folders):
        return _list_distribution_versions(package)
    return tuple(f"{file.name} {_normalize_source(file.read_bytes())}" for file in files)


def _normalize_source(content: bytes) -> str:
    """Return the content of a Python file without comments and layout; unchanged if it is not valid."""
    with suppress(SyntaxError, ValueError):  # the import of the file reports these errors
        return ast.unparse(ast.parse(content))
    return repr(content)


def _list_distribution_versions(package: str) -> tuple[str, ...]:
    """Return name and version of the distributions of an installed top-level package."""
    from importlib.metadata import packages_distributions, version  # reads the metadata of all packages

    if declaring_packages := {entry.package for entry in entry_points() if entry.module.partition(".")[0] == package}:
        return tuple(sorted(declaring_packages))
    return tuple(sorted({f"{name} {version(name)}" for name in packages_distributions().get(package, ())}))
