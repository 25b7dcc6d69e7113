"""What a run is computed on, and how much of a machine one run needs (`hardware=` in the config)."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.limits import NonNegativeInt, PositiveFloat, PositiveInt

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
"""What numerical libraries read when they are loaded; too late to set in a process that has loaded them."""

RUNS_BESIDE = "LLMRL_RUNS_BESIDE"
"""Tells a run of a sweep how many share this machine's cores, itself included."""

_CGROUP = Path("/sys/fs/cgroup")
_SBATCH = re.compile(r"[A-Za-z][\w-]*")
_GPU_ID = re.compile(r"\d+|(?:GPU|MIG)-.+")


@dataclass(frozen=True)
class Slurm:
    """How jobs are submitted. None leaves a field to the cluster's default.

    Attributes:
        partition, account, qos, constraint: as sbatch takes them.
        time_min: time limit of one attempt, minutes.
        max_timeouts: how often a run that reached its time limit is put back into the queue.
        warn_s: seconds before the limit at which the run is told to save.
        setup: shell lines before the run starts (`module load ...`).
        srun_args: further arguments of srun.
        python: command that starts Python in a job; None: the interpreter that launches.
        extra: further sbatch options by name (`{mail-user: me@example.org}`).
        nodes: machines of a job, over which its processes are spread.
        processes_per_node: processes on each of them that compute the run together. A run's cores are each process's
            then, its memory and GPUs each machine's.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    time_min: PositiveInt = 1440
    max_timeouts: NonNegativeInt = 10
    warn_s: PositiveInt = 120
    setup: list[str] | None = None
    srun_args: list[str] | None = None
    python: str | None = None
    extra: dict[str, Any] | None = None
    nodes: PositiveInt = 1
    processes_per_node: PositiveInt = 1

    def __post_init__(self) -> None:
        # Each becomes a line of a shell script; a line break would begin one of its own.
        for name in ("partition", "account", "qos", "constraint"):
            if not str(getattr(self, name)).isprintable():
                raise ConfigError(f"hardware.slurm.{name}={getattr(self, name)!r} is to be one line of text")
        for key, value in (self.extra or {}).items():
            if not _SBATCH.fullmatch(key) or not str(value).isprintable():
                raise ConfigError(f"hardware.slurm.extra: {key!r}: {value!r} is no option of sbatch on one line")
        # submitit takes for a time-out what comes in the last fifth, or ten minutes, of the time limit; SLURM's warning
        # comes up to a minute early.
        latest = max(0.2 * 60 * self.time_min, 600.0) - 60
        if self.warn_s > latest:
            raise ConfigError(
                f"hardware.slurm.warn_s={self.warn_s}: with time_min={self.time_min} at most {latest:.0f}, or a "
                "time-out would be taken for a preemption and the job requeued without end"
            )

    @property
    def processes(self) -> int:
        """How many processes compute a run."""
        return self.nodes * self.processes_per_node


@dataclass(frozen=True)
class Hardware:
    """One option of `hardware=`.

    Attributes:
        launcher: `local`, processes of this machine; `slurm`, jobs of a cluster.
        device: torch device of policies and models; `auto`: a GPU where there is one.
        precision: of float32 matrix products (torch.set_float32_matmul_precision).
        threads: of torch and other numerical libraries in one run; None: as many as `cores`.
        cores: processor cores one run keeps busy; None: as many as it has game processes, or threads if those are more.
        memory_gb: memory one run needs, gigabytes.
        gpus: GPUs one run needs.
        parallel: runs of a sweep at once; None: as many as cores, memory and GPUs allow (slurm: as the cluster allows).
        slurm: how to submit; needed by `launcher: slurm`.
    """

    launcher: Literal["local", "slurm"]
    device: str
    precision: Literal["highest", "high", "medium"]
    threads: PositiveInt | None
    cores: PositiveInt | None
    memory_gb: PositiveFloat
    gpus: NonNegativeInt
    parallel: PositiveInt | None
    slurm: Slurm | None = None

    def __post_init__(self) -> None:
        if self.launcher == "slurm" and self.slurm is None:
            raise ConfigError("hardware.launcher=slurm needs the section hardware.slurm; use hardware=slurm_cpu")
        if self.slurm is not None and self.device == "cuda" and 1 < self.slurm.processes_per_node != self.gpus:
            raise ConfigError(
                f"hardware.slurm.processes_per_node={self.slurm.processes_per_node} with hardware.gpus={self.gpus}: "
                "each process has a GPU of its own"
            )

    def cores_for(self, game_processes: int) -> int:
        """Cores a run with that many game processes should have for itself."""
        return self.cores or max(self.threads or 1, game_processes)

    def apply(self, dry: bool = False) -> str:
        """Set up torch in this process as described; returns the torch device.

        Args:
            dry: the device is only planned for, and need not be here.

        Raises:
            ConfigError: the device is not here.
        """
        import torch

        if (threads := self.threads or self.cores) is not None:
            torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(self.precision)
        available = torch.cuda.is_available()
        if self.device == "auto":
            return "cuda" if available else "cpu"
        if self.device.startswith("cuda") and not available:
            if dry:
                return "cpu"
            raise ConfigError(
                f"hardware.device={self.device}, but torch {torch.__version__} sees no GPU here; use hardware=cpu"
            )
        return self.device


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
