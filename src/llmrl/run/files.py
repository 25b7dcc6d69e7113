"""Atomic writes of small files, so that a reader or a crash never meets an incomplete file; reading of JSON lines."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import find_link, read_bytes
from llmrl.core.secrets import redact, redact_nested


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8, secrets redacted) atomically, by a temporary file in the same folder.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_bytes(path, redact(text).encode("utf-8"))


def write_bytes(path: Path, content: bytes, root: Path | None = None) -> None:
    """Replace `path` by `content` atomically; `root` as in `atomic_write`.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        with atomic_write(path, root) as file:
            file.write(content)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {describe_write_error(path, error)}") from error


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by `content` as indented JSON, secrets redacted, atomically.

    Numbers that are not finite become null, arrays become lists. Raises RunFolderError as `write_atomic`.
    """
    write_atomic(path, json.dumps(redact_nested(_plain(content)), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_script(path: Path, function: str, key: str, content: Any) -> None:
    """Replace `path` by a script that calls `function(key, content)`, atomically.

    A page opened from disk may load scripts, but no other files. The text is ASCII without `<`, so no content can end
    the script or a line of it.
    """
    text = json.dumps([key, redact_nested(_plain(content))], separators=(",", ":"), allow_nan=False)
    write_atomic(path, f"{function}(...{text});\n".replace("<", "\\u003c"))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, tensors
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a UTF-8 file with one JSON object per line; an empty list if there is no file.

    An unfinished last line is left out. Only a line feed ends a line, because texts may hold Unicode's other line
    separators.

    Raises:
        RunFolderError: the file cannot be read.
    """
    try:
        return [json.loads(line) for line in read_bytes(path).split(b"\n")[:-1]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error


def inside(folder: Path, *names: str) -> Path:
    """Return the path `folder/<names>` inside a run folder; it need not exist.

    Raises:
        RunFolderError: a part of the path is a symbolic link, which the creator of the run folder may have planted.
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink():
            raise RunFolderError(
                f"{path} is a symbolic link, which is not followed when files are written; name its target with --out "
                "or output_root"
            )
    return path


def check_no_links(folder: Path, skipped: Sequence[str] = ()) -> None:
    """Raise RunFolderError if there is a symbolic link in `folder`, as in `find_link`."""
    if (link := find_link(folder, skipped)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed; replace it by a copy, or remove it")
