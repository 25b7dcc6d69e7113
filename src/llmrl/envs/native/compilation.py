"""The games' functions: plain Python, compiled for a CPU, or a CUDA kernel with one thread per game.

On an H200, and in Numba's simulator of a GPU (`NUMBA_ENABLE_CUDASIM=1`), results equal those on CPUs bit for bit.

Functions compiled for a CPU are cached on disk, in a folder named by a digest of everything that they depend on. Numba
itself checks only the file of the outermost function, and would use outdated code after a change of a rule.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import itertools
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from llmrl.core.errors import ConfigError
from llmrl.core.threads import exclusive
from llmrl.envs.native import batch_loop, hashed_random, rules
from llmrl.envs.native.game_arrays import Games, Inputs, Outputs, Tables, ViewTables

log = logging.getLogger(__name__)

MODULES = (hashed_random, rules, batch_loop)
"""Modules whose functions are built, if loops call them."""
_EXCLUDED = {"threshold", "game_keys"}
"""Functions that only create tables, and are never called by a rule."""
_ENTRIES = {"play", "any_invalid", "copy_tiles"}
"""Functions that are called from outside."""
Jit = Callable[[Any], Any]
WORK_PER_THREAD = 3072
"""Work that justifies a thread: number of players who take a step, where a player whose view is written counts as
three. It takes about 0.4 ms; a sleeping thread takes up to 0.1 ms to wake."""
OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "_nrt": False}
"""Options of all functions. None of them allocates memory, so no references to arrays are counted."""
INNER_OPTIONS = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of inner functions, which are inlined, because a call would copy dozens of array arguments."""
BLOCK = 16
"""Threads per block. Games take different branches, so small blocks wait less. With 4,096 games, an H200 plays 1.4
times as many steps as with 64 threads per block; with 65,536 games, 1.05 to 1.13 times as many."""
cuda: Any = None  # replaced by Numba's module in the kernel
play: Any = batch_loop.play  # replaced by the device function in the kernel


def build_functions(jit: Jit, entry: Jit | None = None) -> SimpleNamespace:
    """Return the functions of the games, compiled by `jit`, as attributes; they call each other's compiled versions.

    Args:
        jit: compiler of a function: `numba.njit(...)`, `cuda.jit(device=True)`, or the identity.
        entry: compiler of the functions that are called from outside; None: `jit`.
    """
    variables = itertools.chain.from_iterable(vars(module).items() for module in MODULES)
    names: dict[str, Any] = {name: x for name, x in variables if not name.startswith("_")}
    names["__name__"] = batch_loop.__name__
    functions = SimpleNamespace()
    for name, function in list(names.items()):
        if isinstance(function, FunctionType) and name not in _EXCLUDED:
            copy = FunctionType(function.__code__, names, name)
            names[name] = (entry or jit if name in _ENTRIES else jit)(copy)
            setattr(functions, name, names[name])
    return functions


def plain_functions() -> SimpleNamespace:
    """Return the functions uncompiled, for tests and for inspection of a single game."""
    return build_functions(lambda function: function)


@functools.cache
def compiled_functions() -> SimpleNamespace:
    """Return the functions for a CPU. Numba is imported here; it compiles them when they are first called."""
    import numba

    with numba_cache(cache_folder()) as cache:
        return build_functions(numba.njit(**INNER_OPTIONS, **OPTIONS), numba.njit(cache=cache, **OPTIONS))


