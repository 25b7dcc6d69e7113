"""The games as a CUDA kernel: the same functions, one thread per game, in memory shared with torch.

On an H200, and in Numba's simulator (`NUMBA_ENABLE_CUDASIM=1`), results equal those on CPUs bit for bit.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from types import FunctionType
from typing import Any

import torch

from llmrl.core.errors import ConfigError
from llmrl.envs.native import batch_loop
from llmrl.envs.native.compilation import build, plain, simulated
from llmrl.envs.native.game_arrays import Games, Inputs, Outputs, Tables, ViewTables

BLOCK = 16
"""Threads per block. Games take different branches, so small blocks wait less. With 4,096 games, an H200 plays 1.4
times as many steps as with 64 threads per block; with 65,536 games, 1.05 to 1.13 times as many."""
cuda: Any = None  # replaced by Numba's module in the kernel
play: Any = batch_loop.play  # replaced by the device function in the kernel


def _one_game(n: int, inputs: Inputs, outputs: Outputs, games: Games, tables: Tables, views: ViewTables) -> None:
    b = cuda.grid(1)
    if b < n:
        play(b, b + 1, b, inputs, outputs, games, tables, views)


@functools.cache
def kernel() -> Any:
    """Return the kernel; it is compiled when it is first launched.

    Raises:
        ConfigError: `numba-cuda` is not installed.
    """
    if not simulated() and importlib.util.find_spec("numba_cuda") is None:  # Numba's own CUDA support is older
        raise ConfigError(
            "Clean Up and Harvest on a GPU need numba-cuda, which is not installed; run pip install 'llmrl[gpu]', or "
            "use hardware=cpu"
        )
    from numba import config, cuda

    config.CUDA_LOW_OCCUPANCY_WARNINGS = 0  # few games are played on purpose
    logging.getLogger("numba").setLevel(logging.WARNING)  # Numba logs every module that it frees
    # In the simulator, compiled helpers would hide functions that cannot be typed on a device, so plain ones are used.
    functions = plain() if simulated() else build(cuda.jit(device=True))
    names = {"cuda": cuda, "play": functions.play, "__name__": __name__}
    return cuda.jit(FunctionType(_one_game.__code__, names, "_one_game"))


class GpuGames:
    """Plays all games of a batch in one launch on torch's current stream, without waiting for it."""

    def __init__(self) -> None:
        self._kernel = kernel()

    def __call__(self, threads: int, n: int, arrays: tuple[Any, ...]) -> None:
        """Launch the kernel for `n` games; `threads`, those of the host, are not used."""
        grid = -(-n // BLOCK)
        if simulated():
            self._kernel[grid, BLOCK](n, *arrays)
            return
        from numba import cuda

        stream = cuda.external_stream(torch.cuda.current_stream().cuda_stream)
        self._kernel[grid, BLOCK, stream](n, *arrays)
