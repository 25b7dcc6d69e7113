"""`hardware/backend=slurm`: jobs of a cluster, submitted through submitit."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from llmrl.core.atomic_files import why
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.run.ownership import JOB_ID
from llmrl.run.queued import Queued
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend, Hardware, Scheduler, SchedulerError
from llmrl.sweeps.backends.slurm_status import SlurmQueue, output_of, setting
from llmrl.sweeps.machine import THREAD_VARIABLES

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job, JobOutcome, Pack
    from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)
T = TypeVar("T")

_SBATCH = re.compile(r"[A-Za-z][\w-]*")
_COMMANDS = ("sbatch", "srun", "squeue")
_OF_SUBMITIT = ("array_parallelism", "signal_delay_s", "srun_args", "stderr_to_stdout")
"""Parameters that submitit turns into other options of sbatch or srun."""


@dataclass(frozen=True)
class Slurm(Backend):
    """Submit each run as a job of a SLURM cluster, several as one where there are to be fewer jobs (`hardware.jobs`);
    None leaves a field to the cluster's default.

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

    scheduler: ClassVar[type[Scheduler] | None] = SlurmQueue
    command_lines: ClassVar[Mapping[str, Any]] = {
        "setup": None,
        "srun_args": ["--cpu-bind=none"],  # what our options have
        "python": None,
        "extra": None,
    }

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
                raise ConfigError(f"hardware.backend.{name}={getattr(self, name)!r} is to be one line of text")
        for key, value in (self.extra or {}).items():
            if not _SBATCH.fullmatch(key) or not str(value).isprintable():
                raise ConfigError(f"hardware.backend.extra: {key!r}: {value!r} is no option of sbatch on one line")
        # submitit takes for a time-out what comes in the last fifth, or ten minutes, of the time limit; SLURM's warning
        # comes up to a minute early.
        latest = max(0.2 * 60 * self.time_min, 600.0) - 60
        if self.warn_s > latest:
            raise ConfigError(
                f"hardware.backend.warn_s={self.warn_s}: with time_min={self.time_min} at most {latest:.0f}, or a "
                "time-out would be taken for a preemption and the job requeued without end"
            )

    @property
    def processes(self) -> int:
        return self.nodes * self.processes_per_node

    def check(self, hardware: Hardware) -> None:
        if hardware.device == "cuda" and 1 < self.processes_per_node != hardware.gpus:
            raise ConfigError(
                f"hardware.backend.processes_per_node={self.processes_per_node} with hardware.gpus={hardware.gpus}: "
                "each process has a GPU of its own"
            )

    def prepare(self, jobs: Sequence[Job]) -> None:
        absent = [command for command in _COMMANDS if not shutil.which(command)]
        if absent:
            raise SchedulerError(
                f"{' and '.join(absent)} not found on PATH: hardware=slurm_* needs SLURM's commands, as on a cluster's "
                "login node (scripts/slurm/one_node.sh sets up a cluster of one machine); hardware=local needs none"
            )
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise ConfigError("hardware=slurm_* needs submitit: pip install 'llmrl[slurm]'") from error

    def packs(self, jobs: Sequence[Job]) -> list[Pack]:
        from llmrl.sweeps.packing import packed_into

        by_hardware: list[list[Job]] = []
        for job in jobs:
            own = next((each for each in by_hardware if each[0].hardware == job.hardware), None)
            if own is None:
                by_hardware.append([job])
            else:
                own.append(job)
        return [pack for alike in by_hardware for pack in packed_into(alike, alike[0].hardware.jobs)]

    def requests(self, packs: Sequence[Pack]) -> list[str]:
        texts = []
        for alike in _alike(packs, lambda pack: pack):
            hardware = alike[0].hardware
            parameters = self._parameters(hardware, alike[0].cores, max(pack.memory_gb for pack in alike))
            setup, extra = parameters.pop("setup"), parameters.pop("additional_parameters")
            limit = "" if hardware.jobs_at_once is None else f", at most {hardware.jobs_at_once} at once"
            jobs = f"an array of {len(alike):,} jobs{limit}" if len(alike) > 1 else "1 job"
            options = {name: value for name, value in parameters.items() if name not in _OF_SUBMITIT} | extra
            given = " ".join(f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items())
            texts.append(f"sbatch: {jobs}, each with {given}; before it starts: {'; '.join(setup)}")
        return texts

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        return packs[0].hardware.jobs_at_once

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[JobOutcome]:
        """Submit all jobs, as arrays of those with equal needs, no array larger than the cluster allows."""
        from llmrl.sweeps.backends.protocol import JobOutcome
        from llmrl.sweeps.jobs import cancelled

        folder = sweep_folder / "slurm"
        outcomes: list[JobOutcome] = []
        taken: list[_Taken] = []
        limit = int(setting("MaxArraySize") or 1000)
        # A signal waits until what has been submitted is written down.
        with StopFlag("no more runs are submitted") as stop:
            for pack in self.packs(jobs):
                found, refused = _take_on(pack, sweep_folder)
                taken += found
                outcomes += refused
            for alike in _alike(taken, lambda each: each.pack):
                before = ""
                for chunk in (alike[i : i + limit] for i in range(0, len(alike), limit)):
                    if stop.requested:
                        outcomes += [cancelled(job) for each in chunk for job in each.pack.jobs]
                        continue
                    try:
                        ids = self._submit_array([each.pack for each in chunk], task, folder, before)
                    except SchedulerError as error:
                        for each in chunk:
                            outcomes += [JobOutcome(j, j.folder, "refused", error=str(error)) for j in each.pack.jobs]
                            each.write(error=str(error))
                        continue
                    before = ids[0].partition("_")[0]
                    for each, job_id in zip(chunk, ids, strict=True):
                        outcomes += [JobOutcome(job, job.folder, "submitted", job_id=job_id) for job in each.pack.jobs]
                        try:
                            each.write(job_id=job_id, log=str(folder / f"{job_id}_0_log.out"))
                        except RunFolderError as error:
                            log.error("job %s is submitted, and its id could not be written down: %s", job_id, error)
        return outcomes

    def _submit_array(self, packs: Sequence[Pack], task: Task, folder: Path, before: str) -> list[str]:
        """Submit one array, or one job, of packs with the same needs; returns the job ids.

        It waits until the jobs that its runs need have ended, however that was: runs look at what came of them. Where
        jobs at once are limited, an array waits for the one `before` it, too: SLURM limits each array by itself.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        from llmrl.sweeps.backends.slurm_work import ClusterWork
        from llmrl.sweeps.jobs import ids_before
        from llmrl.sweeps.packing import works_of

        hardware = packs[0].hardware
        works = [ClusterWork(works_of(pack, task, {})) for pack in packs]
        parameters = self._parameters(hardware, packs[0].cores, max(pack.memory_gb for pack in packs))
        limited = before and hardware.jobs_at_once is not None
        first = ids_before([job for pack in packs for job in pack.jobs], folder.parent) + ([before] if limited else [])
        if first:
            parameters["dependency"] = f"afterany:{':'.join(first)}"
        try:
            executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=self.max_timeouts, python=self.python)
            executor.update_parameters(**parameters)
            with _outside_of_allocations():
                if len(works) == 1:
                    return [executor.submit(works[0]).job_id]
                return [submitted.job_id for submitted in executor.submit_array(list(works))]
        except (FailedSubmissionError, FailedJobError, subprocess.CalledProcessError) as error:
            raise SchedulerError(self._why(error)) from error
        except OSError as error:
            raise SchedulerError(f"cannot write the job's files to {folder}: {why(folder, error)}") from error

    def _parameters(self, hardware: Hardware, cores: int, memory_gb: float) -> dict[str, Any]:
        """submitit's parameters."""
        from llmrl.sweeps.backends.slurm_work import ALONE_S

        threads = hardware.threads or cores
        one_gone = [f"--wait={ALONE_S}"] if self.processes > 1 else []
        parameters: dict[str, Any] = {
            "job_name": "llmrl",
            "time": self.time_min,
            "mem": f"{round(memory_gb * 1000)}M",
            "cpus_per_task": cores,
            "ntasks_per_node": self.processes_per_node,
            "nodes": self.nodes,
            "signal_delay_s": self.warn_s,
            "stderr_to_stdout": True,
            "setup": [*(f"export {name}={threads}" for name in THREAD_VARIABLES), *(self.setup or [])],
            "srun_args": [*(self.srun_args or []), *one_gone],
            "array_parallelism": hardware.jobs_at_once or 1_000_000,  # submitit's default is a limit of 256
            # A job may always go back into the queue: its run goes on where it was.
            "additional_parameters": {"requeue": True, **(self.extra or {})},
        }
        if hardware.gpus:
            parameters["gpus_per_node"] = hardware.gpus
        for name in ("partition", "account", "qos", "constraint"):
            if (value := getattr(self, name)) is not None:
                parameters[name] = value
        return parameters

    def _why(self, error: Exception) -> str:
        """sbatch's words, and what would work where that can be said."""
        text = str(getattr(error, "stderr", "") or error).strip()
        said = " ".join(text.replace("sbatch: error: ", "").splitlines()) or type(error).__name__
        hint = ""
        if "partition" in said.lower():
            partitions = (output_of(["sinfo", "--noheader", "--format=%R"]) or "").split()
            hint = f"; hardware.backend.partition={self.partition}, and there are: {', '.join(partitions) or 'none'}"
        return f"sbatch refused: {said}{hint}"


