"""Atomic writes of files, and error messages for writes that fail."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a write for which there is no room: disk full, quota used up, file size limit."""

NO_ROOM = 1 << 20
"""Free bytes below which a disk counts as full, whatever the error number of the write."""


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a temporary file that atomically and durably (fsync) replaces `path` when the block ends.

    If the block or a write fails, the temporary file is removed and `path` is unchanged.

    Raises:
        OSError: the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_native_id()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        remove(temporary)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make renames inside `folder` survive a power cut (fsync), if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file if it exists. Failures are ignored, because they must not hide the error being handled."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def why(path: Path, error: OSError, elsewhere: str = "output_root=<folder>") -> str:
    """Return a text that says why `path` could not be written; if there is no room, also the free space and a remedy.

    Args:
        path: file or folder that was to be written.
        error: error of the write.
        elsewhere: option that chooses another folder, for the remedy.
    """
    reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
    folder = next((each for each in (path, *path.absolute().parents) if each.is_dir()), Path("/"))
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = NO_ROOM
    # The error of a video encoder in another process does not say that the disk is full.
    if error.errno not in FULL and free >= NO_ROOM:
        return reason
    room = f"{free / 1e6:,.1f} MB are free in {folder}"
    limited = {errno.EDQUOT: "; your quota is used up", errno.EFBIG: "; files may not be larger here (ulimit -f)"}
    return (
        f"{reason}: {room}{limited.get(error.errno or 0, '')}. Make room (`llmrl-sweep clean` shows what runs no "
        f"longer need) and repeat the same command, or choose another place with {elsewhere}"
    )
