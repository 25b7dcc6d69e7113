"""Experiments as jobs of a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from llmrl.experiment.experiment import Experiment
from llmrl.experiment.means import check_command_lines, game_processes
from llmrl.sweeps.jobs import Job


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
    return Job(absolute, experiment.overrides, hardware, cores, list(naming), dict(environment or {}))
