"""Rows of metrics for a story, which goes on without a run whose record is damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.run_context import Kind
from llmrl.run.metrics import FILE_NAME, read_metrics


def rows_of(folder: Path, kind: Kind | None = None) -> list[dict[str, Any]]:
    """Return a run's rows of metrics, of one `kind` or all; none where there is no file or it is damaged.

    The tables of scores name a damaged file and leave the run out.
    """
    path = folder / FILE_NAME
    try:
        return read_metrics(path, kind) if path.is_file() else []
    except RunFolderError:
        return []
