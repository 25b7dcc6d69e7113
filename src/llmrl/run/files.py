"""Writing small files so that a reader, or a crash, never meets half of one."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` by `text` (UTF-8) in one step: write beside it, then rename over it.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise RunFolderError(f"cannot write {path}: {error.strerror or error}") from error


def write_json(path: Path, content: Any) -> None:
    """Replace `path` by `content` as indented JSON, in one step."""
    write_atomic(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def job_id() -> str:
    """The id of the scheduler's job this process belongs to (`123`, or `123_4` in a job array), or an empty string."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")
