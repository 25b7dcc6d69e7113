"""One entry to a sweep: skip what is done, compute the rest where it should be, and say what became of each run."""

from __future__ import annotations

import logging
import signal
from collections.abc import Sequence
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.sweeps import slurm
from llmrl.sweeps.jobs import Job, Outcome, describe, missing
from llmrl.sweeps.local import run_pool
from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)

EXIT_CODES = {
    "failed": 1,
    "lost": 1,
    "unreadable": 1,
    "budget_exhausted": 3,
    "preempted": 128 + signal.SIGTERM,
    "stopped": 128 + signal.SIGINT,
    "not started": 1,
}
"""Exit code by a run's ending, the worst first."""


def launch(jobs: Sequence[Job], task: Task, sweep_folder: Path, wait: bool = True) -> list[Outcome]:
    """Compute the runs that are missing.

    Args:
        jobs: the runs of the sweep; several of the same run count once.
        task: computes one, in a process of its own.
        sweep_folder: for what jobs print.
        wait: until all have ended; else return as soon as they are submitted (SLURM only).

    Returns:
        The outcomes, in the order of `jobs`.

    Raises:
        ConfigError: the sweep cannot be launched as asked for; nothing has been started.
    """
    local = [job for job in jobs if job.hardware.launcher == "local"]
    if local and not wait:
        raise ConfigError(
            "hydra.launcher.wait=false needs hardware=slurm_cpu or slurm_gpu: runs on this machine end with the "
            "process that launched them (nohup, tmux or screen keep it alive)"
        )
    if len(local) < len(jobs):
        slurm.check_available()
    todo, outcomes = missing(jobs, slurm.live(slurm.job_states()) if slurm.available() else None)
    for outcome in outcomes:
        log.info("skipped, %s", describe(outcome))
    to_submit = [job for job in todo if job.hardware.launcher == "slurm"]
    submitted, refused = slurm.submit(to_submit, task, sweep_folder) if to_submit else ({}, [])
    for outcome in refused:
        log.error("%s", describe(outcome))
    outcomes += refused
    if submitted:
        ids = sorted({queued.job_id.split("_")[0] for queued in submitted.values()}, key=int)
        log.info("submitted %d runs as SLURM job %s", len(submitted), ", ".join(ids))
    here = [job for job in todo if job.hardware.launcher == "local"]
    if here:
        outcomes += run_pool(here, task, sweep_folder)
    by_folder = {job.folder: job for job in to_submit if job.folder in submitted}
    if wait and by_folder:
        try:
            for outcome in slurm.wait_for(list(by_folder.values()), submitted):
                outcomes.append(outcome)
        except KeyboardInterrupt:
            log.info("no longer waiting; the jobs go on (llmrl-sweep status, llmrl-sweep cancel)")
    seen = {outcome.folder for outcome in outcomes}
    outcomes += [
        Outcome(job, folder, "submitted", error=f"job {submitted[folder].job_id}")
        for folder, job in by_folder.items()
        if folder not in seen
    ]
    found = {outcome.folder: outcome for outcome in outcomes}
    return [found[job.folder] for job in jobs]


def exit_code(outcomes: Sequence[Outcome]) -> int:
    """0 if nothing is wrong; else the code of the worst ending, failures first (as `llmrl-train` for one run)."""
    states = {outcome.state for outcome in outcomes}
    for state, code in EXIT_CODES.items():
        if state in states:
            return code
    return 0