def count_threads(games: int, players: int, observed: bool) -> int:
    """Return the number of threads that the work of these games and the cores justify.

    `observed`: whether the loops write observations.
    """
    work = games * players * (3 if observed else 1)
    return max(1, min(os.cpu_count() or 1, work // WORK_PER_THREAD))


class CpuGames:
    """Plays all games of a batch on CPU cores; compiles the loops if they are not in the cache."""

    def __init__(self) -> None:
        self._functions = compiled_functions()
        self._play: Callable[..., None] | None = None

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        """Run `batch_loop.play` on `n` games with `arrays`, which must have the same types at every call."""
        self._play = self._play or self._compile(arrays)
        run_in_threads(self._play, threads, n, arrays)

    def _compile(self, arrays: tuple[Any, ...]) -> Any:
        """Return `batch_loop.play` compiled for these types.

        Calling it directly skips Numba's dispatch, which costs as much as a game.
        """
        from numba import int64

        play, begin = self._functions.play, time.perf_counter()
        signature = (int64, int64, int64, *map(_numba_type, arrays))
        is_compiled = signature in play.overloads
        function = play.compile(signature)
        if not is_compiled and signature not in play.stats.cache_hits:
            seconds = time.perf_counter() - begin
            log.info("compiled the rules of the native games in %.1f s and cached them in %s", seconds, cache_folder())
        return function


def _numba_type(x: Any) -> Any:
    """Return the Numba type of an array, of a number, or of a tuple of them.

    Read-only arrays get the type of writable ones, so that `batch_loop.play` is not compiled a second time.
    """
    from numba import typeof, types

    if isinstance(x, tuple):
        return types.BaseTuple.from_types([_numba_type(part) for part in x], type(x))
    array_type = typeof(x)
    return types.Array(array_type.dtype, array_type.ndim, "C") if isinstance(array_type, types.Array) else array_type


def run_in_threads(function: Callable[..., None], threads: int, n: int, arrays: tuple[Any, ...]) -> None:
    """Call `function(first, last, lane, *arrays)` for equal shares of `n` items, one in each of `threads` threads."""
    if threads == 1:
        function(0, n, 0, *arrays)
        return
    shares = [(n * k // threads, n * (k + 1) // threads, k, *arrays) for k in range(threads)]
    tasks = [thread_pool().submit(function, *share) for share in shares[1:]]
    function(*shares[0])
    for task in tasks:
        task.result()


@functools.cache
def thread_pool() -> ThreadPoolExecutor:
    """Return the pool of threads that play beside the calling thread.

    A forked process makes its own. The loops hold no lock.
    """
    return ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1), "games")


os.register_at_fork(after_in_child=thread_pool.cache_clear)


def is_simulated() -> bool:
    """Return whether Numba simulates a GPU in this process.

    If so, the kernel plays the games, in memory of the host.
    """
    import numba

    return bool(numba.config.ENABLE_CUDASIM)


@functools.cache
def cache_folder() -> Path:
    """Return the folder of cached functions, in `$XDG_CACHE_HOME/llmrl`, else in `~/.cache/llmrl`.

    Its name is a digest of everything that compiled functions depend on: the engine's files, Numba, and the CPU.
    """
    import llvmlite
    import numba
    from llvmlite import binding

    parts = [numba.__version__, llvmlite.__version__, numba.config.CPU_NAME or "", platform.machine()]
    parts += [binding.get_host_cpu_name(), binding.get_host_cpu_features().flatten()]
    files = sorted(Path(__file__).parent.glob("*.py"))
    parts += [f"{file.name}\0{hashlib.sha256(file.read_bytes()).hexdigest()}" for file in files]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "llmrl" / f"games-{digest}"


@contextlib.contextmanager
def numba_cache(folder: Path) -> Iterator[bool]:
    """Let Numba cache compiled functions in a folder; yield whether it is writable."""
    import numba

    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.utime(folder)
    except OSError as error:
        log.info("compiled games cannot be cached for the next run: %s", error)
        yield False
        return
    with exclusive():
        previous = numba.config.CACHE_DIR
        numba.config.CACHE_DIR = str(folder)
        try:
            yield True
        finally:
            numba.config.CACHE_DIR = previous


def _play_game(n: int, inputs: Inputs, outputs: Outputs, games: Games, tables: Tables, views: ViewTables) -> None:
    b = cuda.grid(1)
    if b < n:
        play(b, b + 1, b, inputs, outputs, games, tables, views)


@functools.cache
def build_kernel() -> Any:
    """Return the kernel; it is compiled when it is first launched.

    Raises:
        ConfigError: `numba-cuda` is not installed.
    """
    if not is_simulated() and importlib.util.find_spec("numba_cuda") is None:  # Numba's own CUDA support is older
        raise ConfigError(
            "Clean Up and Harvest on a GPU need numba-cuda, which is not installed; run pip install 'llmrl[gpu]', or "
            "use hardware=cpu"
        )
    from numba import config, cuda

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few games are played on purpose
    logging.getLogger("numba").setLevel(logging.WARNING)  # Numba logs every module that it frees
    # In the simulator, compiled helpers would hide functions that cannot be typed on a device, so plain ones are used.
    functions = plain_functions() if is_simulated() else build_functions(cuda.jit(device=True))
    names = {"cuda": cuda, "play": functions.play, "__name__": __name__}
    return cuda.jit(FunctionType(_play_game.__code__, names, "_play_game"))


class GpuGames:
    """Plays all games of a batch in one launch on torch's current stream, without waiting for it."""

    def __init__(self) -> None:
        self._kernel = build_kernel()

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        """Launch the kernel for `n` games; `threads`, those of the host, are not used."""
        grid = -(-n // BLOCK)
        if is_simulated():
            self._kernel[grid, BLOCK](n, *arrays)
            return
        from numba import cuda

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        self._kernel[grid, BLOCK, stream](n, *arrays)
