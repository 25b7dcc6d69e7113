"""File modes that allow only the owner of a run to read its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER_ONLY_UMASK = 0o077
"""The umask that gives new folders the mode 0700 and new files 0600."""
_initial_umask: int | None = None  # umask before the first call of `restrict_file_permissions`


def restrict_file_permissions(private: bool = True) -> None:
    """Make files that this process and its children create from now on readable by their owner alone.

    If not `private`, restore the umask with which this process was started.
    """
    global _initial_umask
    previous_umask = os.umask(OWNER_ONLY_UMASK)
    _initial_umask = previous_umask if _initial_umask is None else _initial_umask
    if not private:
        os.umask(_initial_umask)


def restrict_permissions_like(folder: Path) -> None:
    """Call `restrict_file_permissions`; `private` is whether `folder` is missing or accessible by its owner only."""
    restrict_file_permissions(not folder.exists() or not folder.stat().st_mode & OWNER_ONLY_UMASK)


@contextmanager
def create_files_privately(private: bool) -> Iterator[None]:
    """Return a context in which, if `private`, only their owner can read new files of this process.

    Concurrent contexts must have the same argument, because the umask applies to the whole process.
    """
    previous_umask = os.umask(OWNER_ONLY_UMASK) if private else None
    try:
        yield
    finally:
        if previous_umask is not None:
            os.umask(previous_umask)


def make_folder(folder: Path, private: bool) -> None:
    """Create a folder and its missing parents; if `private`, with mode 0700, even if the folder existed.

    Raises:
        OSError: the folder cannot be created.
    """
    # Modes instead of a umask, which would change the files of other threads.
    for path in (*reversed(folder.parents), folder):
        path.mkdir(0o700 if private else 0o777, exist_ok=True)
    folder_stat = folder.stat()
    if private and folder_stat.st_mode & OWNER_ONLY_UMASK and folder_stat.st_uid == os.getuid():
        folder.chmod(folder_stat.st_mode & 0o700)
