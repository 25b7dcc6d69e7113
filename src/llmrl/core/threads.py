"""Threads of a process that computes several runs: threads that belong to a run, and a global lock."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_process_lock = threading.RLock()
os.register_at_fork(after_in_child=_process_lock._at_fork_reinit)  # type: ignore[attr-defined]


def make_daemon_thread(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Return an unstarted daemon thread with the caller's context variables, so its messages go to the same run log."""
    return threading.Thread(target=contextvars.copy_context().run, args=(target, *args), name=name, daemon=True)


@contextmanager
def hold_process_lock() -> Iterator[None]:
    """Return a context manager that holds a reentrant lock of the process. The block must not wait for another run.

    It protects global state that a block changes and restores: torch's random stream, warning filters, Hydra's composed
    config, cache folders of compilers.
    """
    with _process_lock:
        yield
