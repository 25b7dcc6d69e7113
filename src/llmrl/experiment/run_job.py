"""Functions that commands and jobs call: they compute a run, print its summary, and turn errors into exit codes."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import LlmrlError
from llmrl.core.printable import make_logs_printable
from llmrl.core.processes import ProcessGroup, leave_group_at_exit
from llmrl.core.threads import hold_process_lock
from llmrl.experiment.experiment import Experiment, get_application
from llmrl.run.command_exit import EXIT_INTERRUPTED, exit_on_error, print_message
from llmrl.run.signals import Stopped

if TYPE_CHECKING:
    from llmrl.loops.batched_executor import RunConnection

_VERBOSE_LIBRARIES = ("httpx", "httpcore", "LiteLLM", "transformers", "datasets")
"""Libraries that log every request or file; only their warnings are shown."""


def compute_job(
    config: dict[str, Any], overrides: list[str], connection: RunConnection | None = None, label: str = ""
) -> float | None:
    """Compute the run of a job of a sweep, print its summary and return its result.

    Args:
        config, overrides, connection: see `Experiment`.
        label: name of the run in messages, if several runs share a process; otherwise empty.

    Raises:
        SystemExit: the run did not finish.
    """
    command = get_application(config).command
    with report_errors(f"{command} ({label})" if label else command):
        return run_and_print(Experiment(config, overrides, connection))


def run_and_print(experiment: Experiment) -> float | None:
    """Start or resume the run of an experiment, unless it is finished, and print a summary.

    Returns:
        The run's scalar result; None after a dry run, which only prints the plan.

    Raises:
        LlmrlError, Stopped: see `Experiment.run`.
    """
    from llmrl.display.console import print_fields
    from llmrl.display.results import print_already_finished

    if experiment.config["dry_run"]:
        processes = ProcessGroup.join()
        rows = experiment.plan()
        if processes.is_main:
            print_fields(
                "Plan (dry_run=true: all parts were built; only a few steps were run to measure their time)", rows
            )
        return None
    run = experiment.run()
    if run.processes.is_main:
        with hold_process_lock():
            if run.finished:
                print_already_finished(run)
            else:
                experiment.application.print_summary(run)
    return run.result


@contextmanager
def report_errors(name: str) -> Iterator[None]:
    """Return a context manager that turns errors of the command `name` into messages and exit codes.

    If several processes compute a run, only the first one prints messages.

    Raises:
        SystemExit: the run did not finish.
    """

    def report(name: str, text: object) -> None:
        if ProcessGroup.get_joined().is_main:
            print_message(name, text)

    make_logs_printable()
    for library in _VERBOSE_LIBRARIES:
        logging.getLogger(library).setLevel(logging.WARNING)
    with leave_group_at_exit(), _raise_to_foreign_launchers(), exit_on_error(name, report):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            report(name, "stopped at once; the same command resumes the run from its last checkpoint")
            raise SystemExit(EXIT_INTERRUPTED) from interrupt
        except Stopped as stopped:
            report(name, stopped)
            raise SystemExit(stopped.exit_code) from stopped


@contextmanager
def _raise_to_foreign_launchers() -> Iterator[None]:
    """Return a context manager that replaces SystemExit by its cause, for launchers other than llmrl's.

    With such a launcher, an exception ends one run of `--multirun`, but SystemExit ends the whole sweep. SystemExit is
    not replaced if its cause is missing, an LlmrlError or KeyboardInterrupt.
    """
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    try:
        yield
    except SystemExit as exit_error:
        cause = exit_error.__cause__
        hydra_config = HydraConfig.get() if HydraConfig.initialized() else None
        is_foreign_sweep = (
            hydra_config is not None
            and hydra_config.mode == RunMode.MULTIRUN
            and not str(hydra_config.launcher.get("_target_")).startswith("hydra_plugins.llmrl")
        )
        if is_foreign_sweep and isinstance(cause, Exception) and not isinstance(cause, LlmrlError):
            raise cause from None
        raise
