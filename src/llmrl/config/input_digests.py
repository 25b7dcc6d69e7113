"""Digests of files and code outside the config that results depend on.

The digests are in the config, so the hash in the name of a run folder depends on the content of these files.
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

from llmrl.config.permissions import code_names
from llmrl.core.errors import ConfigError
from llmrl.core.installed import entry_points
from llmrl.run.config_hash import drop_excluded_keys

SOURCES = "sources_digest"
"""Key of a config: digest of the modules outside llmrl that its parts come from; absent without such modules."""
_NOT_USER_CODE = frozenset({"llmrl", "hydra_plugins", *sys.stdlib_module_names})
"""Top-level packages whose code has no digest."""
_SUBSTRATE = "llmrl.envs.substrate.factory.substrate_env"
_WITH_TABLE = "llmrl.teachers.teacher_factory.offline_teacher"


def with_digests(config: dict[str, Any], only: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the resolved config with a digest for each kind of file that it refers to, or for those in `only`.

    The digests are `prompts_digest` (the user's own prompts), `adapter_digest` (adapter of a local model),
    `table_digest` (plan table from a file), `text_digest` (game texts from files), `personas_digest` (personas of
    players from files), `map_digest` (map and pictures of a society's games, if they are files or depend on installed
    packages), and `sources_digest` (modules outside llmrl that define parts; `module_digest`).

    Raises:
        ConfigError: a file is missing, or has changed since the run was submitted.
    """
    digests: dict[str, str] = {}
    for key, places in _file_places(config).items():
        if not places or (only is not None and key not in only):
            continue
        first, *others = file_digests = [_digest(key, Path(place).expanduser()) for place in places]
        digests[key] = hashlib.sha256(" ".join(file_digests).encode()).hexdigest()[:12] if others else first
        if config.get(key, digests[key]) != digests[key]:
            subject = _FILES[key][0].format(", ".join(places))
            raise ConfigError(
                f"{subject} changed since this run was submitted; repeat its command, which starts a new run"
            )
    names = sorted(set(code_names(drop_excluded_keys(config)))) if only is None else []
    if digest := module_digest(names):
        if config.get(SOURCES, digest) != digest:
            raise ConfigError(
                f"the modules of {', '.join(names)} have changed since this run was submitted; repeat its command, "
                "which starts a new run"
            )
        digests[SOURCES] = digest
    return {**config, **digests}


def without_digests(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as it was before `with_digests`."""
    return {key: value for key, value in config.items() if key not in (*_FILES, SOURCES)}


def _file_places(config: dict[str, Any]) -> dict[str, list[str]]:
    """Return the files that a config refers to, by the key of their digest."""
    agent, teacher = config.get("agent") or {}, config.get("teacher", {})
    # Texts of the game, and of the games on which a fine-tuned model is evaluated.
    env_nodes = [config["env"], *(task["env"] for _, task in sorted(config.get("transfer", {}).items()))]
    texts = [node.get("env", node).get("text") for node in env_nodes]
    table = teacher.get("table") if teacher.get("_target_") == _WITH_TABLE else None
    if isinstance(table, str):
        from llmrl.teachers.offline_planner import CORRECTED, PUBLISHED

        table = None if table in (PUBLISHED, CORRECTED) else table
    players = [agent, *(member.get("agent") or {} for member in agent.get("members") or () if isinstance(member, dict))]
    places = {
        "prompts_digest": [config.get("prompts")],
        "adapter_digest": [config.get("llm", {}).get("adapter")],
        "table_digest": [table if isinstance(table, str) else None],
        "map_digest": _maps(config["env"]),
        "text_digest": [text for text in texts if isinstance(text, str) and text.endswith((".yaml", ".yml"))],
        "personas_digest": [player.get("personas") or None for player in players if isinstance(player, dict)],
    }
    return {key: [str(place) for place in found if place is not None] for key, found in places.items()}


def _maps(env: Mapping[str, Any]) -> list[str]:
    """Return the map file, and `auto` if its meaning on the native engine depends on installed packages."""
    if env.get("_target_") != _SUBSTRATE:
        return []
    map_name = str(env["map"])
    files = [] if map_name in ("auto", "melting_pot", "own") or "\n" in map_name else [map_name]
    auto = [map_name] if map_name == "auto" else [env["tiles"]] if "pixels" in env["observe"] else []
    return files + (auto if env["engine"] == "native" and auto == ["auto"] else [])


def _digest(key: str, path: Path) -> str:
    """Return the digest of a file or folder for a key of `_FILES`, 12 hexadecimal digits.

    Raises:
        ConfigError: the file cannot be read.
    """
    if key == "prompts_digest":
        from llmrl.llms.prompts import folder_digest

        return folder_digest(path)
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
        raise ConfigError(f"{_FILES[key][1]}={path} cannot be read: {error.strerror or error}") from error


_FILES = {
    "prompts_digest": ("the prompts in {} have", "prompts"),
    "adapter_digest": ("the adapter in {} has", "llm.adapter"),
    "table_digest": ("the plan table {} has", "teacher.table"),
    "map_digest": ("the map or the pictures that env.map and env.tiles name, {}, have", "env.map"),
    "text_digest": ("the text {} has", "env.text"),
    "personas_digest": ("the personas in {} have", "agent.personas"),
}
"""For each digest in a config: text for messages, and the option that names the files."""


def module_digest(names: Iterable[str]) -> str:
    """Return 12 hexadecimal digits for the packages, and the modules without a package, that hold named code.

    They depend on all Python files of a package but not on comments and layout, and on the version of an installed
    package. Empty without such code. Nothing is imported.

    Args:
        names: dotted names of modules, classes or functions; unknown names, the standard library and llmrl are left
            out.
    """
    packages = sorted({name.partition(".")[0] for name in names} - _NOT_USER_CODE - {""})
    entries = [entry for package in packages for entry in _entries(package)]
    return hashlib.sha256(repr(entries).encode()).hexdigest()[:12] if entries else ""


@functools.cache  # as imported: later edits of a file do not change the code of this process
def _entries(package: str) -> tuple[str, ...]:
    """Return the code of the files of a package, or the version if it is installed."""
    try:
        spec = find_spec(package)
    except ValueError:  # a module that was made without a file
        spec = None
    if spec is None:
        return ()
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    if not folders and spec.origin is not None and spec.has_location:
        files = [Path(spec.origin)]
    sites = [folder.parent for folder in folders] or [file.parent for file in files]
    if any(next(site.glob("*.dist-info"), None) for site in sites):
        return _versions(package)
    return tuple(f"{file.name} {_code(file.read_bytes())}" for file in files)


def _code(content: bytes) -> str:
    """Return the content of a Python file without comments and layout; unchanged if it is not valid."""
    with suppress(SyntaxError, ValueError):  # the import reports them
        return ast.unparse(ast.parse(content))
    return repr(content)


def _versions(package: str) -> tuple[str, ...]:
    """Return name and version of the distributions of an installed top-level package."""
    from importlib.metadata import packages_distributions, version  # reads the metadata of all packages

    if declared := {entry.package for entry in entry_points() if entry.module.partition(".")[0] == package}:
        return tuple(sorted(declared))
    return tuple(sorted({f"{name} {version(name)}" for name in packages_distributions().get(package, ())}))
