"""`hardware/backend=slurm`: submission by submitit, queries to SLURM's queue and accounting, and the payload of jobs.

A job computes one run or several, and is requeued after a time limit or a preemption.
"""

from __future__ import annotations

import getpass
import logging
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from llmrl.core.atomic_files import describe_write_error
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.ranges import NonNegativeInt, PositiveInt
from llmrl.results.run_records import JobEnd, QueueSnapshot
from llmrl.run.ownership import JOB_ID_VARIABLE
from llmrl.run.queued import LaunchRecord, read_launch_record
from llmrl.run.signals import StopFlag
from llmrl.run.status import read_status
from llmrl.sweeps.backends.protocol import Backend, Hardware, Job, JobBatch, JobOutcome, Scheduler, SchedulerError
from llmrl.sweeps.jobs import BatchLaunch, mark_canceled, record_batch_launch
from llmrl.sweeps.machine import THREAD_VARIABLES, preserve_environment
from llmrl.sweeps.packing import build_process_payload, group_by_key, make_batches_for_n_processes
from llmrl.sweeps.payload import ProcessPayload, RunFunction, is_main_process

log = logging.getLogger(__name__)

ENDED_JOB_STATES = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}
"""SLURM's states of jobs that have ended."""


class SlurmScheduler:
    """A `Scheduler` that uses SLURM's commands on this machine."""

    @cached_property
    def cluster(self) -> str:
        """Name of the cluster; empty if SLURM cannot be queried."""
        return (read_cluster_setting("ClusterName") or "") if shutil.which("squeue") else ""

    def query_queues(self, launch_records: Sequence[LaunchRecord]) -> list[QueueSnapshot]:
        """Return snapshots of the queue with the jobs of the users in `launch_records`, one for each backend."""
        users = frozenset(launch_record.user or getpass.getuser() for launch_record in launch_records)
        jobs = _read_queue(sorted(users)) if self.cluster else None
        if jobs is None:
            raise SchedulerError("squeue does not answer on this machine")
        states = {job: state for job, (state, _) in jobs.items()}
        reasons = {job: reason for job, (state, reason) in jobs.items() if state == "PENDING" and reason != "None"}
        job_ends = {job: _make_job_end(state) for job, state in states.items() if state in ENDED_JOB_STATES}
        active_states = {job: state for job, state in states.items() if job not in job_ends}
        backends = dict.fromkeys(launch_record.backend for launch_record in launch_records)
        return [QueueSnapshot(backend, self.cluster, users, active_states, job_ends, reasons) for backend in backends]

    def find_job_ends(self, job_ids: Sequence[str]) -> Mapping[str, JobEnd]:
        """Return the ends of jobs from the accounting database; empty if the cluster has none."""
        if not job_ids or not shutil.which("sacct"):
            return {}
        arguments = ["--format=JobID,State", "--jobs", ",".join(job_ids)]
        text = run_slurm_command(["sacct", "--noheader", "--parsable2", "--allocations", *arguments])
        return {
            job: _make_job_end(state.split()[0])
            for jobs, state in (line.split("|", 1) for line in (text or "").splitlines() if "|" in line)
            if state.strip()
            for job in expand_array_job_ids(jobs)
        }

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs; running ones get SIGTERM, and SIGKILL after the cluster's KillWait."""
        if not job_ids:
            return
        try:
            subprocess.run(["scancel", *job_ids], capture_output=True, text=True, timeout=60, check=True)
        except FileNotFoundError as error:
            raise SchedulerError("scancel not found on PATH") from error
        except subprocess.SubprocessError as error:
            raise SchedulerError(f"scancel failed: {getattr(error, 'stderr', '') or error}") from error


def _make_job_end(state: str) -> JobEnd:
    return JobEnd(f"SLURM: {state}", state.startswith("CANCELLED"))  # sacct appends the name of the user


def _read_queue(users: Iterable[str]) -> dict[str, tuple[str, str]] | None:
    """Return state and reason of the jobs of `users` by id (`123` or `123_4`); None if squeue fails.

    Jobs that ended in the last minutes are included.
    """
    text = run_slurm_command(
        ["squeue", "--noheader", "--array", "--states=all", f"--user={','.join(users)}", "--format=%i|%T|%r"]
    )
    if text is None:
        return None
    fields = (line.strip().split("|", 2) for line in text.splitlines() if "|" in line)
    return {job: (state, "".join(reason)) for job, state, *reason in fields}


