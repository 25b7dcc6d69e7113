"""Experiments as jobs of a sweep, and the sweep computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from llmrl.experiment import run_references
from llmrl.experiment.experiment import Experiment
from llmrl.experiment.job import compute
from llmrl.experiment.means import check_command_lines, game_processes
from llmrl.experiment.row_key import Alone, row_gb, row_key, why_alone
from llmrl.experiment.rows import compute_rows
from llmrl.sweeps.backends.protocol import Job, Outcome
from llmrl.sweeps.jobs import differing_keys, named_by
from llmrl.sweeps.launch import launch
from llmrl.sweeps.packing import SharedTask

TASK = SharedTask(compute, compute_rows)
"""What the processes of a sweep call."""


@dataclass(frozen=True)
class Planned:
    """A run of a sweep.

    Attributes:
        experiment: to be computed.
        environment: variables to set in its process.
    """

    experiment: Experiment
    environment: Mapping[str, str] = field(default_factory=dict)


def compute_sweep(
    runs: Sequence[Planned], folder: Path, wait: bool = True, differing: set[str] | None = None
) -> tuple[list[Outcome], int]:
    """Compute the runs of a sweep, and before them those that they need by reference; what is finished is skipped.

    Args:
        runs: in the order in which they are started.
        folder: where the sweep keeps what its runs print.
        wait: until all have ended; False: return when they are submitted, which needs a scheduler.
        differing: keys in which the runs of the whole sweep differ, if these are a part of it.

    Returns:
        What became of every run, those that were needed first, the sweep's own `runs` last; and the exit code.

    Raises:
        ConfigError: a run makes no sense, or the sweep cannot be launched; nothing has been started.
    """
    return launch(with_needed(jobs_of(runs, differing)), TASK, folder, wait)


def jobs_of(runs: Sequence[Planned], differing: set[str] | None = None) -> list[Job]:
    """Return the jobs of the runs of a sweep, in their order, without those that they need.

    Args:
        runs, differing: as `compute_sweep` takes them.

    Raises:
        ConfigError: as `job_of`.
    """
    swept = differing_keys([run.experiment.overrides for run in runs]) if differing is None else differing
    return [job_of(run.experiment, named_by(run.experiment.overrides, swept), run.environment) for run in runs]


def job_of(experiment: Experiment, naming: Sequence[str], environment: Mapping[str, str] | None = None) -> Job:
    """Return the job of an experiment, whose values are looked at before anything is started.

    Args:
        experiment: to be computed.
        naming: the overrides that make its folder readable: those that differ within the sweep.
        environment: variables to set in its process.

    Raises:
        ConfigError: a value that no run could be built with.
    """
    config = experiment.config
    experiment.application.check_values(config, experiment.means)
    absolute = {**config, "output_root": str(Path(config["output_root"]).expanduser().absolute())}
    check_command_lines(config)
    hardware = experiment.means.hardware
    cores = hardware.cores_for(game_processes(config))
    key = row_key(config, environment)
    gains = why_alone(config) is not Alone.OWN
    return Job(
        absolute,
        experiment.overrides,
        hardware,
        cores,
        list(naming),
        dict(environment or {}),
        key=key,
        row_gb=None if key is None else row_gb(config),
        gains=gains,
    )


def with_needed(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of a sweep, in their order, behind jobs of their own for the runs that they need by reference and
    that are not finished: each of these once.

    Raises:
        ConfigError: as `run_references.needed`, and as `job_of`.
    """
    swept = {job.folder: job for job in jobs}
    first: dict[Path, Job] = {}
    found = []
    for job in jobs:
        after = []
        for run in run_references.needed(job.config):
            if run.finished:
                continue
            if run.folder in swept:
                after.append(swept[run.folder])
                continue
            if run.folder not in first:
                first[run.folder] = job_of(Experiment(run.config, run.overrides), run.overrides, job.environment)
            after.append(first[run.folder])
        found.append(replace(job, after=tuple(after)) if after else job)
    return [*first.values(), *found]
