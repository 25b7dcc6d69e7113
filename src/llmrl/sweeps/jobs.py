"""The runs of a sweep as jobs: which are missing, and taking them on."""

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
from llmrl.run import owner
from llmrl.run.content import CONFIG_NAME, save_config
from llmrl.run.ending import EXIT_IN_USE
from llmrl.run.files import write_atomic
from llmrl.run.folder import run_folder, split_overrides
from llmrl.run.names import named
from llmrl.run.provenance import code_digest
from llmrl.run.queued import Queued, cancelled_by, read_queued
from llmrl.run.status import read_status
from llmrl.sweeps.backends.protocol import Job, Outcome, Pack, name_of

STOPPED = "the sweep was stopped before this run's turn"


def differing_keys(overrides: Sequence[Sequence[str]]) -> set[str]:
    """The keys by which runs differ, seeds aside.

    >>> differing_keys([["env=x", "principal=ucb", "seed=0"], ["env=x", "principal=llm", "seed=1"]])
    {'principal'}
    """
    split = [split_overrides(of_run) for of_run in overrides]
    keys = {key for one in split for key in one}
    return {key for key in keys if len({one.get(key) for one in split}) > 1}


def named_by(overrides: Sequence[str], differing: set[str]) -> list[str]:
    """The overrides that make a run's folder readable: those that differ within its sweep, all where none do.

    Which study it is, how long it is, and which language model is behind it is always said (`llmrl.run.names.ALWAYS`).
    """
    return named(overrides, differing) if differing else list(overrides)


def check_distinct(jobs: Sequence[Job]) -> None:
    """Refuse a sweep over what does not make another run.

    Raises:
        ConfigError: runs that are not typed alike have one folder.
    """
    first: dict[Path, Job] = {}
    for job in jobs:
        other = first.setdefault(job.folder, job)
        if keys := sorted({o.partition("=")[0] for o in set(job.overrides) ^ set(other.overrides)}):
            raise ConfigError(
                f"{' and '.join(keys)}: different values are not different runs, because they are not to change "
                f"results; both would be {job.folder}. Leave the sweep over it out, or sweep name= with it"
            )


def missing(jobs: Sequence[Job], queues: Sequence[Queue]) -> tuple[list[Job], list[Outcome]]:
    """The jobs that somebody has to work on, and an outcome for each of the others.

    A job given twice is done once. `queues`: see `llmrl.analysis.runs.read_run`.
    """
    todo: list[Job] = []
    skipped: list[Outcome] = []
    seen: set[Path] = set()
    for job in jobs:
        folder = job.folder
        if folder in seen:
            continue
        seen.add(folder)
        record = read_run(folder, queues) if folder.exists() else None
        if record is not None and record.state == "finished" and not job.config["rerun"]:
            skipped.append(Outcome.of(job, record, skipped=True, seconds=None))
        elif record is not None and record.state in ("running", "queued"):
            place = f"job {record.job_id}" if record.job_id else f"process {record.pid} on {record.host}"
            text = f"{record.state} already, {place if record.pid or record.job_id else 'on ' + record.host}"
            skipped.append(Outcome.of(job, record, skipped=True, state="elsewhere", error=text, seconds=None))
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
    """Make the run's folder and write down that this process has taken it on for the job's backend.

    Args:
        job: the run.
        sweep: folder of the launch.
        log: file that will get what the job prints, as far as known.
        cluster, user: whose queue its scheduler will be asked for; empty without one.
        beside: folders of the other runs that its process will compute.
        deaths: times that its process has died in this launch.

    Raises:
        RunFolderError: the folder cannot be written.
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
        machine=owner.this_machine(),
        pid=pid,
        process_start=owner.process_start(pid) or "",
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
    )
    if not (folder / CONFIG_NAME).exists():
        save_config(folder / CONFIG_NAME, c)
    queued.write(folder)
    return queued


def cancelled(job: Job) -> Outcome:
    """The outcome of a job that the launcher was stopped before; its folder, if there is one, tells of it."""
    if job.folder.is_dir():
        cancelled_by(job.folder, STOPPED)
    return Outcome(job, job.folder, "cancelled", error=STOPPED)


def left_behind(
    job: Job, attempt: int, code: int, said: str = "", stopped_by: int | None = None, seconds: float | None = None
) -> Outcome:
    """Return the outcome of a run whose process has ended, by what that has left behind.

    Args:
        job: the run.
        attempt: attempts it had had when it was taken on.
        code: exit code; negative: the signal that killed the process.
        said: its last words, for a run that could not record why it failed.
        stopped_by: the signal by which the sweep was told to stop, if it was.
        seconds: how long it took, if known.
    """
    record = read_run(job.folder)
    outcome = Outcome.of(job, record, seconds=seconds)
    begun = record.attempt > attempt
    if code == EXIT_IN_USE:
        return replace(outcome, state="elsewhere", skipped=True, error=said)
    if not begun and stopped_by is not None and code in (-stopped_by, 128 + stopped_by):
        return replace(cancelled(job), seconds=outcome.seconds)
    if code < 0:
        return replace(outcome, state="lost", error=f"its process was killed by {signal.Signals(-code).name}")
    if code > 0 and (not begun or record.state in ("queued", "running", "lost")):
        # It could not even write that it has failed.
        return replace(outcome, state="failed", error=said or f"its process ended with exit code {code}")
    return outcome


def has_ended(job: Job, attempt: int) -> bool:
    """Return whether a run that was taken on after so many attempts has ended since, whatever became of its process."""
    record = read_run(job.folder)
    return record.attempt > attempt and record.state not in ("queued", "running", "lost", "unreadable")


def taken_up_again(job: Job, attempt: int) -> Job:
    """Return the job of a run whose process died: what it had begun since it was taken on is gone on with."""
    if read_run(job.folder).attempt <= attempt:
        return job
    return replace(job, config={**job.config, "rerun": False, "resume": True})


def write_log_header(log: Path, pack: Pack) -> None:
    """Begin the file that gets what a process prints."""
    lines = [f"{shlex.join([job.command, *job.overrides])}\n{job.folder}\n" for job in pack.jobs]
    write_atomic(log, "".join([*lines, "\n"]))


def describe(outcome: Outcome) -> str:
    """One line on a run that has ended."""
    result = f", result {outcome.result:.5g}" if outcome.result is not None else ""
    error = f": {outcome.error}" if outcome.error else ""
    took = f" after {outcome.seconds:.0f} s" if outcome.seconds is not None else ""
    return printable(f"{outcome.state}{took}{result}{error} ({outcome.folder})", lines=False)


def waves(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs wave by wave: each comes after those of `jobs` that it waits for, and else as early as it can.

    Jobs that another one waits for and that are not among `jobs` are done, or somebody else's.
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
    """Return the ids of the jobs of this launch that `jobs` wait for, as they were written down when submitted."""
    folders = dict.fromkeys(each.folder for job in jobs for each in job.after)
    taken = [queued for folder in folders if (queued := read_queued(folder)) is not None]
    return list(dict.fromkeys(each.job_id for each in taken if each.job_id and each.sweep == str(sweep_folder)))
