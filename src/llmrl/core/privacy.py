"""What others may see of a run: its files are its owner's alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass
class _Kept:
    """Blocks of `kept_private` that ask for the same, and what was before the first of them."""

    private: bool
    umask: int
    users: str | None
    blocks: int = 0


_changing = threading.Lock()
_kept: list[_Kept] = []


@contextmanager
def kept_private(private: bool) -> Iterator[None]:
    """`keep_private` until the block is over, and those of other threads beside it, which are to ask for the same."""
    with _changing:
        # Not set again where it is: files that another thread makes that instant would get the wrong mode.
        if not _kept or _kept[-1].private != private:
            before = os.umask(OWNER_ONLY)
            os.umask(before)
            _kept.append(_Kept(private, before, os.environ.get(_USERS_UMASK)))
            keep_private(private)
        own = _kept[-1]
        own.blocks += 1
    try:
        yield
    finally:
        with _changing:
            own.blocks -= 1
            if not own.blocks:
                _kept.remove(own)
                os.umask(own.umask)
                if own.users is None:
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
