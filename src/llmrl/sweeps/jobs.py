"""Jobs of a sweep: search for missing runs, launch records, and outcomes."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.printable import printable
from llmrl.results.run_records import QueueSnapshot, read_run
from llmrl.run import ownership
from llmrl.run.artifacts import CONFIG_NAME, save_config
from llmrl.run.command_exit import EXIT_IN_USE
from llmrl.run.files import write_atomic
from llmrl.run.folder import LABEL_OPTIONS, create_run_folder, split_overrides
from llmrl.run.provenance import compute_code_digest
from llmrl.run.queued import LaunchRecord, record_cancellation
from llmrl.run.status import PrerequisiteRecord, read_status
from llmrl.sweeps.backends.protocol import Job, JobBatch, JobOutcome, get_qualified_backend_name

CANCELLATION_REASON = "the sweep was stopped before this run started"


def find_differing_keys(overrides: Sequence[Sequence[str]]) -> set[str]:
    """Return the override keys in which runs differ, without keys that cannot change results, and the seed.

    >>> find_differing_keys([["env=x", "principal=ucb", "seed=0"], ["env=x", "principal=llm", "seed=1"]])
    {'principal'}
    """
    values_of_runs = [split_overrides(run_overrides) for run_overrides in overrides]
    keys = {key for values in values_of_runs for key in values}
    return {key for key in keys if len({values.get(key) for values in values_of_runs}) > 1}


def select_label_overrides(overrides: Sequence[str], differing_keys: set[str]) -> list[str]:
    """Return the overrides for the label of a run folder: those of `differing_keys`, or all if there are none.

    The study, the length of the run and the language model are always included (`llmrl.run.folder.LABEL_OPTIONS`).
    """
    if not differing_keys:
        return list(overrides)
    return [o for o in overrides if o.partition("=")[0].lstrip("+~") in {*differing_keys, *LABEL_OPTIONS}]


def check_distinct_folders(jobs: Sequence[Job]) -> None:
    """Raise ConfigError if jobs with different overrides have one run folder, because a swept key has no effect."""
    first_job_by_folder: dict[Path, Job] = {}
    for job in jobs:
        first_job = first_job_by_folder.setdefault(job.folder, job)
        if keys := sorted({o.partition("=")[0] for o in set(job.overrides) ^ set(first_job.overrides)}):
            raise ConfigError(
                f"{' and '.join(keys)} cannot be swept, because it does not change results, so that all runs would "
                f"have the folder {job.folder}. Remove it from the sweep, or sweep name= as well"
            )


def find_missing_jobs(jobs: Sequence[Job], queues: Sequence[QueueSnapshot]) -> tuple[list[Job], list[JobOutcome]]:
    """Return the jobs that must be computed, one for each run, and an outcome for each other run.

    `queues` are snapshots of the queues of schedulers (`llmrl.results.run_records.read_run`).
    """
    missing_jobs: list[Job] = []
    outcomes: list[JobOutcome] = []
    folders: set[Path] = set()
    for job in jobs:
        folder = job.folder
        if folder in folders:
            continue
        folders.add(folder)
        record = read_run(folder, queues) if folder.exists() else None
        if record is not None and record.state == "finished" and not job.config["rerun"]:
            outcomes.append(JobOutcome.from_record(job, record, skipped=True, seconds=None))
        elif record is not None and record.state in ("running", "queued"):
            process_text = f"process {record.pid} on {record.host}" if record.pid else f"on {record.host}"
            error = f"{record.state} already, {f'job {record.job_id}' if record.job_id else process_text}"
            changes = {"skipped": True, "state": "elsewhere", "error": error, "seconds": None}
            outcomes.append(JobOutcome.from_record(job, record, **changes))
        else:
            missing_jobs.append(job)
    return missing_jobs, outcomes


@dataclass(frozen=True)
class BatchLaunch:
    """A batch of jobs whose launch has been recorded.

    Attributes:
        batch: jobs of one process.
        records: launch records, in the order of the jobs.
    """

    batch: JobBatch
    records: tuple[LaunchRecord, ...]

    @property
    def attempts(self) -> dict[Path, int]:
        """Number of attempts of each run before the launch, by run folder."""
        return {job.folder: record.attempt for job, record in zip(self.batch.jobs, self.records, strict=True)}

    def split_off(self, job: Job) -> BatchLaunch:
        """Return the launch of `job` in a process of its own, and update its launch record."""
        record = replace(self.records[self.batch.jobs.index(job)], other_run_folders=[])
        record.write(job.folder)
        return BatchLaunch(JobBatch((job,)), (record,))

    def update_records(self, **changes: Any) -> None:
        """Write the launch record of each run with changed fields."""
        for job, record in zip(self.batch.jobs, self.records, strict=True):
            replace(record, **changes).write(job.folder)


def record_batch_launch(
    batch: JobBatch, sweep_folder: Path, log_file: str = "", cluster: str = "", user: str = ""
) -> tuple[list[BatchLaunch], list[JobOutcome]]:
    """Record the launch of each run of a batch; arguments are those of `record_launch`.

    Returns:
        A list with the launch of the recorded runs, or an empty list if there are none; and the outcomes of the other
        runs.
    """
    recorded, failures = [], []
    for job in batch.jobs:
        try:
            recorded.append((job, record_launch(job, sweep_folder, log_file, cluster, user, batch.folders)))
        except RunFolderError as error:
            failures.append(JobOutcome(job, job.folder, "failed", error=str(error)))
    if not recorded:
        return [], failures
    jobs, records = zip(*recorded, strict=True)
    return [BatchLaunch(JobBatch(jobs), records)], failures


def record_launch(
    job: Job, sweep_folder: Path, log: str = "", cluster: str = "", user: str = "", run_folders: Sequence[Path] = ()
) -> LaunchRecord:
    """Create the run folder and record in it that this process launches the run; return the record.

    Args:
        job: job of the run.
        sweep_folder: folder of the launch.
        log: file for the output of the job; empty if unknown.
        cluster, user: cluster and user of the scheduler's queue; empty without a scheduler.
        run_folders: folders of all runs of the process of the job; empty: that of `job`.

    Raises:
        RunFolderError: the folder cannot be written, or another process has just created one for this run.
    """
    config = job.config
    root, is_private = Path(config["output_root"]), bool(config.get("private", True))
    folder = create_run_folder(root, config["name"], job.config_digest, job.label_overrides, config["seed"], is_private)
    if folder != job.folder:
        raise RunFolderError(f"another process has just created {folder} for this run; repeat the command")
    status = read_status(folder)
    pid = os.getpid()
    launch_record = LaunchRecord(
        backend=get_qualified_backend_name(job.hardware.backend),
        attempt=status.attempt if status else 0,
        job_id="",
        machine=ownership.get_machine_id(),
        pid=pid,
        process_start=ownership.get_process_start(pid) or "",
        host=socket.gethostname(),
        sweep=str(sweep_folder),
        log=log,
        cluster=cluster,
        user=user,
        submitted=time.time(),
        code=compute_code_digest(),
        overrides=job.overrides,
        other_run_folders=[str(run_folder) for run_folder in run_folders if run_folder != folder],
        after=[PrerequisiteRecord(needed.purpose, needed.name, str(needed.folder)) for needed in job.prerequisites],
    )
    if not (folder / CONFIG_NAME).exists():
        save_config(folder / CONFIG_NAME, config)
    launch_record.write(folder)
    return launch_record


def mark_canceled(job: Job) -> JobOutcome:
    """Record in the run folder, if it exists, that the job was canceled before it started; return its outcome."""
    if job.folder.is_dir():
        record_cancellation(job.folder, CANCELLATION_REASON)
    return JobOutcome(job, job.folder, "canceled", error=CANCELLATION_REASON)


def outcome_from_exit(
    job: Job,
    attempt: int,
    exit_code: int,
    error: str = "",
    stop_signal: int | None = None,
    seconds: float | None = None,
) -> JobOutcome:
    """Return the outcome of a run whose process has ended, from its exit code and its record.

    Args:
        job: job of the run.
        attempt: number of attempts before the launch.
        exit_code: exit code of the process; negative: minus the number of the signal that killed it.
        error: error text, used if the run could not record its failure.
        stop_signal: number of the signal that stopped the sweep; None without one.
        seconds: duration of the process; None if unknown.
    """
    record = read_run(job.folder)
    outcome = JobOutcome.from_record(job, record, seconds=seconds)
    has_started = record.attempt > attempt
    if exit_code == EXIT_IN_USE:
        return replace(outcome, state="elsewhere", skipped=True, error=error)
    if not has_started and stop_signal is not None and exit_code in (-stop_signal, 128 + stop_signal):
        return replace(mark_canceled(job), seconds=outcome.seconds)
    if exit_code < 0:
        return replace(outcome, state="lost", error=f"its process was killed by {signal.Signals(-exit_code).name}")
    if exit_code > 0 and (not has_started or record.state in ("queued", "running", "lost")):
        # The run could not record its own failure.
        return replace(outcome, state="failed", error=error or f"its process ended with exit code {exit_code}")
    return outcome


def has_run_ended(job: Job, attempt: int) -> bool:
    """Return whether the run of `job` has ended in an attempt later than number `attempt`."""
    record = read_run(job.folder)
    return record.attempt > attempt and record.state not in ("queued", "running", "lost", "unreadable")


def write_log_header(log_file: Path, batch: JobBatch) -> None:
    """Write a log file with the command and folder of each run of a batch."""
    lines = [f"{shlex.join([job.command, *job.overrides])}\n{job.folder}\n" for job in batch.jobs]
    write_atomic(log_file, "".join([*lines, "\n"]))


def redirect_output(log_file: str) -> None:
    """Redirect standard output and standard error of this process to the end of a file."""
    output_fd = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.close(output_fd)


def describe_outcome(outcome: JobOutcome) -> str:
    """Return the outcome of a run as one line of text."""
    result_text = f", result {outcome.result:.5g}" if outcome.result is not None else ""
    error_text = f": {outcome.error}" if outcome.error else ""
    duration = f" after {outcome.seconds:.0f} s" if outcome.seconds is not None else ""
    return printable(f"{outcome.state}{duration}{result_text}{error_text} ({outcome.folder})", multiline=False)


def group_into_waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Divide jobs into waves: each job is in the first wave after the waves of its prerequisites.

    Prerequisites that are not in `jobs` are finished, or another process computes them.
    """
    folders = {job.folder for job in jobs}
    wave_index_by_folder: dict[Path, int] = {}

    def compute_wave_index(job: Job) -> int:
        if job.folder not in wave_index_by_folder:
            prerequisites = [prerequisite for prerequisite in job.prerequisites if prerequisite.folder in folders]
            wave_index_by_folder[job.folder] = 1 + max(map(compute_wave_index, prerequisites), default=-1)
        return wave_index_by_folder[job.folder]

    waves: list[list[Job]] = [[] for _ in range(1 + max(map(compute_wave_index, jobs), default=-1))]
    for job in jobs:
        waves[compute_wave_index(job)].append(job)
    return waves
