"""The runs of a sweep as jobs: finding the missing ones, taking them on, and judging how they ended."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.analysis.runs import Queue, read_run
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.printable import printable
from llmrl.run import ownership
from llmrl.run.artifacts import CONFIG_NAME, save_config
from llmrl.run.command_exit import EXIT_IN_USE
from llmrl.run.files import write_atomic
from llmrl.run.folder import run_folder, split_overrides
from llmrl.run.folder_names import named
from llmrl.run.provenance import code_digest
from llmrl.run.queued import Queued, cancelled_by, read_queued
from llmrl.run.source_copies import save_sources, sources_of
from llmrl.run.status import PrerequisiteRecord, read_status
from llmrl.sweeps.backends.protocol import Job, JobOutcome, Pack, name_of

STOPPED = "the sweep was stopped before this run's turn"


def differing_keys(overrides: Sequence[Sequence[str]]) -> set[str]:
    """Return the override keys in which runs differ, without those that cannot change results, such as the seed.

    >>> differing_keys([["env=x", "principal=ucb", "seed=0"], ["env=x", "principal=llm", "seed=1"]])
    {'principal'}
    """
    split = [split_overrides(of_run) for of_run in overrides]
    keys = {key for one in split for key in one}
    return {key for key in keys if len({one.get(key) for one in split}) > 1}


def named_by(overrides: Sequence[str], differing: set[str]) -> list[str]:
    """Return the overrides for the label of a run folder: those that differ within its sweep, or all if none do.

    The study, the length of the run and the language model are always included (`llmrl.run.folder_names.ALWAYS`).
    """
    return named(overrides, differing) if differing else list(overrides)


def check_distinct(jobs: Sequence[Job]) -> None:
    """Raise ConfigError if jobs that were typed differently have one run folder: a swept key cannot change results."""
    first: dict[Path, Job] = {}
    for job in jobs:
        other = first.setdefault(job.folder, job)
        if keys := sorted({o.partition("=")[0] for o in set(job.overrides) ^ set(other.overrides)}):
            raise ConfigError(
                f"{' and '.join(keys)}: different values are not different runs, because they are not to change "
                f"results; both would be {job.folder}. Leave the sweep over it out, or sweep name= with it"
            )


def missing(jobs: Sequence[Job], queues: Sequence[Queue]) -> tuple[list[Job], list[JobOutcome]]:
    """Return the jobs that still have to be computed, and an outcome for each of the others.

    Jobs of the same run are merged. `queues`: see `llmrl.analysis.runs.read_run`.
    """
    todo: list[Job] = []
    skipped: list[JobOutcome] = []
    seen: set[Path] = set()
    for job in jobs:
        folder = job.folder
        if folder in seen:
            continue
        seen.add(folder)
        record = read_run(folder, queues) if folder.exists() else None
        if record is not None and record.state == "finished" and not job.config["rerun"]:
            skipped.append(JobOutcome.of(job, record, skipped=True, seconds=None))
        elif record is not None and record.state in ("running", "queued"):
            place = f"job {record.job_id}" if record.job_id else f"process {record.pid} on {record.host}"
            text = f"{record.state} already, {place if record.pid or record.job_id else 'on ' + record.host}"
            skipped.append(JobOutcome.of(job, record, skipped=True, state="elsewhere", error=text, seconds=None))
        else:
            todo.append(job)
    return todo, skipped


def take_on(
    job: Job,
    sweep: Path,
    log: str = "",
    cluster: str = "",
    user: str = "",
    beside: Sequence[Path] = (),
    deaths: int = 0,
) -> Queued:
    """Make the run folder and record in it that this process has taken the run on; return the record.

    Args:
        job: job of the run.
        sweep: folder of the launch.
        log: file for the output of the job, if known.
        cluster, user: cluster and user of its scheduler's queue; empty without a scheduler.
        beside: folders of the other runs that its process will compute.
        deaths: number of times that its process has died in this launch.

    Raises:
        RunFolderError: the folder cannot be written, or another process has just made one for this run.
    """
    c = job.config
    folder = run_folder(
        Path(c["output_root"]), c["name"], job.digest, job.naming, c["seed"], bool(c.get("private", True))
    )
    if folder != job.folder:
        raise RunFolderError(f"another process has just made {folder} for this run; repeat the command")
    status = read_status(folder)
    pid = os.getpid()
    queued = Queued(
        backend=name_of(job.hardware.backend),
        attempt=status.attempt if status else 0,
        job_id="",
        machine=ownership.this_machine(),
        pid=pid,
        process_start=ownership.process_start(pid) or "",
        host=socket.gethostname(),
        sweep=str(sweep),
        log=log,
        cluster=cluster,
        user=user,
        submitted=time.time(),
        code=code_digest(),
        overrides=job.overrides,
        beside=[str(other) for other in beside if other != folder],
        deaths=deaths,
        after=[PrerequisiteRecord(other.what, other.name, str(other.folder)) for other in job.after],
    )
    if not (folder / CONFIG_NAME).exists():
        save_config(folder / CONFIG_NAME, c)
    save_sources(folder, sources_of(c))
    queued.write(folder)
    return queued


def cancelled(job: Job) -> JobOutcome:
    """Return the outcome of a job whose launcher was stopped before it began; also record it in its folder, if any."""
    if job.folder.is_dir():
        cancelled_by(job.folder, STOPPED)
    return JobOutcome(job, job.folder, "cancelled", error=STOPPED)


def left_behind(
    job: Job, attempt: int, code: int, said: str = "", stopped_by: int | None = None, seconds: float | None = None
) -> JobOutcome:
    """Return the outcome of a run whose process has ended, from its exit code and its record.

    Args:
        job: job of the run.
        attempt: number of attempts when it was taken on.
        code: exit code; negative: number of the signal that killed the process.
        said: short error text, for a run that could not record its failure.
        stopped_by: number of the signal that stopped the sweep; None without one.
        seconds: duration; None if unknown.
    """
    record = read_run(job.folder)
    outcome = JobOutcome.of(job, record, seconds=seconds)
    begun = record.attempt > attempt
    if code == EXIT_IN_USE:
        return replace(outcome, state="elsewhere", skipped=True, error=said)
    if not begun and stopped_by is not None and code in (-stopped_by, 128 + stopped_by):
        return replace(cancelled(job), seconds=outcome.seconds)
    if code < 0:
        return replace(outcome, state="lost", error=f"its process was killed by {signal.Signals(-code).name}")
    if code > 0 and (not begun or record.state in ("queued", "running", "lost")):
        # The run could not record its own failure.
        return replace(outcome, state="failed", error=said or f"its process ended with exit code {code}")
    return outcome


def has_ended(job: Job, attempt: int) -> bool:
    """Return whether a run that was taken on after `attempt` attempts has ended since."""
    record = read_run(job.folder)
    return record.attempt > attempt and record.state not in ("queued", "running", "lost", "unreadable")


def taken_up_again(job: Job, attempt: int) -> Job:
    """Return the job of a run whose process died: if it had begun since it was taken on, it is resumed."""
    if read_run(job.folder).attempt <= attempt:
        return job
    return replace(job, config={**job.config, "rerun": False, "resume": True})


def write_log_header(log: Path, pack: Pack) -> None:
    """Write the head of the file for a process's output: the command and folder of each of its runs."""
    lines = [f"{shlex.join([job.command, *job.overrides])}\n{job.folder}\n" for job in pack.jobs]
    write_atomic(log, "".join([*lines, "\n"]))


