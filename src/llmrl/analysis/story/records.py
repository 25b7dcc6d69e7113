"""Rows of metrics for a story, which leaves out runs with damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.metric_kinds import Kind
from llmrl.run.metrics import FILE_NAME, read_metrics


def read_rows(folder: Path, kind: Kind | None = None) -> list[dict[str, Any]]:
    """Return a run's rows of metrics, of one `kind` or all; empty if the file is missing or damaged.

    The tables of scores report damaged files.
    """
    path = folder / FILE_NAME
    try:
        return read_metrics(path, kind) if path.is_file() else []
    except RunFolderError:
        return []
