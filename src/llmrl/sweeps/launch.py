"""Launch of a sweep: finished runs are skipped, and backends compute the other runs."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import ConfigError, LlmrlError, RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.run.folder import make_write_error
from llmrl.run.ownership import Heartbeat
from llmrl.run.queued import LAUNCHER_ALIVE_NAME
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Job, JobOutcome
from llmrl.sweeps.jobs import (
    check_distinct_folders,
    describe_outcome,
    find_missing_jobs,
    group_into_waves,
    mark_canceled,
    record_launch,
)
from llmrl.sweeps.packing import group_by_key
from llmrl.sweeps.payload import RunFunction
from llmrl.sweeps.scheduling import query_schedulers, wait_for_jobs

log = logging.getLogger(__name__)

EXIT_CODE_BY_STATE = {
    "failed": 1,
    "lost": 1,
    "unreadable": 1,
    "refused": 1,
    "running": 1,
    "queued": 1,
    "budget_exhausted": 3,
    "preempted": 128 + signal.SIGTERM,
    "stopped": 128 + signal.SIGINT,
    "canceled": 128 + signal.SIGINT,
}
"""Exit code by the state of a run, most severe first."""


def launch(
    jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path, wait: bool = True
) -> tuple[list[JobOutcome], int]:
    """Compute the missing runs of a sweep, each by the backend of its hardware.

    Args:
        jobs: runs of the sweep; equal runs are computed once.
        run_function: function that computes one run.
        sweep_folder: folder for the output of jobs.
        wait: whether to wait until all runs have ended. False: return after the submission, which needs a scheduler.

    Returns:
        The outcomes, in the order of `jobs`, and the exit code of the sweep.

    Raises:
        ConfigError: the sweep cannot be launched; nothing has been started.
        RunFolderError: `sweep_folder` cannot be written.
    """
    if not jobs:
        raise ConfigError("this sweep has no runs: one of the swept values is an empty list or range")
    for backend in () if wait else (job.hardware.backend for job in jobs):
        if backend.scheduler is None:
            raise ConfigError(
                "hydra.launcher.wait=false needs a backend with a scheduler, such as hardware=slurm_cpu or slurm_gpu: "
                f"runs of {type(backend).__name__} end with the process that launched them. To keep that process "
                "alive, use nohup, tmux or screen"
            )
    check_distinct_folders(jobs)
    missing_jobs, outcomes = find_missing_jobs(jobs, query_schedulers({job.folder for job in jobs}))
    if outcomes:
        n_finished = sum(outcome.state == "finished" for outcome in outcomes)
        log.info("skipped %d finished runs and %d that run or wait elsewhere", n_finished, len(outcomes) - n_finished)
    groups = group_by_backend(missing_jobs)
    for group in groups:
        group[0].hardware.backend.prepare(group)
    if groups:
        try:
            sweep_folder.mkdir(parents=True, exist_ok=True)
            alive_file = open_file(sweep_folder / LAUNCHER_ALIVE_NAME, "wb")
        except OSError as error:
            raise make_write_error(sweep_folder, error) from error
        with alive_file, closing(Heartbeat(sweep_folder / LAUNCHER_ALIVE_NAME)):
            outcomes += _launch_groups(groups, run_function, sweep_folder, wait)
    outcome_by_folder = {outcome.folder: outcome for outcome in outcomes}
    job_outcomes = [outcome_by_folder[job.folder] for job in jobs]
    has_pending_jobs = wait and any(outcome.state == "submitted" for outcome in job_outcomes)
    return job_outcomes, compute_exit_code(job_outcomes) or (128 + signal.SIGINT if has_pending_jobs else 0)


def group_by_backend(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs in groups that are launched one after the other.

    The jobs of a group belong to one wave (`group_into_waves`) and have equal backends. Groups with a scheduler come
    first, because their launch returns after the submission.
    """
    groups = [
        group
        for wave in group_into_waves(jobs)
        for group in group_by_key(wave, lambda job: (type(job.hardware.backend), vars(job.hardware.backend)))
    ]
    return sorted(groups, key=lambda group: group[0].hardware.backend.scheduler is None)


