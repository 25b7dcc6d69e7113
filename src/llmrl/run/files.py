"""Writing small files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step: write beside it, then rename over it.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by `content` as indented JSON, in one step; numbers that are not finite become null."""
    write_atomic(path, json.dumps(_plain(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, tensors
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file with one JSON object a line, UTF-8; none where there is no such file.

    Only a line feed ends a line: texts may hold the other characters that Unicode breaks lines at.
    """
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def inside(folder: Path, *names: str) -> Path:
    """The folder that `names` lead to from a run folder, which need not be there yet.

    Raises:
        RunFolderError: a link leads elsewhere, and whoever made the run folder may have put it there.
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink():
            raise RunFolderError(f"{path} is a link; what is behind it is not written to unless you name it (--out)")
    return path
