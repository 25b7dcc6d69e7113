"""What of a folder of runs is no longer needed, and removing it: nothing behind a link, whoever has put it there."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from llmrl.analysis.runs import UNFINISHED, RunRecord
from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_folder
from llmrl.run.folder_names import seed_of
from llmrl.run.queued import read_queued

KINDS = {
    "backups": "what reruns have moved aside (backup_<k>/)",
    "checkpoints": "checkpoints of finished runs: they cannot be evaluated or built on afterwards",
    "launches": "what jobs printed, and their backends' files (.sweeps/ in an output root), of launches that are over",
    "unfinished": "whole folders of runs that are neither finished nor run nor wait, with checkpoints and paid replies",
}
"""What can be removed, and what that means."""


def removable(folder: Path, runs: Sequence[RunRecord], kinds: Sequence[str]) -> list[Path]:
    """What of `kinds` there is to remove, links among it; nothing of a run that runs or waits."""
    found: list[Path] = []
    idle = [run for run in runs if run.state not in ("running", "queued")]
    for run in idle:
        if "unfinished" in kinds and run.state in UNFINISHED:
            found.append(run.folder)
            continue
        if "backups" in kinds:
            found += sorted(run.folder.glob("backup_*"))
        if "checkpoints" in kinds and run.state == "finished":
            found += sorted(run.folder.glob("checkpoints"))
    if "launches" in kinds:
        active = [read_queued(run.folder) for run in runs if run.state in ("running", "queued")]
        busy = {Path(queued.sweep) for queued in active if queued is not None}
        found += [launch for launch in _launches(folder.absolute()) if launch not in busy]
    return found


def _launches(folder: Path) -> Iterator[Path]:
    """What is in the folders `.sweeps`, in order; no link is followed."""
    for place, folders, _ in os.walk(folder):
        folders.sort()
        if ".sweeps" in folders:
            folders.remove(".sweeps")
            launches = Path(place) / ".sweeps"
            yield from [launches] if launches.is_symlink() else sorted(launches.iterdir())


def link_to(folder: Path, path: Path) -> Path | None:
    """The link that `path` is, or lies behind, as seen from `folder`; None if it is really there."""
    root, names = _way(folder, path)
    for i in range(len(names)):
        if (link := root.joinpath(*names[: i + 1])).is_symlink():
            return link
    return None


def size(path: Path) -> int:
    """Bytes in a file or folder; what links lead to is not counted."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return path.lstat().st_size
    return sum((Path(place) / name).lstat().st_size for place, _, names in os.walk(path) for name in names)


def remove(folder: Path, path: Path) -> None:
    """Remove a file or folder, and the folder of a group of runs that is empty then.

    Every folder on the way is opened as what it is and kept open, so one that is swapped for a link meanwhile leads
    nowhere. Links inside are removed themselves.

    Args:
        folder: that the user has named.
        path: in it, or it.

    Raises:
        RunFolderError: it lies behind a link, is one, or cannot be removed.
    """
    root, names = _way(folder, path)
    try:
        with open_folder(root, names[:-1]) as above:
            mode = os.lstat(names[-1], dir_fd=above).st_mode
            if stat.S_ISLNK(mode):
                raise RunFolderError(f"{path} is a link, which is left alone")
            if stat.S_ISDIR(mode):
                shutil.rmtree(names[-1], dir_fd=above)
            else:
                os.unlink(names[-1], dir_fd=above)
            empty = seed_of(path) is not None and len(names) > 1 and not os.listdir(above)  # noqa: PTH208
        if empty:
            with open_folder(root, names[:-2]) as above:
                os.rmdir(names[-2], dir_fd=above)
    except OSError as error:
        raise RunFolderError(f"{path} is left alone: {error.strerror or error} (does a link lead there?)") from error


def _way(folder: Path, path: Path) -> tuple[Path, tuple[str, ...]]:
    """A folder that may be reached in any way, for the user has named it, and the names from there to `path`, at least
    one."""
    root = folder.absolute()
    if path == root:
        root = root.parent
    return root, path.relative_to(root).parts
