"""Sizes, time limits, timers and table rows that the parts of `benchmarks/gpu.py` share."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LIMITS = {"check": 120, "games": 150, "blocks": 30, "ppo": 80, "societies": 80, "scorer": 110}
"""Time limit of each part, seconds."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of the measured computations.

    Attributes:
        check: numbers of games and steps that are compared with the CPU.
        games: numbers of games; the first is also measured on the CPU.
        seconds: duration of each measurement of games.
        block: number of steps between readings of the clock.
        ppo: (games, steps of a rollout, samples of a minibatch); the first is also measured on the CPU.
        societies: numbers of societies in a batch; the second is also measured on the CPU.
        society_games: number of games of a society in Harvest.
        society_steps: number of steps of an episode of a society.
        rounds: number of repetitions for PPO and societies; the minimum time is reported.
        model: width, feed-forward width, number of layers, number of heads.
        prompts: number of prompts, and number of tokens of each.
        cpu_prompts: number of prompts that the CPU scores.
        threads: number of CPU threads.
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


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error of llmrl, torch or Numba reports insufficient memory."""
    message = str(error).lower().replace("_", " ")
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in message or "gib free" in message


class Part:
    """Part of the benchmark, with its table and its time limit."""

    def __init__(self, name: str, sizes: Sizes, device: str) -> None:
        self.name, self.sizes, self.device = name, sizes, device
        self._deadline = time.perf_counter() + LIMITS[name]

    @property
    def remaining_seconds(self) -> float:
        """Time until the limit, seconds."""
        return self._deadline - time.perf_counter()

    def print_row(self, *cells: object) -> None:
        """Print a row of the table: a wide first cell, and right-aligned columns."""
        print(f"  {cells[0]!s:48}" + "".join(f" {cell!s:>15}" for cell in cells[1:]), flush=True)

    def run_measurement(self, title: str, measure: Callable[[], None], min_seconds: float = 5.0) -> bool:
        """Run a measurement unless less than `min_seconds` remain, and return whether it fit into memory.

        Args:
            title: first cell of the row that reports a skipped measurement.
            measure: function that measures and prints a row.
            min_seconds: remaining time below which the measurement is skipped.

        Returns:
            False if memory was insufficient. True otherwise, also if the measurement was skipped.
        """
        if self.remaining_seconds < min_seconds:
            remaining = f"{self.remaining_seconds:.0f} of {LIMITS[self.name]} s"
            self.print_row(title, f"skipped: {remaining} remain")
            return True
        self.free_memory()
        try:
            measure()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self.print_row(title, f"skipped: out of memory: {' '.join(str(error).split())[:160]}")
            return False
        finally:
            self.free_memory()
        return True

    def free_memory(self) -> None:
        """Release unused memory, and reset the peak memory statistics."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def format_peak_memory(self) -> str:
        """Return the peak GPU memory since `free_memory`, or `-` without a GPU."""
        return f"{torch.cuda.max_memory_allocated() / 2**30:.2f} GiB" if self.device == "cuda" else "-"


def synchronize(device: str) -> None:
    """Wait until the device has finished all kernels."""
    if device == "cuda":
        torch.cuda.synchronize()


def measure_seconds(function: Callable[[], Any], device: str) -> float:
    """Return the duration of a call on the device, seconds."""
    synchronize(device)
    start = time.perf_counter()
    function()
    synchronize(device)
    return time.perf_counter() - start
