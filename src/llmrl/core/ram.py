"""Checks that there is enough memory, before an allocation: a process without memory is killed without a message."""

from __future__ import annotations

from pathlib import Path

from llmrl.core.errors import ConfigError

_CGROUP_ROOT = Path("/sys/fs/cgroup")
MAX_FRACTION_OF_FREE_MEMORY = 0.9
"""Fraction of the free memory that one allocation may take."""


def free_memory(device: str) -> int | None:
    """Return the free memory of a torch device, bytes; None if it is unknown."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.mem_get_info(device)[0]
    lines = read_system_file(Path("/proc/meminfo")).splitlines()
    free_bytes = [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    # A container or a batch job may have less memory than the machine.
    for group in list_cgroup_folders():
        limit, used = (read_system_file(group / name).strip() for name in ("memory.max", "memory.current"))
        if limit.isdecimal() and used.isdecimal():
            # The kernel frees inactive file pages before memory runs out.
            stat_fields = (line.split() for line in read_system_file(group / "memory.stat").splitlines())
            reclaimable = sum(int(n) for name, n in stat_fields if name == "inactive_file")
            free_bytes.append(int(limit) - int(used) + reclaimable)
    return min(free_bytes) if free_bytes else None


def list_cgroup_folders() -> list[Path]:
    """Return the folders of this process's control group and its parents (cgroup v2)."""
    path = _CGROUP_ROOT / read_system_file(Path("/proc/self/cgroup")).rpartition("0::/")[2].strip()
    return [path, *(parent for parent in path.parents if parent.is_relative_to(_CGROUP_ROOT))]


def read_system_file(path: Path) -> str:
    """Return the text of a file of the operating system; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


MIN_GAME_BYTES = 256
"""Minimum memory of one game, bytes: its state, one observation, and sums over its episode."""


def require_memory_for_games(n_envs: object) -> None:
    """Raise ConfigError if even the smallest games would not fit into memory; `n_envs` is the value of `env.n_envs`."""
    if isinstance(n_envs, int):
        max_games = round(MAX_FRACTION_OF_FREE_MEMORY * (free_memory("cpu") or 0) / MIN_GAME_BYTES)
        advice = f"at most {max_games:,} games fit, and only a few thousand games of most environments"
        require_memory(n_envs * MIN_GAME_BYTES, "cpu", f"env.n_envs={n_envs}: the games", advice)


def require_memory(n_bytes: int, device: str, subject: str, advice: str) -> None:
    """Raise ConfigError if `n_bytes` for `subject` exceed the free memory of `device`; `advice` is for the message."""
    free = free_memory(device)
    if free is not None and n_bytes > MAX_FRACTION_OF_FREE_MEMORY * free:
        raise ConfigError(
            f"{subject} need about {n_bytes / 2**30:,.1f} GiB, and {device} has {free / 2**30:,.1f} GiB free: {advice}"
        )
