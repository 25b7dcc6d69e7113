"""What others may see of a run: its files are its owner's alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OWNER_ONLY = 0o077
"""The umask by which new folders get the mode 0700 and new files 0600."""
_USERS_UMASK = "LLMRL_UMASK"
"""Environment variable with the umask that the first of our processes was started with, for those it starts."""


def keep_private(private: bool = True) -> None:
    """Give what this process and those it starts create from now on to its owner alone; if not `private`, to whom the
    umask says with which the first of them was started."""
    before = os.umask(OWNER_ONLY)
    users = int(os.environ.setdefault(_USERS_UMASK, f"{before:04o}"), 8)
    if not private:
        os.umask(users)


def keep_private_like(folder: Path) -> None:
    """`keep_private` where `folder` is open to its owner alone, or is not there."""
    keep_private(not folder.exists() or not folder.stat().st_mode & OWNER_ONLY)


@contextmanager
def kept_private(private: bool) -> Iterator[None]:
    """`keep_private` until the block is over."""
    before, users = os.umask(OWNER_ONLY), os.environ.get(_USERS_UMASK)
    os.umask(before)
    keep_private(private)
    try:
        yield
    finally:
        os.umask(before)
        if users is None:
            os.environ.pop(_USERS_UMASK, None)


def make_folder(folder: Path, private: bool) -> None:
    """Create a folder and those above it that are missing; `private`: for its owner alone, also if it was there.

    Raises:
        OSError: it cannot be created.
    """
    if not private:
        folder.mkdir(parents=True, exist_ok=True)
        return
    missing = []
    for each in (folder, *folder.parents):
        if each.exists():
            break
        missing.append(each)
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    mode = folder.stat().st_mode
    if mode & OWNER_ONLY and folder.stat().st_uid == os.getuid():
        folder.chmod(mode & 0o700)
