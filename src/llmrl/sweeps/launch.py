"""One entry to a sweep: skip what is done, compute the rest where it should be, and say what became of each run."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.run.folder import unwritable
from llmrl.run.heartbeat import Heartbeat
from llmrl.run.queued import ALIVE_NAME
from llmrl.sweeps import slurm
from llmrl.sweeps.jobs import Job, Outcome, check_distinct, describe, missing
from llmrl.sweeps.local import Pool
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
    """Compute the runs that are missing.

    Args:
        jobs: the runs of the sweep; several of the same run count once.
        task: computes one, in a process of its own.
        sweep_folder: for what jobs print.
        wait: until all have ended; else return as soon as they are submitted (SLURM only).

    Returns:
        The outcomes, in the order of `jobs`, and the sweep's exit code.

    Raises:
        ConfigError: the sweep cannot be launched as asked for; nothing has been started.
        RunFolderError: `sweep_folder` cannot be written.
    """
    here = [job for job in jobs if job.hardware.launcher == "local"]
    if not jobs:
        raise ConfigError("this sweep has no runs: one of the swept values is an empty list or range")
    if here and not wait:
        raise ConfigError(
            "hydra.launcher.wait=false needs hardware=slurm_cpu or slurm_gpu: runs on this machine end with the "
            "process that launched them (nohup, tmux or screen keep it alive)"
        )
    check_distinct(jobs)
    if len(here) < len(jobs):
        slurm.check_available()
    try:
        sweep_folder.mkdir(parents=True, exist_ok=True)
        (sweep_folder / ALIVE_NAME).touch()
    except OSError as error:
        raise unwritable(sweep_folder, error) from error
    with Heartbeat(sweep_folder / ALIVE_NAME):
        return _launch(jobs, task, sweep_folder, wait)


def _launch(jobs: Sequence[Job], task: Task, sweep_folder: Path, wait: bool) -> tuple[list[Outcome], int]:
    todo, outcomes = missing(jobs, slurm.ask_queue())
    if outcomes:
        done = sum(outcome.state == "finished" for outcome in outcomes)
        log.info("skipped %d finished runs and %d that run or wait elsewhere", done, len(outcomes) - done)
    here = [job for job in todo if job.hardware.launcher == "local"]
    pool = Pool(here, task, sweep_folder) if here else None  # says at once if a run does not fit into this machine
    there = [job for job in todo if job.hardware.launcher == "slurm"]
    submitted, refused, interrupted = slurm.submit(there, task, sweep_folder) if there else ({}, [], False)
    for outcome in refused:
        log.error("%s", describe(outcome))
    outcomes += refused
    if submitted:
        ids = sorted({queued.job_id.split("_")[0] for queued in submitted.values()}, key=int)
        log.info("submitted %d runs as SLURM job %s", len(submitted), ", ".join(ids))
    if pool is not None:
        outcomes += pool.run()
    if wait and submitted and not interrupted:
        try:
            for outcome in slurm.wait_for(there, submitted):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        log.info("no longer waiting; the jobs go on (llmrl-sweep status, llmrl-sweep cancel)")
    found = {outcome.folder: outcome for outcome in outcomes}
    for job in there:
        if job.folder not in found:
            found[job.folder] = Outcome(job, job.folder, "submitted", error=f"job {submitted[job.folder].job_id}")
    ordered = [found[job.folder] for job in jobs]
    return ordered, exit_code(ordered) or (128 + signal.SIGINT if interrupted else 0)


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if nothing is wrong; else the code of the worst ending, failures first (as `llmrl-train` for one run)."""
    states = {outcome.state for outcome in outcomes}
    for state, code in EXIT_CODES.items():
        if state in states:
            return code
    return 0
