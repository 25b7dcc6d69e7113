"""Atomic writes of small files, and reading of JSON lines.

Readers never see an incomplete file, even after a crash.
"""

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
    """Write `text` to `path` (UTF-8, secrets redacted) atomically, via a temporary file in the same folder.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_bytes(path, redact(text).encode("utf-8"))


def write_bytes(path: Path, content: bytes, root: Path | None = None) -> None:
    """Write `content` to `path` atomically; symbolic links below `root` are not followed (`atomic_write`).

    Raises:
        RunFolderError: the folder cannot be written.
    """
    try:
        with atomic_write(path, root) as file:
            file.write(content)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {describe_write_error(path, error)}") from error


def write_json(path: Path, content: Any) -> None:
    """Write `content` to `path` as indented JSON, secrets redacted, atomically.

    Numbers that are not finite become null, arrays become lists. Raises RunFolderError as `write_atomic`.
    """
    write_atomic(
        path, json.dumps(redact_nested(_to_json_types(content)), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    )


def write_json_script(path: Path, function: str, key: str, content: Any) -> None:
    """Write to `path` a script that calls `function(key, content)`, atomically.

    A page opened from disk may load scripts, but no other files. `<` and non-ASCII characters are escaped, so the
    content cannot close the script tag or break the line.
    """
    text = json.dumps([key, redact_nested(_to_json_types(content))], separators=(",", ":"), allow_nan=False)
    write_atomic(path, f"{function}(...{text});\n".replace("<", "\\u003c"))


def _to_json_types(value: Any) -> Any:
    """Return a value in types that JSON can represent; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_types(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(item) for item in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, tensors
        return _to_json_types(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
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


def path_inside(folder: Path, *names: str) -> Path:
    """Return the path `folder/<names>` inside a run folder; it need not exist.

    Raises:
        RunFolderError: a part of the path is a symbolic link, which the creator of the run folder may have planted.
    """
    path = folder
    for name in names:
        path = path / name
        if path.is_symlink():
            raise RunFolderError(
                f"{path} is a symbolic link, which is not followed when files are written; pass the link's target "
                "as --out or output_root"
            )
    return path


def check_no_links(folder: Path, skipped: Sequence[str] = ()) -> None:
    """Raise RunFolderError if there is a symbolic link in `folder`, as in `find_link`."""
    if (link := find_link(folder, skipped)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed; replace it by a copy, or remove it")
