"""File modes that keep a run's files private to their owner."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

OWNER_ONLY = 0o077
"""The umask that gives new folders the mode 0700 and new files 0600."""
_USERS_UMASK = "LLMRL_UMASK"
"""Environment variable with the original umask of our first process, for the processes that it starts."""


def keep_private(private: bool = True) -> None:
    """Make files that this process and its children create from now on readable by their owner alone.

    If not `private`, restore the umask with which our first process was started.
    """
    previous_umask = os.umask(OWNER_ONLY)
    users = int(os.environ.setdefault(_USERS_UMASK, f"{previous_umask:04o}"), 8)
    if not private:
        os.umask(users)


def keep_private_like(folder: Path) -> None:
    """Call `keep_private`, with `private` if `folder` is open to its owner alone or does not exist."""
    keep_private(not folder.exists() or not folder.stat().st_mode & OWNER_ONLY)


@dataclass
class _PrivacySetting:
    """Concurrent blocks of `kept_private` with the same argument, and the settings before the first of them."""

    private: bool
    umask: int
    users: str | None
    blocks: int = 0


_changing = threading.Lock()
_settings: list[_PrivacySetting] = []


@contextmanager
def kept_private(private: bool) -> Iterator[None]:
    """Call `keep_private(private)` for the duration of the block, and of concurrent blocks of other threads.

    Concurrent blocks must have the same argument, because the umask belongs to the whole process.
    """
    with _changing:
        # Not set again if unchanged: files that another thread creates meanwhile would get the wrong mode.
        if not _settings or _settings[-1].private != private:
            previous_umask = os.umask(OWNER_ONLY)
            os.umask(previous_umask)
            _settings.append(_PrivacySetting(private, previous_umask, os.environ.get(_USERS_UMASK)))
            keep_private(private)
        setting = _settings[-1]
        setting.blocks += 1
    try:
        yield
    finally:
        with _changing:
            setting.blocks -= 1
            if not setting.blocks:
                _settings.remove(setting)
                os.umask(setting.umask)
                if setting.users is None:
                    os.environ.pop(_USERS_UMASK, None)


def make_folder(folder: Path, private: bool) -> None:
    """Create a folder and its missing parents; if `private`, with mode 0700, even if the folder existed.

    Raises:
        OSError: the folder cannot be created.
    """
    if not private:
        folder.mkdir(parents=True, exist_ok=True)
        return
    missing = []
    for path in (folder, *folder.parents):
        if path.exists():
            break
        missing.append(path)
    for path in reversed(missing):
        path.mkdir(mode=0o700, exist_ok=True)
    mode = folder.stat().st_mode
    if mode & OWNER_ONLY and folder.stat().st_uid == os.getuid():
        folder.chmod(mode & 0o700)