def _launch_groups(
    groups: Sequence[Sequence[Job]], run_function: RunFunction, sweep_folder: Path, wait: bool
) -> list[JobOutcome]:
    """Launch all groups; return the outcomes of their jobs, with state `submitted` if a job has not ended yet."""
    outcomes: list[JobOutcome] = []
    submissions_by_group: list[list[JobOutcome]] = []
    with StopFlag() as stop_flag:  # the inner flag of a backend passes its signal to this one
        _record_pending_groups(groups, sweep_folder)
        for group in groups:
            if stop_flag.requested:
                outcomes += [mark_canceled(job) for job in group]
                continue
            if purposes := ", ".join(dict.fromkeys(job.purpose for job in group if job.purpose)):
                n_dependent_jobs = sum(bool(job.prerequisites) for jobs in groups for job in jobs)
                log.info("%s: %d runs; %d runs start after them", purposes, len(group), n_dependent_jobs)
            group_outcomes = _launch_group(group, run_function, sweep_folder)
            for outcome in (outcome for outcome in group_outcomes if outcome.state == "refused"):
                log.error("%s", describe_outcome(outcome))
            if submissions := [outcome for outcome in group_outcomes if outcome.state == "submitted"]:
                log.info(
                    "submitted %d runs as job %s",
                    len(submissions),
                    # The tasks of an array are one job.
                    ", ".join(dict.fromkeys(outcome.job_id.partition("_")[0] for outcome in submissions)),
                )
                submissions_by_group.append(submissions)
            outcomes += [outcome for outcome in group_outcomes if outcome.state != "submitted"]
    pending_outcomes = {outcome.folder: outcome for submissions in submissions_by_group for outcome in submissions}
    is_interrupted = stop_flag.requested
    if wait and not is_interrupted:
        try:
            for submissions in submissions_by_group:
                for outcome in wait_for_jobs(submissions):
                    del pending_outcomes[outcome.folder]
                    outcomes.append(outcome)
        except KeyboardInterrupt:
            is_interrupted = True
    if is_interrupted and pending_outcomes:
        log.info("no longer waiting; the jobs continue (llmrl-sweep status, llmrl-sweep cancel)")
    return outcomes + [replace(outcome, error=f"job {outcome.job_id}") for outcome in pending_outcomes.values()]


def _record_pending_groups(groups: Sequence[Sequence[Job]], sweep_folder: Path) -> None:
    """Record the runs of later groups as queued, for `llmrl-sweep status`, unless they have a scheduler."""
    for job in (job for group in groups[1:] for job in group if job.hardware.backend.scheduler is None):
        try:
            record_launch(job, sweep_folder)
        except RunFolderError as error:
            log.debug("reported at its launch: %s", error)


def _launch_group(jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
    """Launch the jobs of one backend; return an outcome for each, even if the launch fails, as other jobs may run."""
    backend = jobs[0].hardware.backend
    try:
        outcomes = backend.launch(jobs, run_function, sweep_folder)
    except LlmrlError as error:
        return [JobOutcome(job, job.folder, "refused", error=str(error)) for job in jobs]
    folders = {outcome.folder for outcome in outcomes}
    message = f"{type(backend).__name__} reports no outcome"
    return [
        *outcomes,
        *(JobOutcome(job, job.folder, "failed", error=message) for job in jobs if job.folder not in folders),
    ]


def compute_exit_code(outcomes: Sequence[JobOutcome]) -> int:
    """Return the exit code of the most severe state (`EXIT_CODE_BY_STATE`); 0 if no state has one."""
    states = {outcome.state for outcome in outcomes}
    return next((code for state, code in EXIT_CODE_BY_STATE.items() if state in states), 0)
