"""Writing small files so that a reader, or a crash, never meets half of one; reading them without trusting them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.disk import beside, why
from llmrl.core.errors import RunFolderError
from llmrl.core.secrets import redact, redact_all


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8), secrets redacted, in one step: write beside it, then rename over it.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_bytes(path, redact(text).encode("utf-8"))


def write_bytes(path: Path, content: bytes) -> None:
    """Replace `path` by `content` in one step.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        with beside(path) as file:
            file.write(content)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {why(path, error)}") from error


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by `content` as indented JSON, in one step; numbers that are not finite become null."""
    write_atomic(path, json.dumps(redact_all(_plain(content)), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


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
