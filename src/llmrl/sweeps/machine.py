"""What this machine offers the runs of a sweep."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.sweeps.backends.protocol import Hardware

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What numerical libraries read when they are loaded; too late to set in a process that has loaded them."""

RUNS_BESIDE = "LLMRL_RUNS_BESIDE"
"""Tells a run of a sweep how many share this machine's cores, itself included."""

_CGROUP = Path("/sys/fs/cgroup")
_GPU_ID = re.compile(r"\d+|(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class Machine:
    """What this machine offers a pool of runs.

    Attributes:
        cores: cores this process may use.
        memory_gb: memory that can be had now, gigabytes.
        gpus: ids of the visible GPUs, as `CUDA_VISIBLE_DEVICES` takes them.
    """

    cores: int
    memory_gb: float
    gpus: tuple[str, ...]

    @staticmethod
    def this() -> Machine:
        return Machine(_cores(), _memory_gb(), _gpus())

    def places(self, hardware: Hardware, cores: int) -> int:
        """How many runs fit side by side, each with `cores` cores; at least 1.

        Raises:
            ConfigError: there are not even the GPUs for one.
        """
        fits = [max(1, self.cores // cores), max(1, int(self.memory_gb // hardware.memory_gb))]
        if hardware.gpus and (self.gpus or hardware.device != "auto"):
            if len(self.gpus) < hardware.gpus:
                raise ConfigError(
                    f"a run needs hardware.gpus={hardware.gpus}, and this machine shows {len(self.gpus)}; "
                    "use hardware=local or hardware=cpu, or hardware=slurm_gpu on a cluster"
                )
            fits.append(len(self.gpus) // hardware.gpus)
        if hardware.parallel is not None:
            fits.append(hardware.parallel)
        return min(fits)


def _cores() -> int:
    """Cores this process may use: by affinity, by a container's quota, by SLURM's allocation."""
    found = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if os.environ.get("SLURM_CPUS_ON_NODE", "").isdecimal():
        found.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    for group in _cgroups():
        quota = _read(group / "cpu.max").split()
        if len(quota) == 2 and quota[0].isdecimal():
            found.append(int(quota[0]) // int(quota[1]))
    return max(1, min(found))


def _memory_gb() -> float:
    """Memory that can be had: what is free, within a container's limit and SLURM's allocation."""
    found = []
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    allocated = os.environ.get("SLURM_MEM_PER_NODE", "")
    if allocated.isdecimal() and int(allocated) > 0:  # 0: all there is
        found.append(int(allocated) * 1024**2)
    for group in _cgroups():
        limit, used = _read(group / "memory.max").strip(), _read(group / "memory.current").strip()
        if limit.isdecimal() and used.isdecimal():
            found.append(int(limit) - int(used))
    return min(found) / 1e9 if found else float("inf")


def _cgroups() -> list[Path]:
    """The control group of this process and those around it (version 2)."""
    own = _read(Path("/proc/self/cgroup")).rpartition("0::/")[2].strip()
    path = _CGROUP / own
    return [path, *(parent for parent in path.parents if parent.is_relative_to(_CGROUP))]


def _gpus() -> tuple[str, ...]:
    """Ids of the GPUs this process may use, without initialising CUDA in it."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # As CUDA does: what follows the first id that is none does not count.
        return tuple(takewhile(_GPU_ID.fullmatch, (gpu.strip() for gpu in visible.split(","))))
    if not shutil.which("nvidia-smi"):
        return ()
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(i) for i, line in enumerate(x for x in listed.splitlines() if x.startswith("GPU ")))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
