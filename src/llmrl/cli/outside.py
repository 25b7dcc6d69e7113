"""Files outside the config that decide results: what they say belongs to which experiment a run is.

A digest of each stands in the config, and so in the hash that names the run's folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError

_WITH_TABLE = "llmrl.teachers.options.offline_teacher"


def with_digests(config: dict[str, Any]) -> dict[str, Any]:
    """The resolved config with `prompts_digest` (own prompts), `adapter_digest` (of a local model) and `table_digest`
    (a plan table that is a file), each only where there is one.

    Raises:
        ConfigError: there is no such file, or it does not say what it said when the run was submitted.
    """
    digests: dict[str, str] = {}
    for key, (what, where, find) in _OUTSIDE.items():
        place = where(config)
        if place is None:
            continue
        digests[key] = find(Path(place).expanduser())
        if config.get(key, digests[key]) != digests[key]:
            raise ConfigError(
                f"{what.format(place)} changed since this run was submitted; repeat its command, which makes a new run"
            )
    return {**config, **digests}


def _prompts(config: dict[str, Any]) -> str | None:
    folder: str | None = config["prompts"]
    return folder


def _table(config: dict[str, Any]) -> str | None:
    from llmrl.teachers.offline import CORRECTED, PUBLISHED

    teacher = config.get("teacher", {})
    table = teacher.get("table") if teacher.get("_target_") == _WITH_TABLE else None
    return table if isinstance(table, str) and table not in (PUBLISHED, CORRECTED) else None


def _adapter(config: dict[str, Any]) -> str | None:
    adapter: str | None = config["llm"].get("adapter")
    return adapter


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


def _table_digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    except OSError as error:
        raise ConfigError(f"teacher.table={path} cannot be read: {error.strerror or error}") from error


_OUTSIDE: dict[str, tuple[str, Callable[[dict[str, Any]], str | None], Callable[[Path], str]]] = {
    "prompts_digest": ("the prompts in {} have", _prompts, _folder_digest),
    "adapter_digest": ("the adapter in {} has", _adapter, _adapter_digest),
    "table_digest": ("the plan table {} has", _table, _table_digest),
}
"""Key in the config -> what it is, where it is (None: there is none), and its digest, 12 hexadecimal digits."""
