"""Access to files in a folder that another user may have written. Symbolic links inside the folder are not followed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def open_folder(root: Path, names: Sequence[str] = (), create: bool = False) -> Iterator[int]:
    """Yield a descriptor of the folder `root/<names>`, for the `dir_fd` of functions in `os`.

    Each folder is opened relative to its parent, so a symbolic link is not followed even if another process puts it in
    the place of a folder meanwhile.

    Args:
        root: existing folder; its own path may contain links.
        names: names of nested folders, outermost first.
        create: whether to create missing folders of `names`.

    Raises:
        OSError: a folder is missing or is a symbolic link (`errno.ELOOP`), or one of the names is `..`.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in names:
            if name == os.pardir:
                raise OSError(errno.EINVAL, f"the path leaves {root}")
            if create:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=descriptor)
            child_descriptor = _open_unless_symlink(name, os.O_RDONLY | os.O_DIRECTORY, descriptor)
            os.close(descriptor)
            descriptor = child_descriptor
        yield descriptor
    finally:
        os.close(descriptor)


def create_folder(folder: Path, root: Path) -> None:
    """Create `folder` and missing folders between it and the existing folder `root`.

    Raises:
        OSError: a folder is a symbolic link or cannot be created.
    """
    with open_folder(root, folder.relative_to(root).parts, create=True):
        pass


def open_file(path: Path, mode: str = "rb", root: Path | None = None) -> IO[Any]:
    """Open a regular file in a folder that another user may have written.

    Args:
        path: file.
        mode: mode of the built-in `open`; text files are UTF-8.
        root: ancestor folder of `path`, below which no link is followed; None: the parent folder.

    Raises:
        OSError: the file cannot be opened; a part of the path below `root` is a symbolic link (`errno.ELOOP`); or the
            file is not a regular one, e.g. a pipe.
    """
    *folders, name = (str(path),) if root is None else path.relative_to(root).parts
    with nullcontext() if root is None else open_folder(root, folders) as folder_fd:
        # A pipe without a process at its other end would block without O_NONBLOCK, which regular files ignore.
        file: IO[Any] = open(  # noqa: SIM115 (the caller closes it)
            path,
            mode,
            encoding=None if "b" in mode else "utf-8",
            opener=lambda _, flags: _open_unless_symlink(name, flags | os.O_NONBLOCK, folder_fd),
        )
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return file


def read_bytes(path: Path, root: Path | None = None) -> bytes:
    """Return the content of a file, opened by `open_file`.

    Raises:
        OSError: the file cannot be opened or read.
    """
    with open_file(path, root=root) as file:
        return bytes(file.read())


def find_symlink(folder: Path, excluded_patterns: Sequence[str] = ()) -> Path | None:
    """Return a symbolic link inside `folder` at any depth; None if there is none.

    Args:
        folder: folder, which need not exist; it may be a link itself.
        excluded_patterns: patterns of paths relative to `folder` (`PurePath.match`) of folders that are not searched.
    """
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink():
                return path
        relative_parent = Path(parent).relative_to(folder)
        folders[:] = [name for name in folders if not any(map((relative_parent / name).match, excluded_patterns))]
    return None


def _open_unless_symlink(name: str, flags: int, folder_fd: int | None) -> int:
    """Open `name`, relative to the folder with descriptor `folder_fd` if there is one, unless it is a symbolic link."""
    try:
        return os.open(name, flags | os.O_NOFOLLOW, 0o666, dir_fd=folder_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(os.lstat(name, dir_fd=folder_fd).st_mode):
            raise OSError(errno.ELOOP, f"{Path(name).name} is a symbolic link, which is not followed", name) from None
        raise
