"""One call tree of the games from a factory: plain Python, compiled for a processor, or device functions of a kernel.

What is compiled for a processor is kept on disk, in a folder named by a digest of all that it was made from: Numba
itself looks at the file of the outermost function alone, and would go on with old code after a change of a rule.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from llmrl.core.threads import in_turn
from llmrl.envs.native import draws, games, looking, rules

log = logging.getLogger(__name__)

MODULES = (draws, rules, looking, games)
"""What is rebuilt: every function of these that loops call."""
_LEFT_OUT = {"threshold", "game_keys"}
"""Functions that make tables, once, and are never called by a rule."""
Jit = Callable[[Any], Any]
WORTH = 16
"""Games that are worth a thread."""
OPTIONS = {"nogil": True, "error_model": "numpy"}


def build(jit: Jit, entry: Jit | None = None, chance: tuple[Any, Any] | None = None) -> SimpleNamespace:
    """The functions of the games, all of which call those that `jit` made of the others.

    Args:
        jit: makes one of a plain function: `numba.njit(...)`, `cuda.jit(device=True)`, or what leaves it as it is.
        entry: the same for those that are called from outside, `play` and `outside`; None: `jit`.
        chance: what replaces `draws.begin` and `draws.draw`.
    """
    names: dict[str, Any] = {}
    for module in MODULES:
        names |= {name: x for name, x in vars(module).items() if not name.startswith("_")}
    names["__name__"] = games.__name__
    if chance is not None:
        names["begin"], names["draw"] = chance
    made = SimpleNamespace()
    for name, function in list(names.items()):
        if isinstance(function, FunctionType) and name not in _LEFT_OUT:
            copy = FunctionType(function.__code__, names, name)
            names[name] = (entry or jit if name in ("play", "outside") else jit)(copy)
            setattr(made, name, names[name])
    return made


def plain(chance: tuple[Any, Any] | None = None) -> SimpleNamespace:
    """The functions as they are written, for tests and for looking at a single game."""
    return build(lambda function: function, chance=chance)


@functools.cache
def compiled(chance: tuple[Any, Any] | None = None) -> SimpleNamespace:
    """The functions for a processor; Numba is imported here, and they are compiled when they are first called."""
    import numba

    with _kept_in(cache_folder()) as kept:
        return build(numba.njit(**OPTIONS), numba.njit(cache=kept, **OPTIONS), chance)


@functools.cache
def spread() -> Any:
    """`games.play` of all games, shared out among as many threads as are asked for (the first argument).

    A region of threads of Numba's workqueue ends the process when a second thread begins another, so there is one at a
    time; unlike those of GNU's OpenMP its threads do no harm to a process that forks.
    """
    import numba

    if numba.config.THREADING_LAYER == "default":
        numba.config.THREADING_LAYER = "workqueue"
    play = compiled().play
    names = {"play": play, "prange": numba.prange, "__name__": __name__}
    with _kept_in(cache_folder()) as kept:
        function = FunctionType(_shares.__code__, names, "_shares")
        return numba.njit(parallel=True, cache=kept, **OPTIONS)(function)


prange, play = range, games.play  # in the compiled one, Numba's and the compiled one


def _shares(threads, n, arrays):  # type: ignore[no-untyped-def]
    for k in prange(threads):
        play(k * n // threads, (k + 1) * n // threads, k, *arrays)


class Threads:
    """How many threads play a batch: as many as torch has in this process (`hardware.threads`).

    Args:
        games: how many; a few are not worth a thread.

    Attributes:
        most: no more than Numba can start, one a core.
    """

    def __init__(self, games: int) -> None:
        import numba

        self.most: int = min(numba.config.NUMBA_NUM_THREADS, max(1, games // WORTH))

    def now(self) -> int:
        """How many there are at this step."""
        return min(torch.get_num_threads(), self.most)


class Shared:
    """Plays all games of a batch on processors, compiling first where nobody has."""

    def __init__(self, chance: tuple[Any, Any] | None = None) -> None:
        self._tree, self._told = compiled(chance), chance is not None
        self._play = self._tree.play

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        if not self._play.overloads:
            with said("the rules of the native games", self._play):
                self._play(0, 0, 0, *arrays)
        if threads == 1 or self._told:
            self._play(0, n, 0, *arrays)
            return
        both = spread()
        if not both.overloads:
            with said("their threads", both), _ALONE:
                both(threads, 0, arrays)
        import numba

        with _ALONE:
            numba.set_num_threads(threads)
            both(threads, n, arrays)


_ALONE = threading.Lock()
os.register_at_fork(after_in_child=_ALONE._at_fork_reinit)  # type: ignore[attr-defined]


def simulated() -> bool:
    """Whether Numba simulates a GPU in this process: then games are played by the kernel, in memory of the host."""
    import numba

    return bool(numba.config.ENABLE_CUDASIM)


@contextlib.contextmanager
def said(what: str, function: Any) -> Iterator[None]:
    """Say how long the first call of a compiled function took, unless what was kept on disk was loaded."""
    begin = time.perf_counter()
    yield
    if not function.stats.cache_hits:
        log.info("compiled %s in %.1f s; kept in %s", what, time.perf_counter() - begin, cache_folder())


def digest() -> str:
    """Of everything that compiled functions depend on: the engine's files, Numba, and the processor."""
    import llvmlite
    import numba

    parts = [numba.__version__, llvmlite.__version__, numba.config.CPU_NAME or "", _processor(), platform.machine()]
    files = sorted(Path(__file__).parent.glob("*.py"))
    parts += [f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    from llvmlite import binding

    return f"{binding.get_host_cpu_name()} {binding.get_host_cpu_features().flatten()}"


@functools.cache
def cache_folder() -> Path:
    """Where compiled functions are kept: in `$XDG_CACHE_HOME/llmrl`, else `~/.cache/llmrl`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmrl" / f"games-{digest()}"


@contextlib.contextmanager
def _kept_in(folder: Path) -> Iterator[bool]:
    """Have Numba keep what it makes here in a folder; whether it can be written to."""
    import numba

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        log.info("compiled games are not kept for the next run: %s", error)
        yield False
        return
    with in_turn():
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            numba.config.CACHE_DIR = before
