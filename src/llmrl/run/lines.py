"""Files that grow line by line while a run goes on, and are cut back to a checkpoint when it is resumed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.core.secrets import redact

log = logging.getLogger(__name__)


class LineFile:
    """Appends lines of UTF-8 to a file.

    Args:
        path: the file; need not exist.
        lines: length to which it is cut back first: `position()` at the checkpoint that is resumed, or 0.

    Raises:
        RunFolderError: the file has fewer lines, or cannot be written.
    """

    def __init__(self, path: Path, lines: int = 0) -> None:
        try:
            self._file = path.open("ab")
            whole = path.read_bytes().split(b"\n")[:-1]
            if len(whole) < lines:
                raise RunFolderError(
                    f"{path} has {len(whole)} lines but the checkpoint was written at {lines}: the file has been cut "
                    "or replaced. Start this run anew with rerun=true, which moves the old content aside."
                )
            if len(whole) > lines:
                log.info("%s: dropping %d lines written after the checkpoint", path, len(whole) - lines)
            self._file.truncate(sum(len(line) + 1 for line in whole[:lines]))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error
        self._lines = lines

    def write(self, lines: Iterable[str]) -> None:
        """Append lines, each without its end, secrets redacted."""
        written = list(lines)
        self._file.write(redact("".join(f"{line}\n" for line in written)).encode("utf-8", "replace"))
        self._file.flush()
        self._lines += len(written)

    def position(self) -> int:
        """Lines written so far, synced to disk: what a checkpoint stores as the place to resume from."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
        return self._lines

    @property
    def closed(self) -> bool:
        return self._file.closed

    def close(self) -> None:
        self._file.close()
