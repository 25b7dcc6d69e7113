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
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

from llmrl.core.threads import exclusive
from llmrl.envs.native import game_loop, hashed_random, rules, view_loops

log = logging.getLogger(__name__)

MODULES = (hashed_random, rules, view_loops, game_loop)
"""What is rebuilt: every function of these that loops call."""
_LEFT_OUT = {"threshold", "game_keys"}
"""Functions that make tables, once, and are never called by a rule."""
Jit = Callable[[Any], Any]
WORTH = 3072
"""Players who take a step that are worth a thread, where each whose view is written counts as three: about 0.4 ms of
work, for a thread that sleeps takes up to 0.1 ms to wake."""
KEPT = 30
"""Days for which compiled functions are kept that nobody uses."""
OPTIONS = {"nogil": True, "error_model": "numpy"}


def build(jit: Jit, entry: Jit | None = None, chance: tuple[Any, Any] | None = None) -> SimpleNamespace:
    """The functions of the games, all of which call those that `jit` made of the others.

    Args:
        jit: makes one of a plain function: `numba.njit(...)`, `cuda.jit(device=True)`, or what leaves it as it is.
        entry: the same for those that are called from outside, `play` and `outside`; None: `jit`.
        chance: what replaces `hashed_random.begin` and `hashed_random.draw`.
    """
    names: dict[str, Any] = {}
    for module in MODULES:
        names |= {name: x for name, x in vars(module).items() if not name.startswith("_")}
    names["__name__"] = game_loop.__name__
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
def compiled(chance: tuple[Any, Any] | None) -> SimpleNamespace:
    """The functions for a processor; Numba is imported here, and they are compiled when they are first called."""
    import numba

    with kept_in(cache_folder()) as kept:
        return build(numba.njit(**OPTIONS), numba.njit(cache=kept, **OPTIONS), chance)


def lanes(games: int, players: int, seen: bool) -> int:
    """How many threads have work enough with so many games, and cores; `seen`: whether the loops write what is seen."""
    work = games * players * (3 if seen else 1)
    return max(1, min(os.cpu_count() or 1, work // WORTH))


class CpuGames:
    """Plays all games of a batch on processors, compiling first where nobody has."""

    def __init__(self, chance: tuple[Any, Any] | None = None) -> None:
        self._tree, self._play = compiled(chance), None

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        """Do with `n` games what `game_loop.play` does with `arrays`, of the same types at every call."""
        play = self._play = self._play or self._compiled(arrays)
        if threads == 1:
            play(0, n, 0, *arrays)
            return
        shares = [(n * k // threads, n * (k + 1) // threads, k, *arrays) for k in range(threads)]
        others = [helpers().submit(play, *share) for share in shares[1:]]
        play(*shares[0])
        for other in others:
            other.result()

    def _compiled(self, arrays: tuple[Any, ...]) -> Any:
        """`game_loop.play` of arrays of these types, called past Numba's look at them, which costs as much as a game.
        Those that must not be written to are no type of their own, for which it would compile once more."""
        from numba import int64, typeof, types

        play, begin = self._tree.play, time.perf_counter()
        asked = (int64, int64, int64, *(types.Array(typeof(x).dtype, x.ndim, "C") for x in arrays))
        known = asked in play.overloads
        entry = play.compile(asked)
        if not known and asked not in play.stats.cache_hits:
            seconds = time.perf_counter() - begin
            log.info("compiled the rules of the native games in %.1f s; kept in %s", seconds, cache_folder())
        return entry


@functools.cache
def helpers() -> ThreadPoolExecutor:
    """The threads that play beside the one that asks; a process that forks makes its own. The loops hold no lock."""
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "games")


os.register_at_fork(after_in_child=helpers.cache_clear)


def simulated() -> bool:
    """Whether Numba simulates a GPU in this process: then games are played by the kernel, in memory of the host."""
    import numba

    return bool(numba.config.ENABLE_CUDASIM)


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
def kept_in(folder: Path) -> Iterator[bool]:
    """Have Numba keep what it makes here in a folder; whether it can be written to. A new one takes the place of those
    beside it that nobody has used for `KEPT` days."""
    import numba

    try:
        if new := not folder.exists():
            folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
        if new:
            _forget(folder.parent)
    except OSError as error:
        log.info("compiled games are not kept for the next run: %s", error)
        yield False
        return
    with exclusive():
        before = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            numba.config.CACHE_DIR = before


def _forget(parent: Path) -> None:
    """Remove folders of `kept_in` that are no longer used, beside processes that may begin to use or remove one."""
    oldest = time.time() - KEPT * 24 * 3600
    for folder in parent.glob("games-*"):
        with contextlib.suppress(OSError):  # somebody else has removed it, or it is somebody else's
            if folder.stat().st_mtime < oldest:
                gone = folder.rename(parent / f"games-removed-{os.getpid()}-{folder.name.rpartition('-')[2]}")
                if gone.stat().st_mtime < oldest:
                    shutil.rmtree(gone)
                else:  # meanwhile used
                    gone.rename(folder)
