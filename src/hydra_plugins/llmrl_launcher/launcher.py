"""The launcher of `--multirun`. Hydra imports this module at every start, so it must not import heavy modules."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

if TYPE_CHECKING:
    from llmrl.experiment.experiment import Experiment
    from llmrl.sweeps.backends.protocol import JobOutcome

log = logging.getLogger(__name__)

_MESSAGE_INTERVAL_S = 5.0
"""Seconds between two messages about the composition of a sweep."""
_SEED_PATTERN = re.compile(r"seed=(0|[1-9][0-9]*)")
EXIT_INTERRUPTED = 130  # exit code after Ctrl-C, also if this only ended the wait for submitted runs


class FinishedJob(JobReturn):
    """The result of a run for a sweeper.

    Attributes:
        outcome: outcome of the run; None if the run was only planned.
    """

    outcome: JobOutcome | None = None


class LlmrlLauncher(Launcher):
    """A launcher that composes all runs before it starts one, and computes missing runs by the backend of `hardware`.

    Args:
        wait: whether to wait until all runs have ended. False: return after the submission to a scheduler.

    Attributes:
        swept: keys that differ between the runs of the sweep, if a sweeper sets them; None: those of each launch.
        in_batches: whether a sweeper launches in several batches. If so, no next commands are printed after a launch.
    """

    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.swept: set[str] | None = None
        self.in_batches = False
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from llmrl.core.privacy import restrict_file_permissions

        self.config, self.hydra_context = config, hydra_context
        restrict_file_permissions(bool(config.get("private", True)))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from llmrl.core.errors import ConfigError
        from llmrl.core.secrets import redact_folder_names
        from llmrl.display.sweeps import print_sweep
        from llmrl.experiment.experiment import get_application
        from llmrl.experiment.sweep_jobs import compute_sweep
        from llmrl.run.command_exit import end_composition, exit_on_error

        assert self.config is not None
        setup_globals()
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        logging.getLogger("llmrl").setLevel(logging.INFO)
        with exit_on_error(get_application(self.config).command):
            runs = self._compose(job_overrides, initial_job_idx)
            end_composition()
            if len(dry_run_values := {run.config["dry_run"] for run in runs}) > 1:
                raise ConfigError("dry_run must have the same value in all runs of a sweep")
            if dry_run_values == {True}:
                self._print_plan(runs)
                return [_build_job_return(list(overrides), None, 0) for overrides in job_overrides]
            sweep_folder = redact_folder_names(Path(self.config.hydra.sweep.dir)).expanduser().absolute()
            outcomes, code = compute_sweep(runs, sweep_folder, self.wait, self.swept)
            print_sweep(outcomes, show_commands=not self.in_batches)
            self._print_study_results(runs, outcomes)
        run_outcomes = outcomes[-len(runs) :] if runs else []
        return [
            _build_job_return(list(overrides), outcome, code)
            for overrides, outcome in zip(job_overrides, run_outcomes, strict=True)
        ]

    def _print_study_results(self, runs: Sequence[Experiment], outcomes: Sequence[JobOutcome]) -> None:
        """Show the results of each study in the sweep if all runs are finished."""
        from llmrl.display.sweeps import show_study

        studies = [run for run in runs if (run.config.get("report") or {}).get("question")]
        if studies and all(outcome.state == "finished" for outcome in outcomes):
            for folder, report in {run.folder.parent.parent: run.config["report"] for run in studies}.items():
                show_study(folder, report)

    def _print_plan(self, runs: Sequence[Experiment]) -> None:
        """Print the full plan for a single run and for fine-tuning, and a table for several runs.

        Raises:
            LlmrlError: the parts of a run cannot work together.
        """
        from llmrl.display.console import print_line, print_table
        from llmrl.experiment.run_job import run_and_print
        from llmrl.experiment.sweep_jobs import build_jobs
        from llmrl.experiment.sweep_plan import PLAN_COLUMNS, make_batches_and_requests, plan_sweep

        if len(runs) == 1 or any("method" in run.config for run in runs):
            for run in runs:
                run_and_print(run)
            _, requests = make_batches_and_requests(build_jobs(runs, self.swept))
        else:
            title, rows, requests = plan_sweep(runs, self.swept)
            n_columns = len(PLAN_COLUMNS) if any(row[-1] for row in rows) else len(PLAN_COLUMNS) - 1
            print_table(title, PLAN_COLUMNS[:n_columns], [row[:n_columns] for row in rows], "lrrrrl"[:n_columns])
        for request in requests:
            print_line(request)

    def _compose(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[Experiment]:
        """Compose every run. Runs that differ only in the seed are composed once, unless other values depend on it.

        Raises:
            ConfigError: a composed config is invalid.
        """
        from llmrl.core.hydra_composition import cache_compositions

        runs: list[Experiment] = []
        run_by_setting: dict[tuple[str, ...], Experiment] = {}
        previous_config = HydraConfig.instance().cfg
        report_time = time.monotonic()
        try:
            with cache_compositions():
                for i, overrides in enumerate(job_overrides):
                    if time.monotonic() - report_time > _MESSAGE_INTERVAL_S:
                        report_time = time.monotonic()
                        log.info("composed %s of %s runs", f"{i:,}", f"{len(job_overrides):,}")
                    seeds = [match[1] for override in overrides if (match := _SEED_PATTERN.fullmatch(override))]
                    setting = tuple(override for override in overrides if not _SEED_PATTERN.fullmatch(override))
                    if seeds and setting in run_by_setting:
                        runs.append(run_by_setting[setting].with_seed(int(seeds[-1])))
                        continue
                    run, refers_to_seed = self._compose_run(overrides, initial_job_idx + i)
                    runs.append(run)
                    if seeds and not refers_to_seed:
                        run_by_setting[setting] = run
        finally:
            HydraConfig.instance().cfg = previous_config
        return runs

    def _compose_run(self, overrides: Sequence[str], number: int) -> tuple[Experiment, bool]:
        """Compose a run and set `HydraConfig`; return the run, and whether other values depend on the seed.

        Raises:
            ConfigError: the composed config is invalid.
        """
        from llmrl.experiment.composition import depends_on_seed
        from llmrl.experiment.experiment import Experiment
        from llmrl.run.config_hash import RESOLVED_RUNS_KEY

        assert self.config is not None and self.hydra_context is not None
        config = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
        with read_write(config.hydra), open_dict(config.hydra.job):
            config.hydra.job.num = number
            config.hydra.job.id = str(number)
        HydraConfig.instance().set_config(config)
        with read_write(config), open_dict(config):
            del config["hydra"]
        refers_to_seed = depends_on_seed(config)
        run = Experiment.from_hydra(config)
        return run, refers_to_seed or RESOLVED_RUNS_KEY in run.config


def _build_job_return(overrides: list[str], outcome: JobOutcome | None, code: int) -> JobReturn:
    """Return the outcome of a run as Hydra's type; a failure has the exit code `code` of the sweep."""
    job = FinishedJob(overrides=overrides, status=JobStatus.COMPLETED)
    job.return_value = None if outcome is None else outcome.result
    job.outcome = outcome
    completed_states = ["finished", "elsewhere"] if code == EXIT_INTERRUPTED else ["finished", "elsewhere", "submitted"]
    if outcome is not None and outcome.state not in completed_states:
        job.status = JobStatus.FAILED
        job.return_value = SystemExit(code)
    return job
