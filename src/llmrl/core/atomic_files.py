"""Atomic writes of files, and error messages for writes that fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from llmrl.core.folder_files import open_folder

DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers of a failed write: disk full, quota used up, maximum file size reached."""

MIN_FREE_BYTES = 1 << 20
"""Free bytes below which a disk counts as full, regardless of the error number."""


@contextmanager
def atomic_write(path: Path, root: Path | None = None, durable: bool = True) -> Iterator[IO[bytes]]:
    """Yield a temporary file that atomically replaces `path` when the block ends.

    If the block or a write fails, the temporary file is removed and `path` is unchanged. A symbolic link at `path` is
    replaced, not followed.

    Args:
        path: file.
        root: ancestor folder of `path`. Symbolic links below it are not followed. Defaults to the parent of `path`.
        durable: whether to wait until the file is on the disk (fsync), where it survives a power failure.

    Raises:
        OSError: the file cannot be written.
    """
    root = path.parent if root is None else root
    *folders, name = path.relative_to(root).parts
    temporary_name = f".{name}.{os.getpid()}.{threading.get_native_id()}.tmp"
    with open_folder(root, folders) as parent_fd:
        try:
            with suppress(FileNotFoundError):
                os.unlink(temporary_name, dir_fd=parent_fd)  # left by a killed process with the same ids
            descriptor = os.open(temporary_name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=parent_fd)
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary_name, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary_name, dir_fd=parent_fd)
            raise
        if durable:
            os.fsync(parent_fd)


def fsync_folder(folder: Path) -> None:
    """Write renames inside `folder` to the disk (fsync), if the file system supports it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file_ignoring_errors(path: Path) -> None:
    """Remove a file if it exists.

    Errors are ignored, so that cleanup in an exception handler does not replace the original error.
    """
    with suppress(OSError):
        path.unlink(missing_ok=True)


def describe_write_error(path: Path, error: OSError, folder_option: str = "output_root=<folder>") -> str:
    """Return the reason why `path` could not be written.

    If the disk is full, the message also states the limit and a remedy.

    Args:
        path: file or folder that was to be written.
        error: error of the write.
        folder_option: option of the command that selects another folder, for the message.
    """
    reason = error.strerror or (str(error).splitlines() or [type(error).__name__])[0]
    folder = next((candidate for candidate in (path, *path.absolute().parents) if candidate.is_dir()), Path("/"))
    n_free_bytes, has_no_free_inodes = MIN_FREE_BYTES, False
    with suppress(OSError):
        filesystem = os.statvfs(folder)
        n_free_bytes = filesystem.f_bavail * filesystem.f_frsize
        # Some file systems have no limit of inodes, and report 0.
        has_no_free_inodes = filesystem.f_files > 0 and not filesystem.f_favail
    # An error relayed from another process (e.g. a video encoder) may not carry ENOSPC.
    if error.errno not in DISK_FULL_ERRNOS and n_free_bytes >= MIN_FREE_BYTES:
        return reason
    free_space_text = f"{n_free_bytes / 1e6:,.1f} MB are free in {folder}"
    if error.errno == errno.ENOSPC and has_no_free_inodes:
        free_space_text = f"all inodes of the file system of {folder} are used, so no further file can be created"
    limit_note_by_errno = {
        errno.EDQUOT: "; your quota is used up",
        errno.EFBIG: "; the file exceeds the maximum file size (ulimit -f)",
    }
    return (
        f"{reason}: {free_space_text}{limit_note_by_errno.get(error.errno or 0, '')}. Free some space (`llmrl-sweep "
        f"clean` lists files that are no longer needed) and rerun the command, or choose another location with "
        f"{folder_option}"
    )
