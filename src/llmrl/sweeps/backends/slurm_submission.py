"""`hardware/backend=slurm`: jobs of a cluster, submitted by submitit."""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.run.ownership import JOB_ID
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend, Hardware, Job, JobOutcome, Pack, Scheduler, SchedulerError
from llmrl.sweeps.backends.slurm_status import SlurmQueue, setting
from llmrl.sweeps.backends.slurm_work import ALONE_S, ClusterWork
from llmrl.sweeps.jobs import Claim, cancelled, claim, prerequisite_job_ids
from llmrl.sweeps.machine import THREAD_VARIABLES
from llmrl.sweeps.packing import group_equal, pack_into, works_of
from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)

_SBATCH = re.compile(r"[A-Za-z][\w-]*")
_COMMANDS = ("sbatch", "srun", "squeue")
_SUBMITIT_PARAMETERS = ("array_parallelism", "signal_delay_s", "srun_args", "stderr_to_stdout")
"""Parameters of submitit that are not options of sbatch."""


@dataclass(frozen=True)
class Slurm(Backend):
    """A backend that submits each run as a job of a SLURM cluster; several runs share a job for `hardware.jobs`.

    Attributes:
        partition, account, qos, constraint: options of sbatch; None: the cluster's default.
        time_min: time limit of one attempt, minutes.
        max_timeouts: number of times that a run which reached its time limit is queued again.
        warn_s: seconds before the limit at which the run is signaled to save.
        setup: shell lines before the run starts (`module load ...`).
        srun_args: further arguments of srun.
        python: command that starts Python in a job; None: the interpreter that launches.
        extra: further sbatch options by name (`{mail-user: me@example.org}`).
        nodes: number of machines of a job, over which its processes are distributed.
        processes_per_node: number of processes on each machine that compute the run together. `hardware.cores` is then
            the number of cores of each process, and memory and GPUs are those of each machine.
    """

    scheduler: ClassVar[type[Scheduler] | None] = SlurmQueue
    command_lines: ClassVar[Mapping[str, Any]] = {
        "setup": None,
        "srun_args": ["--cpu-bind=none"],  # the value of the shipped options
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
        # Each value is written into a line of a shell script, where a line break would start another command.
        for name in ("partition", "account", "qos", "constraint"):
            if not str(getattr(self, name)).isprintable():
                raise ConfigError(f"hardware.backend.{name}={getattr(self, name)!r} must be one line of text")
        for key, value in (self.extra or {}).items():
            if not _SBATCH.fullmatch(key) or not str(value).isprintable():
                raise ConfigError(
                    f"hardware.backend.extra: {key!r}: {value!r} must be an option of sbatch with a value on one line"
                )
        # submitit regards a signal in the last fifth, or ten minutes, of the time limit as a time-out; SLURM's warning
        # comes up to a minute early.
        latest = max(0.2 * 60 * self.time_min, 600.0) - 60
        if self.warn_s > latest:
            raise ConfigError(
                f"hardware.backend.warn_s={self.warn_s} must be at most {latest:.0f} with time_min={self.time_min}; "
                "otherwise a time-out would count as a preemption, and the job would be requeued forever"
            )

    @property
    def processes(self) -> int:
        return self.nodes * self.processes_per_node

    def check(self, hardware: Hardware) -> None:
        if hardware.device == "cuda" and 1 < self.processes_per_node != hardware.gpus:
            raise ConfigError(
                f"hardware.backend.processes_per_node={self.processes_per_node} must equal hardware.gpus="
                f"{hardware.gpus}, because each process needs a GPU of its own"
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
        groups = group_equal(jobs, lambda job: job.hardware)
        return [pack for hardware_jobs in groups for pack in pack_into(hardware_jobs, hardware_jobs[0].hardware.jobs)]

    def requests(self, packs: Sequence[Pack]) -> list[str]:
        texts = []
        for array in group_equal(packs, _needs):
            hardware = array[0].hardware
            parameters = self._parameters(hardware, array[0].cores, max(pack.memory_gb for pack in array))
            setup, extra = parameters.pop("setup"), parameters.pop("additional_parameters")
            limit = "" if hardware.jobs_at_once is None else f", at most {hardware.jobs_at_once} at once"
            jobs = f"an array of {len(array):,} jobs{limit}, each" if len(array) > 1 else "1 job"
            options = {name: value for name, value in parameters.items() if name not in _SUBMITIT_PARAMETERS} | extra
            option_text = " ".join(f"--{name.replace('_', '-')}={_option(value)}" for name, value in options.items())
            texts.append(f"sbatch: {jobs} with {option_text}; before it starts: {'; '.join(setup)}")
        return texts

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        return packs[0].hardware.jobs_at_once

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[JobOutcome]:
        """Submit all jobs, as arrays of jobs with equal requirements that are no larger than the cluster allows."""
        folder = sweep_folder / "slurm"
        outcomes: list[JobOutcome] = []
        claims: list[Claim] = []
        cluster, user = SlurmQueue().cluster, getpass.getuser()
        limit = int(setting("MaxArraySize") or 1000)
        # A signal takes effect after submissions are recorded.
        with StopFlag("no more runs are submitted") as stop:
            for pack in self.packs(jobs):
                pack_claims, failures = claim(pack, sweep_folder, cluster=cluster, user=user)
                claims += pack_claims
                outcomes += failures
            for array in group_equal(claims, lambda accepted: _needs(accepted.pack)):
                previous_id = ""
                for chunk in (array[i : i + limit] for i in range(0, len(array), limit)):
                    if stop.requested:
                        outcomes += [cancelled(job) for accepted in chunk for job in accepted.pack.jobs]
                        continue
                    try:
                        ids = self._submit_array([accepted.pack for accepted in chunk], task, folder, previous_id)
                    except SchedulerError as error:
                        for accepted in chunk:
                            refused = accepted.pack.jobs
                            outcomes += [JobOutcome(job, job.folder, "refused", error=str(error)) for job in refused]
                            accepted.write(error=str(error))
                        continue
                    previous_id = ids[0].partition("_")[0]
                    for accepted, job_id in zip(chunk, ids, strict=True):
                        submitted = accepted.pack.jobs
                        outcomes += [JobOutcome(job, job.folder, "submitted", job_id=job_id) for job in submitted]
                        try:
                            accepted.write(job_id=job_id, log=str(folder / f"{job_id}_0_log.out"))
                        except RunFolderError as error:
                            log.error("job %s is submitted, but its id could not be recorded: %s", job_id, error)
        return outcomes

    def _submit_array(self, packs: Sequence[Pack], task: Task, folder: Path, previous_id: str) -> list[str]:
        """Submit one array, or one job, of packs with equal requirements; return the job ids.

        The jobs wait until the jobs whose runs they need have ended, successfully or not, because runs check this
        themselves. If the number of jobs at once is limited, an array also waits for the array of job `previous_id`,
        because SLURM limits each array separately.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        hardware = packs[0].hardware
        works = [ClusterWork(works_of(pack, task, {})) for pack in packs]
        parameters = self._parameters(hardware, packs[0].cores, max(pack.memory_gb for pack in packs))
        is_chained = previous_id and hardware.jobs_at_once is not None
        first = prerequisite_job_ids([job for pack in packs for job in pack.jobs], folder.parent) + (
            [previous_id] if is_chained else []
        )
        if first:
            parameters["dependency"] = f"afterany:{':'.join(first)}"
        try:
            executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=self.max_timeouts, python=self.python)
            executor.update_parameters(**parameters)
            with _clean_environment():
                if len(works) == 1:
                    return [executor.submit(works[0]).job_id]
                return [submitted.job_id for submitted in executor.submit_array(list(works))]
        except (FailedSubmissionError, FailedJobError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).replace("sbatch: error: ", "")
            raise SchedulerError(f"sbatch refused: {' '.join(reason.split())}") from error
        except OSError as error:
            raise SchedulerError(
                f"cannot write the job's files to {folder}: {describe_write_error(folder, error)}"
            ) from error

    def _parameters(self, hardware: Hardware, cores: int, memory_gb: float) -> dict[str, Any]:
        """Return the parameters for submitit."""
        threads = hardware.threads or cores
        wait_options = [f"--wait={ALONE_S}"] if self.processes > 1 else []
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
            "srun_args": [*(self.srun_args or []), *wait_options],
            "array_parallelism": hardware.jobs_at_once or 1_000_000,  # submitit's default is a limit of 256
            # A job may always be requeued, because its run resumes from its checkpoint.
            "additional_parameters": {"requeue": True, **(self.extra or {})},
        }
        if hardware.gpus:
            parameters["gpus_per_node"] = hardware.gpus
        for name in ("partition", "account", "qos", "constraint"):
            if (value := getattr(self, name)) is not None:
                parameters[name] = value
        return parameters


def _option(value: Any) -> str:
    """Return a value in sbatch's syntax."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _needs(pack: Pack) -> tuple[Hardware, int, frozenset[Path]]:
    """Return the requirements of a job, and the folders of the runs that it waits for."""
    return pack.hardware, pack.cores, frozenset(prerequisite.folder for job in pack.jobs for prerequisite in job.after)


@contextmanager
def _clean_environment() -> Iterator[None]:
    """Remove the variables of a job that this process may be in, because sbatch would use them as options.

    The location of SLURM's configuration (`SLURM_CONF`) and the user's defaults for sbatch are kept.
    """
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", JOB_ID)
    inherited = {
        name: value for name, value in os.environ.items() if name.startswith(prefixes) and name != "SLURM_CONF"
    }
    for name in inherited:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(inherited)
