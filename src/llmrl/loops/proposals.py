"""`proposals.jsonl`: every vector that a search tried, what it returned and why it was proposed, as it happens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.run.files import read_lines
from llmrl.run.lines import LineFile

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
        self._file = LineFile(folder / FILE_NAME, lines)

    def write(self, line: Mapping[str, Any]) -> None:
        """One line of JSON."""
        self._file.write([json.dumps(line, allow_nan=False, ensure_ascii=False)])

    def position(self) -> int:
        """Lines written so far, synced to disk: what a checkpoint stores as the place to resume from."""
        return self._file.position()

    def close(self) -> None:
        self._file.close()


def read_proposals(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a run's `proposals.jsonl`; none where there is no such file."""
    return read_lines(folder / FILE_NAME)
