"""Conversion of experiments into jobs of a sweep, and computation of the sweep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.config.permissions import check_command_lines
from llmrl.experiment import run_references
from llmrl.experiment.batched_runs import UnsharedReason, compute_rows, reason_to_run_alone, row_gb, row_key
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.resources import game_processes
from llmrl.experiment.run_job import compute
from llmrl.sweeps.backends.protocol import Job, JobOutcome
from llmrl.sweeps.jobs import find_differing_keys, select_label_overrides
from llmrl.sweeps.launch import launch
from llmrl.sweeps.packing import BatchableRunFunction

RUN_FUNCTION = BatchableRunFunction(compute, compute_rows)
"""Function that the processes of a sweep call."""


def compute_sweep(
    runs: Sequence[Experiment], folder: Path, wait: bool = True, differing: set[str] | None = None
) -> tuple[list[JobOutcome], int]:
    """Compute the runs of a sweep, after the runs that they need by reference; finished runs are skipped.

    Args:
        runs: runs in the order in which they are started.
        folder: folder of the sweep, for the output of its runs.
        wait: whether to wait until all have ended; False: return after submission, which needs a scheduler.
        differing: keys in which the runs of the whole sweep differ, if `runs` are only a part of them.

    Returns:
        The outcomes of all runs, needed ones first, the sweep's own `runs` last; and the exit code.

    Raises:
        ConfigError: the config of a run is invalid, or the sweep cannot be launched; nothing has been started.
    """
    return launch(with_prerequisites(jobs_of(runs, differing)), RUN_FUNCTION, folder, wait)


def jobs_of(runs: Sequence[Experiment], differing: set[str] | None = None) -> list[Job]:
    """Return the jobs of the runs of a sweep, in order, without jobs for the runs that they need.

    Runs that differ only in the seed are checked once.

    Args:
        runs, differing: as for `compute_sweep`.

    Raises:
        ConfigError: as `job_of`.
    """
    swept = find_differing_keys([run.overrides for run in runs]) if differing is None else differing
    jobs: list[Job] = []
    first: dict[str, tuple[Experiment, Job]] = {}
    for run in runs:
        label_overrides = select_label_overrides(run.overrides, swept)
        experiment, job = first.get(run.hash, (None, None))
        if experiment is not None and job is not None and run.differs_in_seed(experiment):
            jobs.append(job.with_seed(run.seed, run.overrides, label_overrides))
        else:
            jobs.append(job_of(run, label_overrides))
            first[run.hash] = run, jobs[-1]
    return jobs


def job_of(experiment: Experiment, label_overrides: Sequence[str]) -> Job:
    """Check the values of an experiment and return its job.

    Args:
        experiment: experiment to compute.
        label_overrides: overrides for the label of its folder: those that differ within the sweep.

    Raises:
        ConfigError: an invalid value, or a command line in a saved config that is not trusted.
    """
    config = experiment.config
    experiment.application.check_values(config, experiment.resources)
    absolute = {**config, "output_root": str(Path(config["output_root"]).expanduser().absolute())}
    check_command_lines(config)
    hardware = experiment.resources.hardware
    cores = hardware.cores_for(game_processes(config))
    key = row_key(config, experiment.environment)
    is_batching_faster = reason_to_run_alone(config) is not UnsharedReason.OWN
    return Job(
        absolute,
        experiment.overrides,
        hardware,
        cores,
        list(label_overrides),
        experiment.environment,
        batch_key=key,
        additional_memory_gb=None if key is None else row_gb(config),
        is_batching_faster=is_batching_faster,
    )


def with_prerequisites(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of a sweep, in order, after one job for each unfinished run that they need by reference.

    Raises:
        ConfigError: as `run_references.prerequisite_runs`, and as `job_of`.
    """
    swept = {job.folder: job for job in jobs}
    first: dict[Path, Job] = {}
    sweep_jobs = []
    for job in jobs:
        after = []
        for run in run_references.prerequisite_runs(job.config):
            if run.finished:
                continue
            if run.folder in swept:
                after.append(swept[run.folder])
                continue
            if run.folder not in first:
                experiment = Experiment(run.config, run.overrides, environment=job.environment)
                prerequisite = job_of(experiment, run.overrides)
                first[run.folder] = replace(prerequisite, purpose=run.purpose, name=run.name)
            after.append(first[run.folder])
        sweep_jobs.append(replace(job, prerequisites=tuple(after)) if after else job)
    return [*first.values(), *sweep_jobs]
