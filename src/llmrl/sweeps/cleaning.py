"""Search for files of runs that are no longer needed, and their removal. Symbolic links are never followed."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_folder
from llmrl.results.run_records import UNFINISHED_STATES, RunRecord
from llmrl.run.folder import seed_of
from llmrl.run.queued import read_queued

KINDS = {
    "backups": "content that reruns have moved aside (backup_<k>/)",
    "checkpoints": "checkpoints of finished runs, which can then no longer be evaluated or used by other runs",
    "launches": "output of jobs and files of backends (.sweeps/ in an output root), of launches that have ended",
    "unfinished": "folders of runs that are neither finished, running nor waiting, with checkpoints and paid replies",
}
"""Kinds of files and folders that can be removed, with descriptions."""


def removable(folder: Path, runs: Sequence[RunRecord], kinds: Sequence[str]) -> list[Path]:
    """Return the files and folders of `kinds` that can be removed, including links; none of runs that run or wait."""
    paths: list[Path] = []
    idle = [run for run in runs if run.state not in ("running", "queued")]
    for run in idle:
        if "unfinished" in kinds and run.state in UNFINISHED_STATES:
            paths.append(run.folder)
            continue
        if "backups" in kinds:
            paths += sorted(run.folder.glob("backup_*"))
        if "checkpoints" in kinds and run.state == "finished":
            paths += sorted(run.folder.glob("checkpoints"))
    if "launches" in kinds:
        active = [read_queued(run.folder) for run in runs if run.state in ("running", "queued")]
        busy = {Path(launch_record.sweep) for launch_record in active if launch_record is not None}
        paths += [launch for launch in _launches(folder.absolute()) if launch not in busy]
    return paths


def _launches(folder: Path) -> Iterator[Path]:
    """Yield the contents of the folders `.sweeps`, in order; no link is followed."""
    for place, folders, _ in os.walk(folder):
        folders.sort()
        if ".sweeps" in folders:
            folders.remove(".sweeps")
            launches = Path(place) / ".sweeps"
            yield from [launches] if launches.is_symlink() else sorted(launches.iterdir())


def size(path: Path) -> int:
    """Return the size of a file or folder, bytes; targets of links are not counted."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return path.lstat().st_size
    return sum((Path(place) / name).lstat().st_size for place, _, names in os.walk(path) for name in names)


def remove(folder: Path, path: Path) -> None:
    """Remove a file or folder, and the folder of a group of runs if it becomes empty.

    Every folder of the path is opened without following links and kept open, so a folder that is replaced by a link
    meanwhile is not followed either. Links inside are removed themselves.

    Args:
        folder: folder that the user has named.
        path: path inside `folder`, or `folder` itself.

    Raises:
        RunFolderError: the path is a link, leads through one, or cannot be removed.
    """
    root, names = _path_from_trusted(folder, path)
    try:
        with open_folder(root, names[:-1]) as parent_fd:
            mode = os.lstat(names[-1], dir_fd=parent_fd).st_mode
            if stat.S_ISLNK(mode):
                raise RunFolderError(f"{path} is a symbolic link, which is not removed")
            if stat.S_ISDIR(mode):
                shutil.rmtree(names[-1], dir_fd=parent_fd)
            else:
                os.unlink(names[-1], dir_fd=parent_fd)
            empty = seed_of(path) is not None and len(names) > 1 and not os.listdir(parent_fd)  # noqa: PTH208
        if empty:
            with open_folder(root, names[:-2]) as parent_fd:
                os.rmdir(names[-2], dir_fd=parent_fd)
    except OSError as error:
        raise RunFolderError(
            f"{path} is not removed: {error.strerror or error} (is there a link in the path?)"
        ) from error


def _path_from_trusted(folder: Path, path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return a trusted folder, which may contain links, and the names from there to `path`, at least one."""
    root = folder.absolute()
    if path == root:
        root = root.parent
    return root, path.relative_to(root).parts
