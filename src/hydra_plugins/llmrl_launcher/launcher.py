"""The launcher of `--multirun`. Hydra imports this at every start: nothing heavy here."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

if TYPE_CHECKING:
    from llmrl.experiment.sweep_jobs import PlannedRun
    from llmrl.sweeps.backends.protocol import JobOutcome

log = logging.getLogger(__name__)

REPORT_S = 5.0
"""Seconds between two messages about the composition of a sweep."""
EXIT_INTERRUPTED = 130  # also if only the waiting for submitted runs was


class FinishedJob(JobReturn):
    """What a sweeper gets for a run. A failed one has been told of already; asking for its result only leaves.

    `outcome` is what became of it in full.
    """

    outcome: JobOutcome | None = None

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
        wait: until all runs have ended; false: return when they are submitted (backends with a scheduler).

    A sweeper that launches in several batches says in `swept` which keys differ between its runs, and sets
    `in_batches`, so that no commands to use next are printed after each batch.
    """

    def __init__(self, wait: bool) -> None:
        self.wait = wait
        self.swept: set[str] | None = None
        self.in_batches = False
        self.config: DictConfig | None = None
        self.hydra_context: HydraContext | None = None

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from llmrl.core.privacy import keep_private

        self.config, self.hydra_context = config, hydra_context
        keep_private(bool(config.get("private", True)))

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from llmrl.core.errors import ConfigError
        from llmrl.core.secrets import redacted_folder
        from llmrl.display.sweeps import print_sweep
        from llmrl.experiment.experiment import application_of
        from llmrl.experiment.sweep_jobs import compute_sweep
        from llmrl.run.command_exit import begin_work, ending

        assert self.config is not None
        setup_globals()
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        logging.getLogger("llmrl").setLevel(logging.INFO)
        with ending(application_of(self.config).command):
            found = self._compose(job_overrides, initial_job_idx)
            begin_work()
            if len(dry := {run.experiment.config["dry_run"] for run in found}) > 1:
                raise ConfigError("dry_run is for all runs of a sweep or for none")
            if dry == {True}:
                self._plan(found)
                return [_ended(list(overrides), None, 0) for overrides in job_overrides]
            sweep_folder = redacted_folder(Path(self.config.hydra.sweep.dir)).expanduser().absolute()
            outcomes, code = compute_sweep(found, sweep_folder, self.wait, self.swept)
            print_sweep(outcomes, commands=not self.in_batches)
            self._show(found, outcomes)
        own = outcomes[-len(found) :] if found else []
        return [_ended(list(o), outcome, code) for o, outcome in zip(job_overrides, own, strict=True)]

    def _show(self, found: Sequence[PlannedRun], outcomes: Sequence[JobOutcome]) -> None:
        """Show what a study comes to, where this sweep was one and all of it is finished."""
        from llmrl.display.reports import show_study

        asked = [run.experiment for run in found if (run.experiment.config.get("report") or {}).get("question")]
        if asked and all(outcome.state == "finished" for outcome in outcomes):
            for folder, report in {each.folder.parent.parent: each.config["report"] for each in asked}.items():
                show_study(folder, report)

    def _plan(self, found: Sequence[PlannedRun]) -> None:
        """Print what the runs would do: of one all of it, as without --multirun, and of several a table.

        Raises:
            LlmrlError: the parts of a run cannot work together.
        """
        from llmrl.display.console import print_line, print_table
        from llmrl.experiment.run_job import run_and_print
        from llmrl.experiment.sweep_plan import COLUMNS, sweep_plan

        if len(found) == 1 or any("method" in run.experiment.config for run in found):
            for run in found:
                run_and_print(run.experiment)
            return
        plan = sweep_plan(found, self.swept)
        print_table(plan.title, COLUMNS, plan.rows, "lrrrrl")
        for request in plan.requests:
            print_line(request)

    def _compose(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> list[PlannedRun]:
        """Compose every run.

        Raises:
            ConfigError: a composed config makes no sense.
        """
        from llmrl.experiment.composition import job_environment
        from llmrl.experiment.experiment import Experiment
        from llmrl.experiment.sweep_jobs import PlannedRun

        assert self.config is not None and self.hydra_context is not None
        found = []
        own = HydraConfig.instance().cfg
        reported = time.monotonic()
        try:
            for i, overrides in enumerate(job_overrides):
                if time.monotonic() - reported > REPORT_S:
                    reported = time.monotonic()
                    log.info("composed %s of %s runs", f"{i:,}", f"{len(job_overrides):,}")
                composed = self.hydra_context.config_loader.load_sweep_config(self.config, list(overrides))
                with read_write(composed.hydra), open_dict(composed.hydra.job):
                    composed.hydra.job.num = initial_job_idx + i
                    composed.hydra.job.id = str(initial_job_idx + i)
                HydraConfig.instance().set_config(composed)
                environment = job_environment()
                with read_write(composed), open_dict(composed):
                    del composed["hydra"]
                found.append(PlannedRun(Experiment.of_hydra(composed), environment))
        finally:
            HydraConfig.instance().cfg = own
        return found


def _ended(overrides: list[str], outcome: JobOutcome | None, code: int) -> JobReturn:
    """A run's outcome in Hydra's words; `code` is the sweep's exit code."""
    ended = FinishedJob(overrides=overrides, status=JobStatus.COMPLETED)
    ended.return_value = None if outcome is None else outcome.result
    ended.outcome = outcome
    well = ("finished", "elsewhere") if code == EXIT_INTERRUPTED else ("finished", "elsewhere", "submitted")
    if outcome is not None and outcome.state not in well:
        ended.status = JobStatus.FAILED
        ended.return_value = SystemExit(code)
    return ended
