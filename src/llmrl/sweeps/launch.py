"""One entry to a sweep: skip what is done, compute the rest where it should be, and say what became of each run."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import ConfigError, LlmrlError
from llmrl.run.folder import unwritable
from llmrl.run.heartbeat import Heartbeat
from llmrl.run.queued import ALIVE_NAME
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Job, Outcome, text_of
from llmrl.sweeps.jobs import cancelled, check_distinct, describe, missing, waves
from llmrl.sweeps.scheduling import ask_schedulers, wait_for
from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)

EXIT_CODES = {
    "failed": 1,
    "lost": 1,
    "unreadable": 1,
    "refused": 1,
    "running": 1,
    "queued": 1,
    "budget_exhausted": 3,
    "preempted": 128 + signal.SIGTERM,
    "stopped": 128 + signal.SIGINT,
    "cancelled": 128 + signal.SIGINT,
}
"""Exit code by a run's ending, the worst first."""


def launch(jobs: Sequence[Job], task: Task, sweep_folder: Path, wait: bool = True) -> tuple[list[Outcome], int]:
    """Compute the runs that are missing, each where its hardware says.

    Args:
        jobs: the runs of the sweep; several of the same run count once.
        task: computes one.
        sweep_folder: for what jobs print.
        wait: until all have ended; else return as soon as they are submitted, which needs backends with a scheduler.

    Returns:
        The outcomes, in the order of `jobs`, and the sweep's exit code.

    Raises:
        ConfigError: the sweep cannot be launched as asked for; nothing has been started.
        RunFolderError: `sweep_folder` cannot be written.
    """
    if not jobs:
        raise ConfigError("this sweep has no runs: one of the swept values is an empty list or range")
    if not wait:
        _check_detaching(jobs)
    check_distinct(jobs)
    todo, outcomes = missing(jobs, ask_schedulers({job.folder for job in jobs}))
    if outcomes:
        done = sum(outcome.state == "finished" for outcome in outcomes)
        log.info("skipped %d finished runs and %d that run or wait elsewhere", done, len(outcomes) - done)
    groups = by_backend(todo)
    for group in groups:
        group[0].hardware.backend.prepare(group)
    if groups:
        try:
            sweep_folder.mkdir(parents=True, exist_ok=True)
            (sweep_folder / ALIVE_NAME).touch()
        except OSError as error:
            raise unwritable(sweep_folder, error) from error
        with Heartbeat(sweep_folder / ALIVE_NAME):
            outcomes += _compute(groups, task, sweep_folder, wait)
    found = {outcome.folder: outcome for outcome in outcomes}
    ordered = [found[job.folder] for job in jobs]
    left = wait and any(outcome.state == "submitted" for outcome in ordered)
    return ordered, exit_code(ordered) or (128 + signal.SIGINT if left else 0)


def _check_detaching(jobs: Sequence[Job]) -> None:
    """Raise ConfigError unless all jobs go on when this process has ended."""
    for job in jobs:
        backend = job.hardware.backend
        if backend.scheduler is None:
            raise ConfigError(
                "hydra.launcher.wait=false needs a backend with a scheduler, such as hardware=slurm_cpu or slurm_gpu: "
                f"runs of {type(backend).__name__} end with the process that launched them (nohup, tmux or screen keep "
                "it alive)"
            )


def by_backend(jobs: Sequence[Job]) -> list[list[Job]]:
    """Return jobs in the groups that are launched one after the other: those of one wave (`waves`) and of one backend
    with equal options together, first those whose runs go on while others are computed."""
    groups: list[list[Job]] = []
    for wave in waves(jobs):
        own: list[list[Job]] = []
        for job in wave:
            backend = job.hardware.backend
            for group in own:
                other = group[0].hardware.backend
                if type(other) is type(backend) and vars(other) == vars(backend):
                    group.append(job)
                    break
            else:
                own.append([job])
        groups += own
    return sorted(groups, key=lambda group: group[0].hardware.backend.scheduler is None)


def _compute(groups: Sequence[Sequence[Job]], task: Task, sweep_folder: Path, wait: bool) -> list[Outcome]:
    """The outcomes of all jobs; those that nobody waits for are `submitted`."""
    outcomes: list[Outcome] = []
    submitted: list[list[Outcome]] = []
    with StopFlag() as stop:  # a backend has its own; what that was told reaches this one
        for group in groups:
            if stop.requested:
                outcomes += [cancelled(job) for job in group]
                continue
            came = _launched(group, task, sweep_folder)
            for outcome in came:
                if outcome.state == "refused":
                    log.error("%s", describe(outcome))
            if there := [outcome for outcome in came if outcome.state == "submitted"]:
                log.info("submitted %d runs as job %s", len(there), text_of(outcome.job_id for outcome in there))
                submitted.append(there)
            outcomes += [outcome for outcome in came if outcome.state != "submitted"]
    waiting = {outcome.folder: outcome for those in submitted for outcome in those}
    interrupted = stop.requested
    if wait and not interrupted:
        try:
            for those in submitted:
                for outcome in wait_for(those):
                    del waiting[outcome.folder]
                    outcomes.append(outcome)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted and waiting:
        log.info("no longer waiting; the jobs go on (llmrl-sweep status, llmrl-sweep cancel)")
    return outcomes + [replace(outcome, error=f"job {outcome.job_id}") for outcome in waiting.values()]


def _launched(jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
    """An outcome for each job of one backend, whatever becomes of the backend: others may be computing already."""
    backend = jobs[0].hardware.backend
    try:
        outcomes = backend.launch(jobs, task, sweep_folder)
    except LlmrlError as error:
        return [Outcome(job, job.folder, "refused", error=str(error)) for job in jobs]
    told = {outcome.folder for outcome in outcomes}
    silence = f"{type(backend).__name__} says nothing of it"
    return [*outcomes, *(Outcome(job, job.folder, "failed", error=silence) for job in jobs if job.folder not in told)]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if nothing is wrong; else the code of the worst ending, failures first (as `llmrl-train` for one run)."""
    states = {outcome.state for outcome in outcomes}
    for state, code in EXIT_CODES.items():
        if state in states:
            return code
    return 0
