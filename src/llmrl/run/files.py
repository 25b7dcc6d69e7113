"""Files of runs: atomic writes of small files, and files to which a run appends lines.

Readers never see an incomplete small file, even after a crash. When a run resumes, its line files are cut to their
lengths at the checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypedDict

from llmrl.core.atomic_files import atomic_write, describe_write_error
from llmrl.core.errors import DamagedFileError, RunFolderError
from llmrl.core.folder_files import find_symlink, open_file, read_bytes
from llmrl.core.plain_data import read_json_object
from llmrl.core.secrets import redact, redact_nested

log = logging.getLogger(__name__)


@contextmanager
def report_write_errors(path: Path) -> Iterator[None]:
    """Return a context for writes to `path`.

    Raises:
        RunFolderError: a write failed with an OSError; the message gives the reason.
    """
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {describe_write_error(path, error)}") from error


def write_atomic(path: Path, text: str, durable: bool = True) -> None:
    """Write `text` to `path` as UTF-8, with secrets redacted, atomically; `durable` as in `atomic_write`.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    write_bytes(path, redact(text).encode("utf-8"), durable)


def write_bytes(path: Path, content: bytes, durable: bool = True) -> None:
    """Write `content` to `path` atomically; `durable` as in `atomic_write`.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    with report_write_errors(path), atomic_write(path, durable=durable) as file:
        file.write(content)


def write_json(path: Path, content: Any, durable: bool = True) -> None:
    """Write `content` to `path` as indented JSON, secrets redacted, atomically.

    Numbers that are not finite become null, arrays become lists. RunFolderError: the folder cannot be written.
    """
    text = json.dumps(redact_nested(_to_json_types(content)), indent=2, ensure_ascii=False, allow_nan=False)
    write_atomic(path, text + "\n", durable)


def write_json_script(path: Path, function: str, key: str, content: Any) -> None:
    """Write a JavaScript file that calls `function(key, content)`, atomically.

    A page opened from disk may load scripts, but not JSON files. `<` and non-ASCII characters are escaped, so the
    content cannot close the script tag or break the line.
    """
    text = json.dumps([key, redact_nested(_to_json_types(content))], separators=(",", ":"), allow_nan=False)
    write_atomic(path, f"{function}(...{text});\n".replace("<", "\\u003c"))


def _to_json_types(value: Any) -> Any:
    """Return a value in types that JSON can represent; numbers that are not finite become None."""
    if isinstance(value, Mapping):
        return {str(key): _to_json_types(element) for key, element in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json_types(element) for element in value]
    if hasattr(value, "tolist"):  # NumPy arrays and scalars, tensors
        return _to_json_types(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a UTF-8 file with one JSON object per line; an empty list if there is no file.

    An unfinished last line is left out. Only a line feed ends a line, because texts may contain other Unicode line
    separators.

    Raises:
        DamagedFileError: a line is not JSON.
        RunFolderError: the file cannot be read.
    """
    lines: list[dict[str, Any]] = []
    try:
        for line in read_bytes(path).split(b"\n")[:-1]:
            lines.append(json.loads(line))
        return lines
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DamagedFileError(f"{path}: line {len(lines) + 1} is not JSON: {error}") from error
    except OSError as error:
        raise RunFolderError(f"{path} cannot be read: {error.strerror or error}") from error


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty if the file is missing or cannot be read."""
    try:
        return read_json_object(path)
    except (FileNotFoundError, ValueError):
        return {}


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


def check_no_links(folder: Path, excluded_patterns: Sequence[str] = ()) -> None:
    """Raise RunFolderError if `find_symlink` finds a symbolic link in `folder`."""
    if (link := find_symlink(folder, excluded_patterns)) is not None:
        raise RunFolderError(f"{link} is a symbolic link, which is not followed; replace it by a copy, or remove it")


class FilePosition(TypedDict):
    """A position in a file to resume from, as plain data for a checkpoint.

    Attributes:
        lines: number of lines before the position.
        sha256: SHA-256 of these lines, or of their extracted content (see `LineFile`), hexadecimal.
    """

    lines: int
    sha256: str


class LineFile:
    """A writer that appends UTF-8 lines to a file.

    Args:
        path: file; it need not exist.
        position: `position()` at the resumed checkpoint, to which the file is cut; None: the file is emptied.
        extract_content: function from complete lines to the bytes that the digest covers; None: all bytes.

    Raises:
        RunFolderError: the file has other lines before `position`, or cannot be written.
    """

    def __init__(
        self, path: Path, position: FilePosition | None = None, extract_content: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._path, self._extract_content = path, extract_content or bytes
        self._n_lines = n_lines = 0 if position is None else position["lines"]
        with report_write_errors(path):
            self._file = open_file(path, "a+b")
            self._file.seek(0)
            data = self._file.read()
            complete_lines = data.split(b"\n")[:-1]
            if len(complete_lines) < n_lines:
                raise RunFolderError(
                    f"{path} has {len(complete_lines)} lines but the checkpoint was written at {n_lines}: the file has "
                    "been cut or replaced. Start this run anew with rerun=true, which moves the old content aside."
                )
            self._size = sum(len(line) + 1 for line in complete_lines[:n_lines])
            self._hash = hashlib.sha256(self._extract_content(data[: self._size]))
            if position is not None and self._hash.hexdigest() != position["sha256"]:
                raise RunFolderError(
                    f"{path} differs from what was written before the checkpoint: one of its first {n_lines} lines has "
                    "been changed. Start this run anew with rerun=true, which moves the old content aside."
                )
            if len(complete_lines) > n_lines:
                log.info("%s: dropping %d lines written after the checkpoint", path, len(complete_lines) - n_lines)
            self._file.truncate(self._size)

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, given without line feeds, with secrets redacted.

        Raises:
            RunFolderError: the file cannot be written.
        """
        new_lines = list(lines)
        data = redact("".join(f"{line}\n" for line in new_lines)).encode("utf-8", "replace")
        with report_write_errors(self._path):
            self._file.write(data)
            self._file.flush()
        self._n_lines += len(new_lines)
        self._size += len(data)
        self._hash.update(self._extract_content(data))

    def write_object(self, content: Mapping[str, Any]) -> None:
        """Append `content` as a line of JSON; raise RunFolderError if the file cannot be written."""
        self.write([json.dumps(content, allow_nan=False, ensure_ascii=False)])

    def position(self) -> FilePosition:
        """Sync the file to disk and return its end, which a checkpoint stores as the position to resume from.

        Raises:
            RunFolderError: the file was removed, replaced or changed (`check`).
        """
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self.check()
        return {"lines": self._n_lines, "sha256": self.digest}

    @property
    def digest(self) -> str:
        """SHA-256 of the lines written so far, as in `FilePosition`, hexadecimal."""
        return self._hash.hexdigest()

    def check(self) -> None:
        """Raise RunFolderError if the file was removed or replaced, or has another size than was written."""
        try:
            path_stat, file_stat = self._path.stat(), os.fstat(self._file.fileno())
        except OSError as error:
            raise self._make_modification_error(f"cannot be found any more ({error.strerror})") from error
        if not os.path.samestat(path_stat, file_stat):
            raise self._make_modification_error("is another file now")
        if path_stat.st_size != self._size:
            raise self._make_modification_error(f"has {path_stat.st_size} bytes instead of {self._size}")

    def _make_modification_error(self, change: str) -> RunFolderError:
        return RunFolderError(
            f"{self._path} {change}: it was removed, replaced or changed during the run, so measurements are lost. "
            "Start this run anew with rerun=true, which moves the old content aside"
        )

    def close(self) -> None:
        """Close the file. Lines that could not be written, for which `write` raised an error, are lost."""
        with suppress(OSError):
            self._file.close()