def expand_array_job_ids(jobs: str) -> list[str]:
    """Return the job ids in one line of sacct, in which tasks of an array that never started are combined.

    >>> expand_array_job_ids("12"), expand_array_job_ids("12_3"), expand_array_job_ids("12_[0-1,4%2]")
    (['12'], ['12_3'], ['12_0', '12_1', '12_4'])
    """
    match = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", jobs)
    if match is None:
        return [jobs]
    ranges = [part.split("-") for part in match[2].split(",") if part.strip("-")]
    return [f"{match[1]}_{task}" for bounds in ranges for task in range(int(bounds[0]), int(bounds[-1]) + 1)]


def read_cluster_setting(name: str) -> str | None:
    """Return a field of the cluster's configuration; None if it is unknown or scontrol fails."""
    match = re.search(rf"^{name}\s*=\s*(\S+)", run_slurm_command(["scontrol", "show", "config"]) or "", re.MULTILINE)
    return match.group(1) if match else None


def run_slurm_command(command: list[str]) -> str | None:
    """Return the output of one of SLURM's commands; None if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        log.debug("%s: %s", command[0], error)
        return None


_SBATCH_OPTION_NAME_PATTERN = re.compile(r"[A-Za-z][\w-]*")
_REQUIRED_COMMANDS = ("sbatch", "srun", "squeue")
_SUBMITIT_ONLY_PARAMETERS = ("array_parallelism", "signal_delay_s", "srun_args", "stderr_to_stdout")
"""Parameters of submitit that are not options of sbatch."""

PEER_EXIT_TIMEOUT_S = 60
"""Seconds between the end of the first process of a run and the kill of the others, in which they record the error."""


@dataclass(frozen=True)
class Slurm(Backend):
    """A backend that submits each run as a job of a SLURM cluster; several runs share a job for `hardware.jobs`.

    Attributes:
        partition, account, qos, constraint: options of sbatch; None: the cluster's default.
        time_min: time limit of one attempt, minutes.
        max_timeouts: maximum number of times that a job is requeued after its time limit.
        warn_s: seconds before the time limit at which runs get a signal to save and stop.
        setup: shell commands before a run starts (`module load ...`).
        srun_args: further arguments of srun.
        python: command that starts Python in a job; None: the interpreter of this process.
        extra: further sbatch options by name (`{mail-user: me@example.org}`).
        nodes: number of machines of a job.
        processes_per_node: number of processes on each machine that compute a run together. `hardware.cores` is the
            number of cores of each process; memory and GPUs are per machine.
    """

    scheduler: ClassVar[type[Scheduler] | None] = SlurmScheduler
    command_lines: ClassVar[Mapping[str, Any]] = {
        "setup": None,
        "srun_args": ["--cpu-bind=none"],  # the default of the shipped options
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
            if not _SBATCH_OPTION_NAME_PATTERN.fullmatch(key) or not str(value).isprintable():
                raise ConfigError(
                    f"hardware.backend.extra: {key!r}: {value!r} must be an option of sbatch with a value on one line"
                )
        # submitit treats a signal in the last fifth, or the last ten minutes, of the time limit as a time-out. SLURM
        # may send its warning up to a minute early.
        max_warn_s = max(0.2 * 60 * self.time_min, 600.0) - 60
        if self.warn_s > max_warn_s:
            raise ConfigError(
                f"hardware.backend.warn_s={self.warn_s} must be at most {max_warn_s:.0f} with time_min="
                f"{self.time_min}; otherwise a time-out would count as a preemption, and the job be requeued forever"
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
        missing_commands = [command for command in _REQUIRED_COMMANDS if not shutil.which(command)]
        if missing_commands:
            raise SchedulerError(
                f"{' and '.join(missing_commands)} not found on PATH: hardware=slurm_* needs SLURM's commands, as on a "
                "login node (scripts/slurm/one_node.sh sets up a cluster of one machine); hardware=local needs none"
            )
        try:
            import submitit  # noqa: F401
        except ImportError as error:
            raise ConfigError("hardware=slurm_* needs submitit: pip install 'llmrl[slurm]'") from error

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        return [
            batch
            for hardware_jobs in group_by_key(jobs, lambda job: job.hardware)
            for batch in make_batches_for_n_processes(hardware_jobs, hardware_jobs[0].hardware.jobs)
        ]

    def describe_requests(self, batches: Sequence[JobBatch]) -> list[str]:
        texts = []
        for array in group_by_key(batches, _get_job_requirements):
            hardware = array[0].hardware
            memory_gb = max(batch.memory_gb for batch in array)
            parameters = self._make_submitit_parameters(hardware, array[0].cores, memory_gb)
            setup, extra = parameters.pop("setup"), parameters.pop("additional_parameters")
            limit_text = "" if hardware.max_parallel_jobs is None else f", at most {hardware.max_parallel_jobs} at once"
            jobs = f"an array of {len(array):,} jobs{limit_text}, each" if len(array) > 1 else "1 job"
            options = {name: x for name, x in parameters.items() if name not in _SUBMITIT_ONLY_PARAMETERS} | extra
            values = {name: str(x).lower() if isinstance(x, bool) else x for name, x in options.items()}
            option_text = " ".join(f"--{name.replace('_', '-')}={value}" for name, value in values.items())
            texts.append(f"sbatch: {jobs} with {option_text}; before it starts: {'; '.join(setup)}")
        return texts

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        return batches[0].hardware.max_parallel_jobs

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        """Submit all jobs, in arrays of jobs with equal requirements that do not exceed the cluster's MaxArraySize."""
        folder = sweep_folder / "slurm"
        outcomes: list[JobOutcome] = []
        launches: list[BatchLaunch] = []
        cluster, user = SlurmScheduler().cluster, getpass.getuser()
        max_array_size = int(read_cluster_setting("MaxArraySize") or 1000)
        # A signal does not interrupt a submission before it is recorded.
        with StopFlag("no more runs are submitted") as stop_flag:
            for batch in self.make_batches(jobs):
                batch_launches, failures = record_batch_launch(batch, sweep_folder, cluster=cluster, user=user)
                launches += batch_launches
                outcomes += failures
            for array in group_by_key(launches, lambda launch: _get_job_requirements(launch.batch)):
                previous_array_id = ""
                for chunk in (array[i : i + max_array_size] for i in range(0, len(array), max_array_size)):
                    if stop_flag.requested:
                        outcomes += [mark_canceled(job) for launch in chunk for job in launch.batch.jobs]
                        continue
                    try:
                        batches = [launch.batch for launch in chunk]
                        job_ids = self._submit_array(batches, run_function, folder, previous_array_id)
                    except SchedulerError as error:
                        for launch in chunk:
                            outcomes += [
                                JobOutcome(job, job.folder, "refused", error=str(error)) for job in launch.batch.jobs
                            ]
                            launch.update_records(error=str(error))
                        continue
                    previous_array_id = job_ids[0].partition("_")[0]
                    for launch, job_id in zip(chunk, job_ids, strict=True):
                        outcomes += [
                            JobOutcome(job, job.folder, "submitted", job_id=job_id) for job in launch.batch.jobs
                        ]
                        try:
                            launch.update_records(job_id=job_id, log=str(folder / f"{job_id}_0_log.out"))
                        except RunFolderError as error:
                            log.error("job %s is submitted, but its id could not be recorded: %s", job_id, error)
        return outcomes

    def _submit_array(
        self, batches: Sequence[JobBatch], run_function: RunFunction, folder: Path, previous_array_id: str
    ) -> list[str]:
        """Submit one array, or one job, of batches with equal requirements; return the job ids.

        The jobs wait until the jobs of their prerequisites have ended, successfully or not, because a run checks its
        prerequisites when it starts. If the number of parallel jobs is limited, an array also waits for the array
        `previous_array_id`, because SLURM limits each array separately.
        """
        import submitit
        from submitit.core.utils import FailedJobError, FailedSubmissionError

        hardware = batches[0].hardware
        payloads = [SlurmPayload(build_process_payload(batch, run_function, environment={})) for batch in batches]
        memory_gb = max(batch.memory_gb for batch in batches)
        parameters = self._make_submitit_parameters(hardware, batches[0].cores, memory_gb)
        prerequisites = [prerequisite for batch in batches for job in batch.jobs for prerequisite in job.prerequisites]
        records, sweep = [read_launch_record(prerequisite.folder) for prerequisite in prerequisites], str(folder.parent)
        dependencies = list(dict.fromkeys(r.job_id for r in records if r is not None and r.job_id and r.sweep == sweep))
        dependencies += [previous_array_id] if previous_array_id and hardware.max_parallel_jobs is not None else []
        if dependencies:
            parameters["dependency"] = f"afterany:{':'.join(dependencies)}"
        try:
            executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=self.max_timeouts, python=self.python)
            executor.update_parameters(**parameters)
            with preserve_environment():
                _remove_job_environment()
                if len(payloads) == 1:
                    return [executor.submit(payloads[0]).job_id]
                return [submitted.job_id for submitted in executor.submit_array(list(payloads))]
        except (FailedSubmissionError, FailedJobError, subprocess.CalledProcessError) as error:
            reason = str(getattr(error, "stderr", "") or error).replace("sbatch: error: ", "")
            raise SchedulerError(f"sbatch refused: {' '.join(reason.split())}") from error
        except OSError as error:
            raise SchedulerError(
                f"cannot write the job's files to {folder}: {describe_write_error(folder, error)}"
            ) from error

    def _make_submitit_parameters(self, hardware: Hardware, cores: int, memory_gb: float) -> dict[str, Any]:
        """Return submitit's parameters for a job with `cores` cores per process and `memory_gb` gigabytes."""
        threads = hardware.threads or cores
        peer_wait_options = [f"--wait={PEER_EXIT_TIMEOUT_S}"] if self.processes > 1 else []
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
            "srun_args": [*(self.srun_args or []), *peer_wait_options],
            "array_parallelism": hardware.max_parallel_jobs or 1_000_000,  # submitit's default is a limit of 256
            # A job may always be requeued, because its run resumes from its checkpoint.
            "additional_parameters": {"requeue": True, **(self.extra or {})},
        }
        optional = {"gpus_per_node": hardware.gpus or None, "partition": self.partition, "account": self.account}
        optional |= {"qos": self.qos, "constraint": self.constraint}
        return parameters | {name: value for name, value in optional.items() if value is not None}


