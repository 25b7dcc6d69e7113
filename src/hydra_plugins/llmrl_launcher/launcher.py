"""The launcher and the sweeper of `llmrl-train --multirun`. Hydra imports this at every start: nothing heavy here."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

if TYPE_CHECKING:
    from llmrl.sweeps.jobs import Job, Outcome

log = logging.getLogger(__name__)


class Ended(JobReturn):
    """What a sweeper gets for a run. A failed one has been told of already; asking for its result only leaves.

    `outcome` is what became of it in full.
    """

    outcome: Outcome | None = None

    @property
    def return_value(self) -> Any:
        if self.status == JobStatus.COMPLETED:
            return self._return_value
        raise self._return_value

    @return_value.setter
    def return_value(self, value: Any) -> None:
        self._return_value = value


class LlmrlLauncher(Launcher):
    """Composes every run first, so that a mistake stops the sweep before anything has started; then runs what is
    missing where `hardware` says.

    Args:
        wait: until all runs have ended; false: return when they are submitted (SLURM only).
    """

    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.config, self.hydra_context = config, hydra_context

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from llmrl.cli.report import print_sweep
        from llmrl.cli.train import EXIT_FAILED, run_experiment, run_reporting
        from llmrl.core.errors import LlmrlError
        from llmrl.sweeps.launch import exit_code, launch

        assert self.config is not None
        setup_globals()
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        logging.getLogger("llmrl").setLevel(logging.INFO)
        try:
            jobs = self._compose(job_overrides, initial_job_idx)
            if all(job.config["dry_run"] for job in jobs):
                for job in jobs:
                    run_experiment(job.config, job.overrides)
                return [_ended(list(overrides), None, 0) for overrides in job_overrides]
            outcomes = launch(jobs, run_reporting, Path(self.config.hydra.sweep.dir).absolute(), self.wait)
        except LlmrlError as error:
            sys.stderr.write(f"\nllmrl-train: {error}\n")
            raise SystemExit(EXIT_FAILED) from error
        print_sweep(outcomes)
        code = exit_code(outcomes)
        return [_ended(list(o), outcome, code) for o, outcome in zip(job_overrides, outcomes, strict=True)]

    def _compose(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Job]:
        """The runs as jobs.

        Raises:
            ConfigError: a composed config makes no sense.
        """
        from llmrl.cli.compose import build_hardware, game_processes
        from llmrl.cli.train import resolve
        from llmrl.sweeps.jobs import Job, named_by_differences

        assert self.config is not None and self.hydra_context is not None
        resolved = []
        own = HydraConfig.instance().cfg
        try:
            for i, overrides in enumerate(job_overrides):
                composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
                with read_write(composed.hydra), open_dict(composed.hydra.job):
                    composed.hydra.job.num = initial_job_idx + i
                    composed.hydra.job.id = str(initial_job_idx + i)
                HydraConfig.instance().set_config(composed)
                with read_write(composed), open_dict(composed):
                    del composed["hydra"]
                resolved.append(resolve(composed))
        finally:
            HydraConfig.instance().cfg = own
        names = named_by_differences([overrides for _, overrides in resolved])
        jobs = []
        for (config, overrides), naming in zip(resolved, names, strict=True):
            config["output_root"] = str(Path(config["output_root"]).expanduser().absolute())
            hardware = build_hardware(config)
            jobs.append(Job(config, overrides, hardware, hardware.cores_for(game_processes(config)), naming))
        return jobs


class LlmrlSweeper(BasicSweeper):
    """Hydra's own sweeper without its trial composition of every run: the launcher composes them all before it starts
    any, so a large sweep is composed once and not twice."""

    def validate_batch_is_legal(self, batch: Sequence[Sequence[str]]) -> None:
        pass


def _ended(overrides: list[str], outcome: Outcome | None, code: int) -> JobReturn:
    """A run's outcome in Hydra's words; `code` is the sweep's exit code."""
    ended = Ended(overrides=overrides, status=JobStatus.COMPLETED)
    ended.return_value = None if outcome is None else outcome.result
    ended.outcome = outcome
    if outcome is not None and outcome.state not in ("finished", "submitted", "elsewhere"):
        ended.status = JobStatus.FAILED
        ended.return_value = SystemExit(code)
    return ended
