"""Folders that one pytest-xdist worker fills and all workers of the session read."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder that `fill` writes once per pytest session; tests must not change it.

    Other workers wait while the folder is written. If `fill` raises an exception, the next worker calls it again.

    Args:
        factory: factory of temporary folders.
        name: unique name of the folder.
        fill: function that writes to the empty folder.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # parent of the folders of all workers
    folder, complete = root / "shared" / name, root / "shared" / f"{name}.complete"
    folder.parent.mkdir(exist_ok=True)
    with (root / "shared" / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not complete.exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            fill(folder)
            complete.touch()
    return folder
