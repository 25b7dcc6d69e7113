"""The functions of the rules in three forms: plain Python, compiled for CPUs, and a CUDA kernel with a thread per game.

On an H200 and in Numba's GPU simulator (`NUMBA_ENABLE_CUDASIM=1`), results equal those on CPUs bit for bit.

Functions compiled for a CPU are cached on disk (`llmrl.core.numba_cache`).
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any

import torch

from llmrl.core.errors import ConfigError
from llmrl.core.numba_cache import JIT_OPTIONS, get_cache_folder, get_numba_type, use_numba_cache
from llmrl.envs.native import batch_loop, hashed_random, rules
from llmrl.envs.native.game_arrays import Games, LoopInputs, LoopOutputs, RuleTables, ViewTables

log = logging.getLogger(__name__)

COMPILED_MODULES = (hashed_random, rules, batch_loop)
"""Modules whose public functions are compiled, except `_UNCOMPILED_FUNCTION_NAMES`."""
_UNCOMPILED_FUNCTION_NAMES = {"compute_probability_threshold", "derive_game_keys"}
"""Functions that create tables and keys outside the loops; they are called uncompiled."""
_ENTRY_FUNCTION_NAMES = {"play_games", "has_invalid_action", "copy_tiles"}
"""Functions that Python code calls."""
JitCompiler = Callable[[Any], Any]
MIN_WORK_PER_THREAD = 3072
"""Minimum number of players whom a thread advances by a step; players with views count three times. Such a step takes
about 0.4 ms, whereas a sleeping thread takes up to 0.1 ms to wake."""
INNER_JIT_OPTIONS = {"forceinline": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
"""Options of inner functions, which are inlined, because a call would copy dozens of array arguments."""
THREADS_PER_BLOCK = 16
"""Threads per block. A block ends with its slowest game, so small blocks wait less. Steps per second on an H200 are 1.4
times those with 64 threads per block for 4,096 games, and 1.05 to 1.13 times for 65,536 games."""
cuda: Any = None  # replaced by Numba's module in the kernel
play_games: Any = batch_loop.play_games  # replaced by the device function in the kernel


def build_functions(jit: JitCompiler, entry_jit: JitCompiler | None = None) -> SimpleNamespace:
    """Return a namespace of the functions of the rules, compiled by `jit`, which call each other's compiled versions.

    Args:
        jit: compiler of a function: `numba.njit(...)`, `cuda.jit(device=True)`, or the identity.
        entry_jit: compiler of `_ENTRY_FUNCTION_NAMES`; None: `jit`.
    """
    variables = itertools.chain.from_iterable(vars(module).items() for module in COMPILED_MODULES)
    global_variables: dict[str, Any] = {name: x for name, x in variables if not name.startswith("_")}
    global_variables["__name__"] = batch_loop.__name__
    functions = SimpleNamespace()
    for name, function in list(global_variables.items()):
        if isinstance(function, FunctionType) and name not in _UNCOMPILED_FUNCTION_NAMES:
            compiler = entry_jit or jit if name in _ENTRY_FUNCTION_NAMES else jit
            global_variables[name] = compiler(FunctionType(function.__code__, global_variables, name))
            setattr(functions, name, global_variables[name])
    return functions


def build_plain_functions() -> SimpleNamespace:
    """Return the uncompiled functions, for tests and for the inspection of single games."""
    return build_functions(lambda function: function)


@functools.cache
def load_compiled_functions() -> SimpleNamespace:
    """Return the functions for a CPU. Numba is imported here; it compiles them when they are first called."""
    import numba

    with use_numba_cache(find_game_cache_folder()) as cache:
        return build_functions(numba.njit(**INNER_JIT_OPTIONS, **JIT_OPTIONS), numba.njit(cache=cache, **JIT_OPTIONS))


def count_threads(n_games: int, n_players: int, writes_observations: bool) -> int:
    """Return the number of threads for a batch: its work / `MIN_WORK_PER_THREAD`, but 1 to the number of cores.

    `writes_observations`: whether the loops write views of players.
    """
    work = n_games * n_players * (3 if writes_observations else 1)
    return max(1, min(os.cpu_count() or 1, work // MIN_WORK_PER_THREAD))


class CpuLoop:
    """Callable that executes the commands of all games on CPU cores; the first call compiles or loads the loops."""

    def __init__(self) -> None:
        self._functions = load_compiled_functions()
        self._play: Callable[..., None] | None = None

    def __call__(self, n_threads: int, n_games: int, arrays: tuple[Any, ...]) -> None:
        """Run `batch_loop.play_games` on `n_games` games with `arrays`, which have the same types at every call."""
        play = self._play = self._play or self._compile(arrays)
        run_in_threads(play, n_threads, n_games, arrays)

    def _compile(self, arrays: tuple[Any, ...]) -> Any:
        """Return `batch_loop.play_games` compiled for the types of `arrays`.

        Direct calls avoid Numba's dispatch, which takes as long as a step of one game.
        """
        from numba import int64

        play, start_time = self._functions.play_games, time.perf_counter()
        signature = (int64, int64, int64, *map(get_numba_type, arrays))
        is_compiled = signature in play.overloads
        function = play.compile(signature)
        if not is_compiled and signature not in play.stats.cache_hits:
            seconds = time.perf_counter() - start_time
            folder = find_game_cache_folder()
            log.info("compiled the rules of the native games in %.1f s and cached them in %s", seconds, folder)
        return function


def run_in_threads(function: Callable[..., None], n_threads: int, n: int, arrays: tuple[Any, ...]) -> None:
    """Call `function(begin, end, lane, *arrays)` in each of `n_threads` threads, for equal ranges of `n` indices."""
    if n_threads == 1:
        function(0, n, 0, *arrays)
        return
    calls = [(n * k // n_threads, n * (k + 1) // n_threads, k, *arrays) for k in range(n_threads)]
    futures = [get_thread_pool().submit(function, *call) for call in calls[1:]]
    function(*calls[0])
    for future in futures:
        future.result()


@functools.cache
def get_thread_pool() -> ThreadPoolExecutor:
    """Return the pool of threads that work in addition to the calling thread; a forked process creates a new pool."""
    return ThreadPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) - 1), thread_name_prefix="games")


os.register_at_fork(after_in_child=get_thread_pool.cache_clear)


def is_simulated() -> bool:
    """Return whether Numba simulates a GPU in this process: the kernel runs in Python, on arrays in host memory."""
    import numba

    return bool(numba.config.ENABLE_CUDASIM)


def find_game_cache_folder() -> Path:
    """Return the folder with the compiled functions of this package."""
    return get_cache_folder("games", tuple(Path(__file__).parent.glob("*.py")))


def _play_game(
    n_games: int, inputs: LoopInputs, outputs: LoopOutputs, games: Games, tables: RuleTables, view_tables: ViewTables
) -> None:
    """Kernel: execute the command of the game whose index is that of the thread."""
    b = cuda.grid(1)
    if b < n_games:
        play_games(b, b + 1, b, inputs, outputs, games, tables, view_tables)


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

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # batches of few games are intended
    logging.getLogger("numba").setLevel(logging.WARNING)  # Numba logs every module that it frees
    # In the simulator, compiled helpers would hide functions that cannot be typed on a device, so plain ones are used.
    functions = build_plain_functions() if is_simulated() else build_functions(cuda.jit(device=True))
    global_variables = {"cuda": cuda, "play_games": functions.play_games, "__name__": __name__}
    return cuda.jit(FunctionType(_play_game.__code__, global_variables, "_play_game"))


class GpuLoop:
    """Callable that launches the kernel for all games on torch's current stream, without waiting for the results."""

    def __init__(self) -> None:
        self._kernel = build_kernel()

    def __call__(self, n_threads: int, n_games: int, arrays: tuple[Any, ...]) -> None:
        """Launch the kernel for `n_games` games; `n_threads` is not used."""
        n_blocks = -(-n_games // THREADS_PER_BLOCK)
        if is_simulated():
            self._kernel[n_blocks, THREADS_PER_BLOCK](n_games, *arrays)
            return
        from numba import cuda

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        self._kernel[n_blocks, THREADS_PER_BLOCK, stream](n_games, *arrays)