def _get_job_requirements(batch: JobBatch) -> tuple[Hardware, int, frozenset[Path]]:
    """Return hardware and cores of a job, and the folders of the runs for which it waits."""
    return (
        batch.hardware,
        batch.cores,
        frozenset(prerequisite.folder for job in batch.jobs for prerequisite in job.prerequisites),
    )


def _remove_job_environment() -> None:
    """Remove the environment variables of the job in which this process may run: sbatch would use them as options.

    The location of SLURM's configuration (`SLURM_CONF`) and the user's defaults for sbatch are not removed.
    """
    prefixes = ("SLURM_", "SLURMD_", "SRUN_", "SUBMITIT_", "PMI_", "PMIX_", JOB_ID_VARIABLE)
    for name in [name for name in os.environ if name.startswith(prefixes) and name != "SLURM_CONF"]:
        del os.environ[name]


@dataclass(frozen=True)
class SlurmPayload:
    """A function for submitit that executes a `ProcessPayload` in a SLURM job."""

    payload: ProcessPayload

    def __call__(self) -> None:
        """Compute the runs; requeue the job if a signal stopped a run before a time limit or a preemption.

        A requeued job skips runs that are finished.

        Raises:
            SystemExit: a run did not finish. The exit code is the lowest of the runs' exit codes.
        """
        if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            from submitit.helpers import TorchDistributedEnvironment

            TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        # submitit's handler counts time-outs and requeues the job. During the runs it is replaced by `StopFlag`.
        requeue_job = signal.getsignal(signal.SIGUSR2)
        exit_codes = [run_exit.exit_code for run_exit in self.payload() if run_exit.exit_code]
        if not exit_codes:
            return
        should_requeue = 128 + signal.SIGUSR2 in exit_codes or (
            128 + signal.SIGTERM in exit_codes and is_main_process() and _is_job_running()
        )
        if is_main_process() and should_requeue and callable(requeue_job):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # ignore further warnings
            try:
                requeue_job(signal.SIGUSR2, None)
            except Exception as error:
                self._record_requeue_error(f"{type(error).__name__}: {error}")
                raise
        raise SystemExit(min(exit_codes))

    def checkpoint(self) -> Any:
        """Return this payload, for submitit to submit it again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _record_requeue_error(self, text: str) -> None:
        """Record in the status of unfinished runs the reason `text` why the job was not requeued."""
        for run in self.payload.payloads:
            try:
                status = read_status(run.folder)
                if status is not None and status.state != "finished":
                    status.error = f"{text} Repeat the command, or `llmrl-sweep retry`, to resume."
                    status.write(run.folder)
            except RunFolderError as error:
                log.error("%s; could not record it in %s: %s", text, run.folder, error)


def _is_job_running(n_queries: int = 5, interval_s: float = 2.0) -> bool:
    """Return whether SLURM still counts this job as running after it has sent SIGTERM.

    A canceled or requeued job soon has another state, and SLURM ends it. A job that is preempted after a grace period
    is still RUNNING within this period, and would count as FAILED if it ended by itself.
    """
    for _ in range(n_queries):
        command = ["squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%T"]
        if (run_slurm_command(command) or "").strip() != "RUNNING":
            return False
        time.sleep(interval_s)
    return True
