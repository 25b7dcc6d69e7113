"""An experiment computed as a process of its own: its run, what is printed at the end, and the exit code."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from llmrl.experiment.experiment import Experiment
from llmrl.run.ending import EXIT_INTERRUPTED, ending, say

Config = dict[str, Any]

_TALKATIVE = ("httpx", "httpcore", "LiteLLM", "transformers", "datasets")
"""Libraries that tell of every request or file; failures are told by us."""


def run_experiment(config: Config, overrides: list[str], quiet: bool = False) -> float | None:
    """Compute, go on with, or skip the run of a resolved config, and print what it came to unless `quiet`.

    Returns its result; None after a dry run, which prints the plan.

    Raises:
        LlmrlError, Stopped: as `Experiment.run`.
    """
    return run_and_tell(Experiment(config, overrides), quiet)


def run_and_tell(experiment: Experiment, quiet: bool = False) -> float | None:
    """`run_experiment` of an experiment that is made already."""
    from llmrl.core.processes import Processes
    from llmrl.display.runs import print_plan, print_skipped

    if experiment.config["dry_run"]:
        processes = Processes.join()
        rows = experiment.plan()
        if processes.leads:
            print_plan(rows)
        return None
    run = experiment.run()
    if run.processes.leads and not quiet:
        if run.finished:
            print_skipped(run)
        else:
            experiment.application.print_end(run)
    return run.result


def compute(config: Config, overrides: list[str]) -> float | None:
    """Compute the run of a resolved config as a command does, see `reporting`; what jobs of a sweep call.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.experiment.applications import application_of

    return reporting(application_of(config).command, lambda: run_experiment(config, overrides))


def reporting(name: str, work: Callable[[], float | None]) -> float | None:
    """Do the `work` of the command `name`: what a user is to know goes to standard error, the rest is in the exit code.
    Of several processes of a run only the first speaks; what becomes of the others it learns.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.core.printable import print_records
    from llmrl.core.processes import leaving_together

    print_records()
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    with leaving_together():
        return _reporting(name, work)


def _reporting(name: str, work: Callable[[], float | None]) -> float | None:
    from llmrl.core.errors import LlmrlError
    from llmrl.core.processes import Processes
    from llmrl.run.run import Stopped

    def tell(name: str, text: object) -> None:
        if Processes.joined().leads:
            say(name, text)

    try:
        with ending(name, tell):
            try:
                return work()
            except KeyboardInterrupt as interrupt:
                tell(name, "stopped at once; the same command goes on from the last checkpoint")
                raise SystemExit(EXIT_INTERRUPTED) from interrupt
            except Stopped as stopped:
                tell(name, stopped)
                raise SystemExit(stopped.exit_code) from stopped
    except SystemExit as stop:
        cause = stop.__cause__
        if _under_another_launcher() and isinstance(cause, Exception) and not isinstance(cause, LlmrlError):
            raise cause from None
        raise


def _under_another_launcher() -> bool:
    """Whether this is a run of a sweep whose launcher is not ours: those take an exception for the end of that run, and
    an exit for the end of all."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    if not HydraConfig.initialized():
        return False
    own = HydraConfig.get()
    return own.mode == RunMode.MULTIRUN and not str(own.launcher.get("_target_")).startswith("hydra_plugins.llmrl")
