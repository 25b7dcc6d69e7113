"""Digests of files outside the config that results depend on.

The digests are in the config, so the hash in the name of a run folder depends on the content of these files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.config.trust_options import code_names
from llmrl.core.errors import ConfigError
from llmrl.core.module_sources import collect
from llmrl.core.secrets import known_secrets, redact
from llmrl.run.config_hash import without_excluded
from llmrl.run.source_copies import KEY as SOURCES

_SUBSTRATE = "llmrl.envs.substrate.factory.substrate_env"
_WITH_TABLE = "llmrl.teachers.teacher_factory.offline_teacher"


def with_digests(config: dict[str, Any], only: Sequence[str] | None = None) -> dict[str, Any]:
    """Return the resolved config with a digest for each kind of file that it refers to, or for those in `only`.

    The digests are `prompts_digest` (the user's own prompts), `adapter_digest` (adapter of a local model),
    `table_digest` (plan table from a file), `text_digest` (game texts from files), `personas_digest` (personas of
    players from files), `map_digest` (map and pictures of a society's games, if they are files or depend on installed
    packages), and `sources_digest` (modules outside llmrl that define parts; `llmrl.core.module_sources`).

    Raises:
        ConfigError: a file is missing, has changed since the run was submitted, or is a module that holds a secret.
    """
    digests: dict[str, str] = {}
    for key, (template, find_files, digest_of) in _FILE_DIGESTS.items():
        places = find_files(config) if only is None or key in only else []
        if not places:
            continue
        file_digests = [digest_of(Path(place).expanduser()) for place in places]
        digests[key] = (
            file_digests[0]
            if len(file_digests) == 1
            else hashlib.sha256(" ".join(file_digests).encode()).hexdigest()[:12]
        )
        if config.get(key, digests[key]) != digests[key]:
            raise ConfigError(
                f"{template.format(', '.join(places))} changed since this run was submitted; repeat its command, which "
                "starts a new run"
            )
    if only is None and (digest := _sources_digest(config)):
        digests[SOURCES] = digest
    return {**config, **digests}


def _sources_digest(config: dict[str, Any]) -> str:
    """Return the digest of the modules outside llmrl that the parts of a config come from; empty without any.

    Raises:
        ConfigError: they have changed since the run was submitted, or hold a secret, which would be copied.
    """
    names = sorted(set(code_names(without_excluded(config))))
    sources = collect(names)
    for path, content in sources.files.items():
        text = content.decode("utf-8", "replace")
        if redact(text, known_secrets(include_resolved=False)) != text:
            raise ConfigError(
                f"{path} holds a secret and would be copied into run folders; read the secret from an environment "
                "variable instead"
            )
    if config.get(SOURCES, sources.digest) != sources.digest:
        raise ConfigError(
            f"{', '.join(sources.files) or ', '.join(names)} changed since this run was submitted; repeat its command, "
            "which starts a new run"
        )
    return sources.digest


def without_digests(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config as it was before `with_digests`."""
    return {key: value for key, value in config.items() if key not in (*_FILE_DIGESTS, SOURCES)}


def _prompts(config: dict[str, Any]) -> list[str]:
    return _to_list(config.get("prompts"))


def _to_list(place: Any) -> list[str]:
    return [] if place is None else [str(place)]


def _texts(config: dict[str, Any]) -> list[str]:
    """Return the text file of the game, if it has one."""
    text = config["env"].get("text")
    return [text] if isinstance(text, str) and text.endswith((".yaml", ".yml")) else []


def _maps(config: dict[str, Any]) -> list[str]:
    """Return the map file, and `auto` if its meaning on the native engine depends on installed packages."""
    env = config.get("env", {})
    if env.get("_target_") != _SUBSTRATE:
        return []
    map_name = str(env["map"])
    files = [] if map_name in ("auto", "melting_pot", "own") or "\n" in map_name else [map_name]
    auto = [map_name] if map_name == "auto" else [env["tiles"]] if "pixels" in env["observe"] else []
    return files + (auto if env["engine"] == "native" and auto == ["auto"] else [])


def _map_digest(path: Path) -> str:
    from llmrl.envs.substrate import install

    if str(path) != "auto":
        return _file_digest("env.map")(path)
    return "melting_pot" if install.available() else "own"


def _table(config: dict[str, Any]) -> list[str]:
    teacher = config.get("teacher", {})
    if teacher.get("_target_") != _WITH_TABLE:
        return []
    from llmrl.teachers.offline_planner import CORRECTED, PUBLISHED

    table = teacher.get("table")
    return [table] if isinstance(table, str) and table not in (PUBLISHED, CORRECTED) else []


def _adapter(config: dict[str, Any]) -> list[str]:
    return _to_list(config.get("llm", {}).get("adapter"))


def _adapter_digest(path: Path) -> str:
    from llmrl.core.errors import LLMError
    from llmrl.llms.local.adapter import adapter_fingerprint

    try:
        return adapter_fingerprint(str(path))[:12]
    except LLMError as error:
        raise ConfigError(str(error)) from error


def _folder_digest(path: Path) -> str:
    from llmrl.llms.prompts import folder_digest

    return folder_digest(path)


def _file_digest(option: str) -> Callable[[Path], str]:
    def digest(path: Path) -> str:
        try:
            return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        except OSError as error:
            raise ConfigError(f"{option}={path} cannot be read: {error.strerror or error}") from error

    return digest


def _personas(config: dict[str, Any]) -> list[str]:
    agent = config.get("agent") or {}
    players = [agent, *(member.get("agent") or {} for member in agent.get("members") or () if isinstance(member, dict))]
    return [player["personas"] for player in players if isinstance(player, dict) and player.get("personas")]


_FILE_DIGESTS: dict[str, tuple[str, Callable[[dict[str, Any]], list[str]], Callable[[Path], str]]] = {
    "prompts_digest": ("the prompts in {} have", _prompts, _folder_digest),
    "adapter_digest": ("the adapter in {} has", _adapter, _adapter_digest),
    "table_digest": ("the plan table {} has", _table, _file_digest("teacher.table")),
    "map_digest": ("the map or the pictures that env.map and env.tiles name, {}, have", _maps, _map_digest),
    "text_digest": ("the text {} has", _texts, _file_digest("env.text")),
    "personas_digest": ("the personas in {} have", _personas, _file_digest("agent.personas")),
}
"""For each key of the config: text for messages, and functions for the places of the files and the digest of one, 12
hexadecimal digits."""
