"""Files that appear whole or not at all, and what is said where a disk does not take them."""

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
"""What a write ends with where there is no room: on the disk, in a quota, or under a limit on the size of files."""

NO_ROOM = 1 << 20
"""Bytes free on a disk below which it is taken for full, whatever a write says."""


@contextmanager
def beside(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to, which takes the place of `path` in one step when the block ends, and outlives a power cut.

    If the block or a write fails, what was written is removed and `path` is as it was.

    Raises:
        OSError: it cannot be written.
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
    """Make renames inside `folder` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file of ours if it can be: a second failure must not hide the first."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return


def why(path: Path, error: OSError, elsewhere: str = "output_root=<folder>") -> str:
    """Say why `path` could not be written; where there is no room, how much there is and what would help.

    Args:
        path: the file or folder.
        error: of writing it.
        elsewhere: the option that chooses another place.
    """
    reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
    folder = next((each for each in (path, *path.absolute().parents) if each.is_dir()), Path("/"))
    try:
        free = shutil.disk_usage(folder).free
    except OSError:
        free = NO_ROOM
    # An encoder in another process says of a full disk only that it has ended.
    if error.errno not in FULL and free >= NO_ROOM:
        return reason
    room = f"{free / 1e6:,.1f} MB are free in {folder}"
    limited = {errno.EDQUOT: "; your quota is used up", errno.EFBIG: "; files may not be larger here (ulimit -f)"}
    return (
        f"{reason}: {room}{limited.get(error.errno or 0, '')}. Make room (`llmrl-sweep clean` shows what runs no "
        f"longer need) and repeat the same command, or choose another place with {elsewhere}"
    )
