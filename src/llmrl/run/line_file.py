"""Files to which a run appends lines, and which are cut to their length at the checkpoint when the run resumes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypedDict

from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.core.secrets import redact

log = logging.getLogger(__name__)


class FilePosition(TypedDict):
    """A place in a file to resume from, as plain data for a checkpoint.

    Attributes:
        lines: number of lines before it.
        sha256: SHA-256 of their content (see `LineFile`), hexadecimal.
    """

    lines: int
    sha256: str


class LineFile:
    """A writer that appends UTF-8 lines to a file.

    Args:
        path: file; it need not exist.
        position: `position()` at the resumed checkpoint, to which the file is cut; None: the file is emptied.
        content: function from complete lines to the bytes that the digest covers; None: all bytes.

    Raises:
        RunFolderError: the file has other lines before `position`, or cannot be written.
    """

    def __init__(
        self, path: Path, position: FilePosition | None = None, content: Callable[[bytes], bytes] | None = None
    ) -> None:
        self._content = content or bytes
        lines = 0 if position is None else position["lines"]
        try:
            self._file = open_file(path, "a+b")
            self._file.seek(0)
            data = self._file.read()
            complete = data.split(b"\n")[:-1]
            if len(complete) < lines:
                raise RunFolderError(
                    f"{path} has {len(complete)} lines but the checkpoint was written at {lines}: the file has been "
                    "cut or replaced. Start this run anew with rerun=true, which moves the old content aside."
                )
            self._size = sum(len(line) + 1 for line in complete[:lines])
            self._hash = hashlib.sha256(self._content(data[: self._size]))
            if position is not None and self._hash.hexdigest() != position["sha256"]:
                raise RunFolderError(
                    f"{path} differs from what was written before the checkpoint: one of its first {lines} lines has "
                    "been changed. Start this run anew with rerun=true, which moves the old content aside."
                )
            if len(complete) > lines:
                log.info("%s: dropping %d lines written after the checkpoint", path, len(complete) - lines)
            self._file.truncate(self._size)
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {describe_write_error(path, error)}") from error
        self._lines, self._path = lines, path

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, given without line feeds, with secrets redacted.

        Raises:
            RunFolderError: the file cannot be written.
        """
        new_lines = list(lines)
        data = redact("".join(f"{line}\n" for line in new_lines)).encode("utf-8", "replace")
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise RunFolderError(f"cannot write {self._path}: {describe_write_error(self._path, error)}") from error
        self._lines += len(new_lines)
        self._size += len(data)
        self._hash.update(self._content(data))

    def write_object(self, content: Mapping[str, Any]) -> None:
        """Append a line of JSON; errors as `write`."""
        self.write([json.dumps(content, allow_nan=False, ensure_ascii=False)])

    def position(self) -> FilePosition:
        """Sync the file to disk and return its end, which a checkpoint stores as the place to resume from.

        Raises:
            RunFolderError: the file has been changed, see `check`.
        """
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self.check()
        return {"lines": self._lines, "sha256": self.digest}

    @property
    def digest(self) -> str:
        """SHA-256 of the content of all lines, hexadecimal."""
        return self._hash.hexdigest()

    def check(self) -> None:
        """Raise RunFolderError if the file was removed or replaced, or has another size than was written."""
        try:
            path_stat, file_stat = self._path.stat(), os.fstat(self._file.fileno())
        except OSError as error:
            raise self._modification_error(f"cannot be found any more ({error.strerror})") from error
        if not os.path.samestat(path_stat, file_stat):
            raise self._modification_error("is another file now")
        if path_stat.st_size != self._size:
            raise self._modification_error(f"has {path_stat.st_size} bytes instead of {self._size}")

    def _modification_error(self, change: str) -> RunFolderError:
        return RunFolderError(
            f"{self._path} {change}: it was removed, replaced or changed during the run, so measurements are lost. "
            "Start this run anew with rerun=true, which moves the old content aside"
        )

    @property
    def closed(self) -> bool:
        """True once the file is closed."""
        return self._file.closed

    def close(self) -> None:
        """Close the file. Lines that a full disk did not take are lost, as `write` has reported."""
        with contextlib.suppress(OSError):
            self._file.close()
