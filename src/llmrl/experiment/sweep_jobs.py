"""Conversion of experiments to jobs of a sweep, and computation of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.config.permissions import check_command_lines
from llmrl.experiment import run_references
from llmrl.experiment.batched_runs import (
    SeparateProcessReason,
    compute_batch,
    estimate_row_gb,
    find_batch_key,
    find_separate_process_reason,
)
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.resources import count_game_processes
from llmrl.experiment.run_job import compute_job
from llmrl.sweeps.backends.protocol import Job, JobOutcome
from llmrl.sweeps.jobs import find_differing_keys, select_label_overrides
from llmrl.sweeps.launch import launch
from llmrl.sweeps.packing import BatchableRunFunction

RUN_FUNCTION = BatchableRunFunction(compute_job, compute_batch)
"""Function that the processes of a sweep call."""


def compute_sweep(
    runs: Sequence[Experiment], folder: Path, wait: bool = True, differing_keys: set[str] | None = None
) -> tuple[list[JobOutcome], int]:
    """Compute the runs of a sweep, after the runs that their configs refer to; finished runs are skipped.

    Args:
        runs: runs in the order in which they are started.
        folder: sweep folder, for the printed output of the runs.
        wait: whether to wait until all runs have ended; False: return after submission, which needs a scheduler.
        differing_keys: keys of the overrides that differ within the sweep; None: determine them from `runs`.

    Returns:
        The outcomes of all runs, referenced runs first_run, and the exit code.

    Raises:
        ConfigError: the config of a run is invalid, or the sweep cannot be launched; no run has been started.
    """
    return launch(with_prerequisites(build_jobs(runs, differing_keys)), RUN_FUNCTION, folder, wait)


def build_jobs(runs: Sequence[Experiment], differing_keys: set[str] | None = None) -> list[Job]:
    """Return one job for each run of a sweep, in order; see `compute_sweep` for the arguments.

    The values of runs that differ only in the seed are checked once.

    Raises:
        ConfigError: see `build_job`.
    """
    swept_keys = find_differing_keys([run.overrides for run in runs]) if differing_keys is None else differing_keys
    jobs: list[Job] = []
    first_run_by_hash: dict[str, tuple[Experiment, Job]] = {}
    for run in runs:
        label_overrides = select_label_overrides(run.overrides, swept_keys)
        first_run, job = first_run_by_hash.get(run.hash, (run, None))
        has_equal_config = {**first_run.config, "seed": run.seed} == run.config  # but for the seed
        if job is not None and has_equal_config and first_run.environment == run.environment:
            jobs.append(job.with_seed(run.seed, run.overrides, label_overrides))
        else:
            jobs.append(build_job(run, label_overrides))
            first_run_by_hash[run.hash] = run, jobs[-1]
    return jobs


def build_job(experiment: Experiment, label_overrides: Sequence[str]) -> Job:
    """Check the values of an experiment and return its job.

    Args:
        experiment: experiment to compute.
        label_overrides: overrides that form the label of the run folder: those that differ within the sweep.

    Raises:
        ConfigError: a value is invalid, or a saved config contains a command line that is not trusted.
    """
    config = experiment.config
    experiment.application.check_values(config, experiment.resources)
    job_config = {**config, "output_root": str(Path(config["output_root"]).expanduser().absolute())}
    check_command_lines(config)
    hardware = experiment.resources.hardware
    batch_key = find_batch_key(config, experiment.environment)
    return Job(
        job_config,
        experiment.overrides,
        hardware,
        hardware.count_cores(count_game_processes(config)),
        list(label_overrides),
        experiment.environment,
        batch_key=batch_key,
        additional_memory_gb=None if batch_key is None else estimate_row_gb(config),
        is_batching_faster=find_separate_process_reason(config) is not SeparateProcessReason.NO_GAIN,
    )


def with_prerequisites(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of a sweep, in order, after one job for each unfinished run that their configs refer to.

    Raises:
        ConfigError: see `run_references.list_referenced_runs` and `build_job`.
    """
    swept_jobs = {job.folder: job for job in jobs}
    prerequisite_jobs: dict[Path, Job] = {}
    sweep_jobs = []
    for job in jobs:
        job_prerequisites = []
        for run in run_references.list_referenced_runs(job.config):
            if run.finished:
                continue
            if run.folder in swept_jobs:
                job_prerequisites.append(swept_jobs[run.folder])
                continue
            if run.folder not in prerequisite_jobs:
                experiment = Experiment(run.config, run.overrides, environment=job.environment)
                prerequisite_job = build_job(experiment, run.overrides)
                prerequisite_jobs[run.folder] = replace(prerequisite_job, purpose=run.purpose, name=run.name)
            job_prerequisites.append(prerequisite_jobs[run.folder])
        sweep_jobs.append(replace(job, prerequisites=tuple(job_prerequisites)) if job_prerequisites else job)
    return [*prerequisite_jobs.values(), *sweep_jobs]
