"""Copies of the user's modules in `sources/` of a run folder."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import create_folder, read_bytes
from llmrl.core.module_sources import collected_files, module_content
from llmrl.run.files import write_bytes

FOLDER = "sources"
KEY = "sources_digest"
"""Key of a config: digest of the modules outside llmrl that its parts come from; absent without such modules."""


def sources_of(config: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return the files with the digest in a config that was composed in this process; nothing without a digest.

    Keys are paths relative to the folder on `sys.path`.
    """
    return collected_files(config.get(KEY, ""))


def save_sources(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write `files` to `sources/` in the run folder `folder`, unless that exists.

    Raises:
        RunFolderError: the folder cannot be written.
    """
    if not files or (folder / FOLDER).exists():
        return
    partial = folder / f"{FOLDER}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for path, content in files.items():
        create_folder((partial / path).parent, folder)
        write_bytes(partial / path, content, folder)
    partial.rename(folder / FOLDER)


def changed_sources(folder: Path) -> list[str]:
    """Return the files in `sources/` of a run folder whose modules are different or missing now, as relative paths.

    Raises:
        RunFolderError: a file cannot be read, or is a link.
    """
    copies = {path.relative_to(folder / FOLDER): path for path in sorted((folder / FOLDER).rglob("*.py"))}
    try:
        return [str(path) for path, copy in copies.items() if module_content(_name(path)) != read_bytes(copy, folder)]
    except OSError as error:
        raise RunFolderError(f"cannot read {folder / FOLDER}: {error.strerror or error}") from error


def _name(path: Path) -> str:
    """Return the dotted name of the module in a file."""
    return ".".join((path.parent if path.stem == "__init__" else path.with_suffix("")).parts)