def _option(value: Any) -> str:
    """Return a value as sbatch takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class _Taken:
    """A job that has been taken on: its runs, and what was written down of each."""

    pack: Pack
    queued: tuple[Queued, ...]

    def write(self, **changes: Any) -> None:
        """Write down more of each of its runs."""
        for job, queued in zip(self.pack.jobs, self.queued, strict=True):
            replace(queued, **changes).write(job.folder)


def _take_on(pack: Pack, sweep_folder: Path) -> tuple[list[_Taken], list[JobOutcome]]:
    """Take the runs of a job on; returns it, if there are any that could be, and what became of the others."""
    from llmrl.sweeps.backends.protocol import JobOutcome, Pack
    from llmrl.sweeps.jobs import take_on

    cluster, user = SlurmQueue().cluster, getpass.getuser()
    taken: list[tuple[Job, Queued]] = []
    failed = []
    for job in pack.jobs:
        try:
            queued = take_on(job, sweep_folder, cluster=cluster, user=user, beside=pack.folders)
            taken.append((job, queued))
        except RunFolderError as error:
            failed.append(JobOutcome(job, job.folder, "failed", error=str(error)))
    if not taken:
        return [], failed
    return [_Taken(Pack(tuple(job for job, _ in taken)), tuple(queued for _, queued in taken))], failed


def _alike(jobs: Sequence[T], pack_of: Callable[[T], Pack]) -> list[list[T]]:
    """Group jobs by what they ask of the cluster, and by what they wait for."""
    groups: list[list[T]] = []
    for job in jobs:
        for group in groups:
            if _asks(pack_of(group[0])) == _asks(pack_of(job)):
                group.append(job)
                break
        else:
            groups.append([job])
    return groups


def _asks(pack: Pack) -> tuple[Hardware, int, frozenset[Path]]:
    """What a job asks of the cluster, and the runs that it waits for."""
    return pack.hardware, pack.cores, frozenset(each.folder for job in pack.jobs for each in job.after)


@contextmanager
def _outside_of_allocations() -> Iterator[None]:
    """Without the variables of a job this process may be in: sbatch would take them for what is wanted.

    Where SLURM's own configuration is (`SLURM_CONF`), and defaults a user has set for sbatch, stay.
    """
    of_a_job = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", JOB_ID)
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith(of_a_job) and name != "SLURM_CONF"
    }
    for name in inherited:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(inherited)
