"""Folders that one worker of pytest-xdist fills and all workers of the session read."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder that `fill` has written, once per session of pytest; tests must not change it.

    Workers that need it meanwhile wait. What raises an exception is tried again by the next one.

    Args:
        factory: of temporary folders of this worker.
        name: of the folder, one per content.
        fill: writes to the empty folder that it is called with.
    """
    root = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        root = root.parent  # of the folders of all workers
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
