"""Records of the runs of a folder, completed by schedulers, and cancelling and retrying of such runs."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llmrl.analysis.runs import UNFINISHED, JobEnd, RunRecord, find_runs, read_run, read_runs
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run import ownership
from llmrl.run.artifacts import read_config
from llmrl.run.queued import ALIVE_NAME, cancelled_by, read_queued
from llmrl.run.status import read_status
from llmrl.sweeps.scheduling import ask_schedulers, ended, scheduler_of

_JOB_ID = re.compile(r"[0-9]+(_[0-9]+)?")
"""Ids of jobs that are passed to a scheduler's command; anything else in a run folder could be an option of it."""
UNSETTLED = ("running", "queued", "lost", "preempted")
"""States about which a scheduler may know more than the run folder."""


def records(folder: Path, sure: bool = False) -> list[RunRecord]:
    """Return a record of every run in and under `folder`; schedulers are queried about jobs that may not have ended.

    Args:
        folder: folder of runs, at any level.
        sure: whether to raise if a scheduler that is needed cannot be queried.

    Raises:
        RunFolderError: there is no such folder.
        SchedulerError: a scheduler cannot be queried, and `sure` is set.
    """
    found = read_runs(folder)
    unsettled = [r.folder for r in found if r.job_id and r.state in UNSETTLED]
    queues = ask_schedulers(unsettled, sure) if unsettled else []
    if not queues:
        return found
    asked = {queue.backend for queue in queues}
    again = [read_run(r.folder, queues) if r.backend in asked else r for r in found]
    ends: dict[tuple[str, str], JobEnd] = {}
    for backend in asked:
        over = {r.job_id for r in again if r.job_id and r.backend == backend and r.state in ("lost", "preempted")}
        ends |= {(backend, job): end for job, end in ended(backend, over, queues).items()}
    return [
        _with_end(r, ends[r.backend, r.job_id]) if (r.backend, r.job_id) in ends and r.state in UNFINISHED else r
        for r in again
    ]


def _with_end(run: RunRecord, end: JobEnd) -> RunRecord:
    """Return the record of an unfinished run with the end of its job added."""
    error = f"{run.error} ({end.word})"
    if run.state == "lost" and run.attempt == 0 and end.cancelled:
        return replace(run, state="cancelled", error=error)
    return replace(run, error=error)


def cancel(runs: Sequence[RunRecord]) -> tuple[int, int, list[str]]:
    """Stop the running and waiting ones of `runs`; running ones save first. A process of several runs stops as a whole.

    Returns:
        Number of cancelled scheduler jobs, number of local processes that were told to stop, and a text for each run
        that could not be reached.

    Raises:
        RunFolderError: a process also has runs that are not to be cancelled (nothing is done), or a local queue has
            (some runs may be cancelled already).
        SchedulerError: a scheduler refused.
    """
    active = [r for r in runs if r.state in ("running", "queued")]
    _check_whole(active)
    jobs: dict[str, list[RunRecord]] = {}
    unreachable: list[str] = []
    here: list[RunRecord] = []
    for run in active:
        try:
            scheduled = bool(run.job_id) and scheduler_of(run.backend) is not None
            if scheduled and not _JOB_ID.fullmatch(run.job_id):
                raise ConfigError("an id is a number, or a number and a task such as 12_3")
        except ConfigError as error:
            unreachable.append(f"{run.folder} ({run.state} as job {run.job_id}; {error})")
            continue
        if scheduled:
            jobs.setdefault(run.backend, []).append(run)
        else:
            here.append(run)
    for backend, scheduled_runs in jobs.items():
        scheduler = scheduler_of(backend)
        assert scheduler is not None
        scheduler.cancel(list(dict.fromkeys(run.job_id for run in scheduled_runs)))
        for run in scheduled_runs:
            if run.state == "queued":
                cancelled_by(run.folder, f"job {run.job_id}, with llmrl-sweep cancel")
    told: set[int] = set()
    folders = {r.folder for r in active}
    for run in here:
        pid = _launcher_to_stop(run, folders) if run.state == "queued" else _process(run)
        if pid is None:
            unreachable.append(f"{run.folder} ({run.state} on {run.host})")
        elif pid not in told:
            os.kill(pid, signal.SIGTERM)
            told.add(pid)
    cancelled = {(backend, run.job_id) for backend, scheduled_runs in jobs.items() for run in scheduled_runs}
    return len(cancelled), len(told), unreachable


def _check_whole(active: Sequence[RunRecord]) -> None:
    """Raise RunFolderError if the process or job of a run also computes runs that are not in `active`."""
    folders = {run.folder for run in active}
    for run in active:
        queued = read_queued(run.folder)
        others = [Path(each) for each in queued.beside] if queued is not None else []
        left = [each for each in others if each not in folders and read_run(each).state in ("running", "queued")]
        if left:
            where = f"job {run.job_id}" if run.job_id else "a process"
            more = f" and {len(left) - 1} more" if len(left) > 1 else ""
            raise RunFolderError(
                f"{run.folder} is computed by {where} together with {left[0]}{more}, and these would stop with it; "
                f"cancel all of them: {os.path.commonpath([run.folder, *left])}"
            )


def _process(run: RunRecord) -> int | None:
    """Return the id of the process that works on a run; None if this process cannot see that it does."""
    try:
        holder = ownership.read_owner(run.folder)
    except RunFolderError:
        return None
    if holder is None or not ownership.has_open(holder.pid, run.folder / ownership.FILE_NAME):
        return None
    return holder.pid


def _launcher_to_stop(run: RunRecord, cancelled: set[Path]) -> int | None:
    """Return the id of the local launcher in whose queue a run waits; it stops as a whole, with runs it has started.

    Raises:
        RunFolderError: the launcher also has runs that are not to be cancelled.
    """
    queued = read_queued(run.folder)
    if queued is None or not ownership.has_open(queued.pid, Path(queued.sweep) / ALIVE_NAME):
        return None
    sweep = queued.sweep
    others = [f for f in find_runs(run.folder.parent.parent) if f not in cancelled and _waits_with(f, sweep)]
    if others:
        raise RunFolderError(
            f"{run.folder} waits in the queue of process {queued.pid}, which also has {others[0]} and "
            f"{len(others) - 1} more; a local queue stops as a whole: cancel {run.folder.parent.parent}"
        )
    return queued.pid


def _waits_with(folder: Path, sweep: str) -> bool:
    try:
        queued, status = read_queued(folder), read_status(folder)
    except RunFolderError:
        return False
    if queued is None or queued.sweep != sweep:
        return False
    return status is None or status.attempt <= queued.attempt or status.state == "running"


def to_retry(
    runs: Sequence[RunRecord], states: Sequence[str], trusted: Sequence[str]
) -> list[tuple[RunRecord, dict[str, Any], list[str]]]:
    """Return each run in one of `states` with its resolved config, whose `trusted_modules` are `trusted`, and its
    overrides as typed.

    Raises:
        RunFolderError: the config of a run cannot be read.
    """
    found = []
    for run in runs:
        if run.state not in states:
            continue
        config = read_config(run.folder, trusted)
        queued, status = read_queued(run.folder), read_status(run.folder)
        overrides = status.overrides if status and status.overrides else queued.overrides if queued else []
        found.append((run, config, overrides))
    return found
