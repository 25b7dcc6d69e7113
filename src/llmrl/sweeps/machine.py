"""Cores, memory and GPUs of this machine, for the runs of a sweep."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile

from llmrl.core.errors import ConfigError
from llmrl.core.ram import free_memory, list_cgroup_folders, read_system_file
from llmrl.sweeps.backends.protocol import Hardware

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""Environment variables for the number of threads, which numerical libraries read only when they are loaded."""

N_PARALLEL_PROCESSES_VARIABLE = "LLMRL_PARALLEL_PROCESSES"
"""Environment variable with the number of processes of a sweep that share this machine's cores, this one included."""

_GPU_ID_PATTERN = re.compile(r"\d+|(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class Machine:
    """The resources of this machine.

    Attributes:
        cores: number of cores that this process may use.
        memory_gb: available memory, gigabytes; infinite if unknown.
        gpu_ids: ids of the visible GPUs, as in `CUDA_VISIBLE_DEVICES`.
    """

    cores: int
    memory_gb: float
    gpu_ids: tuple[str, ...]

    @staticmethod
    def detect() -> Machine:
        """Return the resources of this machine that this process may use."""
        return Machine(_count_cores(), _measure_available_memory_gb(), _list_visible_gpu_ids())

    def count_parallel_runs(self, hardware: Hardware, cores: int) -> int:
        """Return the number of runs with `cores` cores each that fit on this machine at once; at least 1.

        Raises:
            ConfigError: the machine has too few GPUs for one run.
        """
        limits = [max(1, self.cores // cores), max(1, int(self.memory_gb // hardware.memory_gb))]
        if hardware.gpus and (self.gpu_ids or hardware.device != "auto"):
            if len(self.gpu_ids) < hardware.gpus:
                raise ConfigError(
                    f"a run needs hardware.gpus={hardware.gpus}, but this machine has {len(self.gpu_ids)}; "
                    "use hardware=local or hardware=cpu, or hardware=slurm_gpu on a cluster"
                )
            limits.append(len(self.gpu_ids) // hardware.gpus)
        if hardware.parallel is not None:
            limits.append(hardware.parallel)
        return min(limits)


@contextmanager
def preserve_environment() -> Iterator[None]:
    """Restore the environment variables of this process at the end of the `with` block."""
    previous_environment = dict(os.environ)
    try:
        yield
    finally:
        for name in os.environ.keys() - previous_environment.keys():
            del os.environ[name]
        os.environ.update(previous_environment)


def _count_cores() -> int:
    """Return the number of cores for this process: the minimum of affinity, SLURM's allocation and cgroup quotas."""
    limits = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    if os.environ.get("SLURM_CPUS_ON_NODE", "").isdecimal():
        limits.append(int(os.environ["SLURM_CPUS_ON_NODE"]))
    for group in list_cgroup_folders():
        quota = read_system_file(group / "cpu.max").split()
        if len(quota) == 2 and quota[0].isdecimal():
            limits.append(int(quota[0]) // int(quota[1]))
    return max(1, min(limits))


def _measure_available_memory_gb() -> float:
    """Return the available memory, gigabytes, within the container's limit and SLURM's allocation."""
    limits = [] if (free_bytes := free_memory("cpu")) is None else [free_bytes]
    slurm_mebibytes = os.environ.get("SLURM_MEM_PER_NODE", "")
    if slurm_mebibytes.isdecimal() and int(slurm_mebibytes) > 0:  # 0: no limit
        limits.append(int(slurm_mebibytes) * 1024**2)
    return min(limits) / 1e9 if limits else float("inf")


def _list_visible_gpu_ids() -> tuple[str, ...]:
    """Return the ids of the GPUs that this process may use, without initializing CUDA."""
    visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_devices is not None:
        # As in CUDA: everything after the first invalid id is ignored.
        return tuple(takewhile(_GPU_ID_PATTERN.fullmatch, (gpu.strip() for gpu in visible_devices.split(","))))
    if not shutil.which("nvidia-smi"):
        return ()
    try:
        output = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(str(i) for i, line in enumerate(x for x in output.splitlines() if x.startswith("GPU ")))
