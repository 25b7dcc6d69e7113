"""Threads of a process that computes several runs: what they inherit, and what they take turns with."""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_turn = threading.RLock()
os.register_at_fork(after_in_child=_turn._at_fork_reinit)  # type: ignore[attr-defined]


def helping(name: str, target: Callable[..., object], *args: Any) -> threading.Thread:
    """Return a thread, not started yet, that ends with the process and belongs to the run of the thread that makes it:
    what it logs is that run's."""
    context = contextvars.copy_context()
    return threading.Thread(target=context.run, args=(target, *args), name=name, daemon=True)


@contextmanager
def in_turn() -> Iterator[None]:
    """Around what uses something that a process has once, and that a library changes and puts back: torch's own random
    stream, filters of warnings, Hydra's composed config, folders of compilers. One thread at a time; it must not wait
    for another run meanwhile."""
    with _turn:
        yield
