"""The games as a kernel of an NVIDIA GPU: the same functions, one thread a game, in memory shared with torch.

On an H200, and in Numba's simulator (`NUMBA_ENABLE_CUDASIM=1`), it plays bit for bit what processors play.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import time
from types import FunctionType
from typing import Any

import torch

from llmrl.core.errors import ConfigError
from llmrl.envs.native import game_loop
from llmrl.envs.native.compilation import build, plain, simulated

log = logging.getLogger(__name__)

BLOCK = 16
"""Threads of a block: games differ in what happens, so small ones wait less for each other. With 4,096 games, an H200
plays 1.4 times as many steps as with 64 threads, and with 65,536 games 1.05 to 1.13 times as many."""
cuda: Any = None  # in the kernel, Numba's
play: Any = game_loop.play  # in the kernel, the device function


def _one_game(  # type: ignore[no-untyped-def]
    n, todo, action, source, pay, info, grid, ids, vector, world, players, orchard, river, occupied, deeds, notes,
    codes, land, beams, near, spawn, groups, places, soiled, chances, acts, facts, base, spots, turns, grid_of, tile_of,
):  # fmt: skip
    b = cuda.grid(1)
    if b < n:
        play(
            b, b + 1, b, todo, action, source, pay, info, grid, ids, vector, world, players, orchard, river, occupied,
            deeds, notes, codes, land, beams, near, spawn, groups, places, soiled, chances, acts, facts, base, spots,
            turns, grid_of, tile_of,
        )  # fmt: skip


@functools.cache
def kernel() -> Any:
    """The kernel, compiled when it is first launched.

    Raises:
        ConfigError: `numba-cuda` is not installed.
    """
    if not simulated() and importlib.util.find_spec("numba_cuda") is None:  # Numba has an older one
        raise ConfigError(
            "Clean Up and Harvest on a GPU need numba-cuda, which is not installed: pip install 'llmrl[gpu]', or use "
            "hardware=cpu"
        )
    from numba import config, cuda

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few games are what somebody wanted
    logging.getLogger("numba").setLevel(logging.WARNING)  # it tells of every module it frees
    # In the simulator compiled helpers would hide what a device cannot type, and so it gets the plain ones.
    tree = plain() if simulated() else build(cuda.jit(device=True))
    names = {"cuda": cuda, "play": tree.play, "__name__": __name__}
    return cuda.jit(FunctionType(_one_game.__code__, names, "_one_game"))


class GpuGames:
    """Plays all games of a batch in one launch on torch's current stream; nobody waits for it."""

    def __init__(self) -> None:
        self._kernel = kernel()
        self._known = False

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        """`threads` are those of the host, which are not used."""
        grid = -(-n // BLOCK)
        if simulated():
            self._kernel[grid, BLOCK](n, *arrays)
            return
        from numba import cuda

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        if self._known:
            self._kernel[grid, BLOCK, stream](n, *arrays)
            return
        begin = time.perf_counter()
        self._kernel[grid, BLOCK, stream](n, *arrays)
        log.info("compiled the kernel of the native games in %.1f s", time.perf_counter() - begin)
        self._known = True
