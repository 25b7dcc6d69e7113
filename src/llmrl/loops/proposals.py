"""`proposals.jsonl`: every vector that a search tried, what it returned and why it was proposed, as it happens."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.run.files import read_lines

FILE_NAME = "proposals.jsonl"


class ProposalLog:
    """Appends lines to `proposals.jsonl` in a run folder.

    Args:
        folder: the run folder.
        lines: length to which an existing file is cut back first: `position()` at the checkpoint that is resumed, or 0.

    Raises:
        RunFolderError: the file has fewer lines, or cannot be written.
    """

    def __init__(self, folder: Path, lines: int = 0) -> None:
        path = folder / FILE_NAME
        try:
            self._file = path.open("ab")
            whole = path.read_bytes().split(b"\n")[:-1]
            if len(whole) < lines:
                raise RunFolderError(
                    f"{path} has {len(whole)} lines but the checkpoint was written at {lines}: the file has been cut "
                    "or replaced. Start this run anew with rerun=true, which moves the old content aside."
                )
            self._file.truncate(sum(len(line) + 1 for line in whole[:lines]))
        except OSError as error:
            raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error
        self._lines = lines

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of JSON."""
        self._file.write((json.dumps(line, allow_nan=False, ensure_ascii=False) + "\n").encode("utf-8", "replace"))
        self._file.flush()
        self._lines += 1

    def position(self) -> int:
        """Lines written so far, synced to disk: what a checkpoint stores as the place to resume from."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
        return self._lines

    def close(self) -> None:
        self._file.close()


def read_proposals(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's `proposals.jsonl`; none where there is no such file."""
    return read_lines(folder / FILE_NAME)
