"""An experiment computed as a process of its own: its run, what is printed at the end, and the exit code."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llmrl.core.threads import in_turn
from llmrl.experiment.experiment import Experiment, application_of
from llmrl.loops.requests import Seat
from llmrl.run.ending import EXIT_INTERRUPTED, ending, say

_TALKATIVE = ("httpx", "httpcore", "LiteLLM", "transformers", "datasets")
"""Libraries that tell of every request or file; failures are told by us."""


def compute(config: dict[str, Any], overrides: list[str], seat: Seat | None = None, whose: str = "") -> float | None:
    """Compute the run of a resolved config as a command does; what jobs of a sweep call.

    Args:
        config, overrides, seat: as `Experiment` takes them.
        whose: name of the run, for messages of one beside others in a process.

    Raises:
        SystemExit: the run did not finish.
    """
    command = application_of(config).command
    with reporting(f"{command} ({whose})" if whose else command):
        return run_and_print(Experiment(config, overrides, seat))


def run_and_print(experiment: Experiment, quiet: bool = False) -> float | None:
    """Compute, go on with, or skip the run of an experiment, and print what it came to unless `quiet`.

    Returns its result; None after a dry run, which prints the plan.

    Raises:
        LlmrlError, Stopped: as `Experiment.run`.
    """
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
        with in_turn():
            if run.finished:
                print_skipped(run)
            else:
                experiment.application.print_end(run)
    return run.result


@contextmanager
def reporting(name: str) -> Iterator[None]:
    """Around the run of the command `name`: what a user is to know goes to standard error, the rest is in the exit
    code. Of several processes of a run only the first speaks; what becomes of the others it learns.

    Raises:
        SystemExit: the run did not finish.
    """
    from llmrl.core.printable import print_records
    from llmrl.core.processes import Processes, leaving_together
    from llmrl.run.signals import Stopped

    def tell(name: str, text: object) -> None:
        if Processes.joined().leads:
            say(name, text)

    print_records()
    for library in _TALKATIVE:
        logging.getLogger(library).setLevel(logging.WARNING)
    with leaving_together(), _seen_by_launchers(), ending(name, tell):
        try:
            yield
        except KeyboardInterrupt as interrupt:
            tell(name, "stopped at once; the same command goes on from the last checkpoint")
            raise SystemExit(EXIT_INTERRUPTED) from interrupt
        except Stopped as stopped:
            tell(name, stopped)
            raise SystemExit(stopped.exit_code) from stopped


@contextmanager
def _seen_by_launchers() -> Iterator[None]:
    """Around a run that leaves with an exit code: launchers of `--multirun` that are not ours take an exception for the
    end of that run, and an exit for the end of all, so they get the exception that nobody foresaw."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from llmrl.core.errors import LlmrlError

    try:
        yield
    except SystemExit as stop:
        cause, own = stop.__cause__, HydraConfig.get() if HydraConfig.initialized() else None
        if own is None or not isinstance(cause, Exception) or isinstance(cause, LlmrlError):
            raise
        if own.mode == RunMode.MULTIRUN and not str(own.launcher.get("_target_")).startswith("hydra_plugins.llmrl"):
            raise cause from None
        raise