def describe(outcome: JobOutcome) -> str:
    """Return one line of text on the outcome of a run."""
    result = f", result {outcome.result:.5g}" if outcome.result is not None else ""
    error = f": {outcome.error}" if outcome.error else ""
    took = f" after {outcome.seconds:.0f} s" if outcome.seconds is not None else ""
    return printable(f"{outcome.state}{took}{result}{error} ({outcome.folder})", lines=False)


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs in waves: each job is in the earliest wave after those of the `jobs` that it needs.

    Needed jobs that are not among `jobs` are finished, or are computed by another process.
    """
    here = {job.folder for job in jobs}
    depth: dict[Path, int] = {}

    def depth_of(job: Job) -> int:
        if job.folder not in depth:
            depth[job.folder] = max((1 + depth_of(each) for each in job.after if each.folder in here), default=0)
        return depth[job.folder]

    found: list[list[Job]] = [[] for _ in range(1 + max(map(depth_of, jobs), default=-1))]
    for job in jobs:
        found[depth_of(job)].append(job)
    return found


def ids_before(jobs: Sequence[Job], sweep_folder: Path) -> list[str]:
    """Return the recorded ids of the jobs of this launch that `jobs` wait for."""
    folders = dict.fromkeys(each.folder for job in jobs for each in job.after)
    taken = [queued for folder in folders if (queued := read_queued(folder)) is not None]
    return list(dict.fromkeys(each.job_id for each in taken if each.job_id and each.sweep == str(sweep_folder)))
