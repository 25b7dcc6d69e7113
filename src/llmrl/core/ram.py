"""Whether what is about to be allocated fits: said before, because afterwards the process is gone."""

from __future__ import annotations

import contextlib
from pathlib import Path

from llmrl.core.errors import ConfigError

SHARE = 0.9
"""Of the memory that is free, what one allocation may take."""


def free_memory(device: str) -> int | None:
    """Bytes that are free on a torch device; None where that cannot be known."""
    if device.startswith("cuda"):
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    limits = []
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                limits.append(int(line.split()[1]) * 1024)
    # A container or a batch job may be given less than the machine has.
    group = Path("/sys/fs/cgroup")
    with contextlib.suppress(OSError, ValueError):  # no such files, or no limit
        used = int((group / "memory.current").read_text())
        # Pages of files that nobody needs are given back before memory runs out.
        kept = [line.split() for line in (group / "memory.stat").read_text().splitlines()]
        used -= sum(int(n) for name, n in kept if name == "inactive_file")
        limits.append(int((group / "memory.max").read_text()) - used)
    return min(limits) if limits else None


LEAST_GAME = 256
"""Bytes that one of many games takes at the very least: its state, what is seen of it in one step, its sums."""


def check_games(n_envs: object) -> None:
    """Raise ConfigError for more games, `env.n_envs`, than could be in this machine's memory, whatever they are."""
    if isinstance(n_envs, int):
        most = round(SHARE * (free_memory("cpu") or 0) / LEAST_GAME)
        advice = f"at the very most {most:,} games fit, and of most environments a few thousand"
        need_memory(n_envs * LEAST_GAME, "cpu", f"env.n_envs={n_envs}: the games", advice)


def need_memory(n_bytes: int, device: str, what: str, advice: str) -> None:
    """Raise ConfigError where `n_bytes` for `what` would not fit; `advice` says what would."""
    free = free_memory(device)
    if free is not None and n_bytes > SHARE * free:
        raise ConfigError(
            f"{what} need about {n_bytes / 2**30:,.1f} GiB, and {device} has {free / 2**30:,.1f} GiB free: {advice}"
        )
