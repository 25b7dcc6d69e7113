"""Common functions of the parts of `benchmarks/gpu.py`: sizes, rows of tables, time limits, and clocks."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LIMITS = {"check": 120, "games": 150, "blocks": 30, "ppo": 80, "societies": 80, "scorer": 110}
"""Seconds of each part."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of all computations.

    Attributes:
        check: games and steps that are compared with the processor's.
        games: of each measurement; the first is the processor's, too.
        seconds: of each measurement of games.
        block: steps between two looks at the clock.
        ppo: games, steps a rollout, and samples a minibatch; the first is the processor's, too.
        societies: how many in one batch; games of each; steps of an episode.
        rounds: of each measurement of PPO and of societies; the least time counts.
        model: width, feed-forward width, layers, heads.
        prompts: how many, and their tokens; `cpu_prompts`: how many the processor scores.
        threads: of the processor.
    """

    check: tuple[int, int] = (64, 50)
    games: Sequence[int] = (4096, 16384, 65536, 262144)
    seconds: float = 1.0
    block: int = 16
    ppo: Sequence[tuple[int, int, int]] = ((64, 32, 512), (1024, 64, 16384), (4096, 32, 65536))
    societies: Sequence[int] = (1, 16, 64)
    society_games: int = 4
    society_steps: int = 50
    rounds: int = 3
    model: tuple[int, int, int, int] = (1024, 2816, 24, 16)
    prompts: tuple[int, int] = (32, 230)
    cpu_prompts: int = 2
    threads: int = os.cpu_count() or 1


TOY = Sizes((4, 4), (2, 4), 0.0, 2, ((1, 3, 7), (2, 3, 14)), (1, 2), 1, 2, 1, (64, 128, 2, 2), (2, 8), 1, 1)


def too_large(error: Exception) -> bool:
    """Return whether an error means that memory is too small, before an allocation or in torch or Numba."""
    told = str(error).lower().replace("_", " ")
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in told or "gib free" in told


class Part:
    """One part: its table, and how much of its time is left."""

    def __init__(self, name: str, sizes: Sizes, device: str) -> None:
        self.name, self.sizes, self.device = name, sizes, device
        self._end = time.perf_counter() + LIMITS[name]

    @property
    def left(self) -> float:
        """Seconds."""
        return self._end - time.perf_counter()

    def row(self, *cells: object) -> None:
        """Print one line of the table: the first cell is wide, numbers are aligned to the right."""
        print(f"  {cells[0]!s:48}" + "".join(f"{cell!s:>16}" for cell in cells[1:]), flush=True)

    def fits(self, title: str, work: Callable[[], None], least: float = 5.0) -> bool:
        """Compute a row if `least` seconds are left for it; return whether it fitted into memory."""
        if self.left < least:
            self.row(title, f"left out: {self.left:.0f} s of this part's {LIMITS[self.name]} s are left")
            return True
        self.free()
        try:
            work()
        except Exception as error:
            if not too_large(error):
                raise
            self.row(title, f"left out, does not fit: {' '.join(str(error).split())[:160]}")
            return False
        finally:
            self.free()
        return True

    def free(self) -> None:
        """Give back what nobody holds, and count the most from here on."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def memory(self) -> str:
        """Return the peak memory since `free`."""
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if self.device == "cuda" else "-"


def wait(device: str) -> None:
    """Wait until the device has finished its work."""
    if device == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], device: str) -> float:
    """Return the time that the device takes, seconds."""
    wait(device)
    begin = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - begin
