"""Payload of a worker process: one or more runs to execute, whose exits it reports to the launcher."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError, summarize_error
from llmrl.core.privacy import restrict_file_permissions
from llmrl.core.processes import read_rank_and_world_size
from llmrl.core.terminal import guard_output
from llmrl.run.command_exit import EXIT_FAILED, EXIT_IN_USE, EXIT_INTERRUPTED
from llmrl.run.files import write_atomic
from llmrl.run.queued import read_launch_record
from llmrl.run.status import Status, read_status

log = logging.getLogger(__name__)

RunFunction = Callable[[dict[str, Any], list[str]], float | None]
"""Function that takes a resolved config and its overrides, executes the run, and returns its objective value (the
scalar that a sweeper optimizes), or None. It raises SystemExit if the run did not finish. It must be defined at module
level, so that other processes can import it."""


@dataclass(frozen=True)
class RunPayload:
    """Picklable description of a run, as sent to its worker process.

    Attributes:
        run_function: function that executes the run.
        config, overrides: arguments for `run_function`.
        folder: run folder.
        environment: environment variables to set.
        batch_key: runs of a process with equal keys are computed as one batch; None: the run is computed alone.
    """

    run_function: RunFunction
    config: dict[str, Any]
    overrides: list[str]
    folder: Path
    environment: dict[str, str]
    batch_key: str | None = None

    def __call__(self) -> float | None:
        """Prepare the process, execute the run and return the value of `run_function`.

        Raises:
            SystemExit: the run did not finish. The code is the exit code of `llmrl-train`.
            Exception: an unexpected error.
        """
        self.prepare()
        return self._execute(self.run_function)

    def prepare(self) -> None:
        """Set environment variables, redact secrets in the output, and set the umask."""
        os.environ.update(self.environment)
        guard_output()
        restrict_file_permissions(self.config.get("private", True))

    def execute_and_capture_exit(self, run_function: RunFunction) -> RunExit:
        """Execute the run with `run_function`, such as a variant that joins a batch, and return the exit of the run.

        Call `prepare` in this process first. Exceptions are not raised but converted to exit codes.
        """
        try:
            self._execute(run_function)
        except SystemExit as error:
            exit_code = error.code if isinstance(error.code, int) else int(error.code is not None)
            return RunExit(self.folder, exit_code, summarize_error(error.__cause__ or error))
        except KeyboardInterrupt as error:  # raised before the run installs its signal handlers, or by a second Ctrl-C
            return RunExit(self.folder, EXIT_INTERRUPTED, summarize_error(error))
        except Exception as error:  # noqa: BLE001 (already recorded in the run folder; the other runs must continue)
            return RunExit(self.folder, EXIT_FAILED, summarize_error(error))
        return RunExit(self.folder, 0)

    def _execute(self, run_function: RunFunction) -> float | None:
        """Execute the run with `run_function` and return its objective value; record and re-raise exceptions."""
        config = self.config
        if self._has_started():
            # The job was requeued, so the earlier attempt of the run must be resumed.
            config = {**config, "rerun": False, "resume": True}
        try:
            return run_function(config, self.overrides)
        except BaseException as error:
            self._record_failure(error)
            raise

    def _has_started(self) -> bool:
        """Return whether an attempt of this run has started since the launcher queued it."""
        try:
            launch_record, status = read_launch_record(self.folder), read_status(self.folder)
        except RunFolderError:
            return False  # the run will raise this error
        return launch_record is not None and status is not None and status.attempt > launch_record.attempt

    def _record_failure(self, error: BaseException) -> None:
        """Record a failure that occurred before the run took ownership of its folder."""
        if not is_main_process():
            return
        if isinstance(error, SystemExit):
            if error.code == EXIT_IN_USE:
                return
            error = error.__cause__ or error
        if isinstance(error, KeyboardInterrupt):
            return  # an interruption is not a failure
        try:
            if self._has_started():
                return  # the run has recorded the failure
            launch_record = read_launch_record(self.folder)
            attempt = 1 + (launch_record.attempt if launch_record else 0)
            write_atomic(self.folder / "traceback.txt", "".join(traceback.format_exception(error)))
            status = Status(state="failed", attempt=attempt, overrides=self.overrides, error=summarize_error(error))
            status.write(self.folder)
        except (OSError, RunFolderError) as write_error:
            log.error("could not record the failure in %s: %s", self.folder, write_error)


@dataclass(frozen=True)
class RunExit:
    """Exit of one of the runs executed by a process.

    Attributes:
        folder: run folder.
        exit_code: exit code that a process with this run alone would have; 0 for a finished run.
        error: short error message, used if the run could not record its failure itself; empty on success.
    """

    folder: Path
    exit_code: int
    error: str = ""


BatchFunction = Callable[[Sequence[RunPayload]], list[RunExit]]
"""Function that executes several runs as one batch in an already prepared process. Like a `RunFunction`, it must be
defined at module level."""


@dataclass(frozen=True)
class ProcessPayload:
    """Picklable description of the runs that one process executes together.

    Attributes:
        payloads: one or more runs with the same process-wide settings, such as environment variables.
        batch_function: function that executes several runs.
    """

    payloads: list[RunPayload]
    batch_function: BatchFunction

    def __call__(self) -> list[RunExit]:
        """Execute the runs and return their exits, in order. A single run is executed by its `run_function`."""
        first_payload = self.payloads[0]
        first_payload.prepare()
        if len(self.payloads) == 1:
            return [first_payload.execute_and_capture_exit(first_payload.run_function)]
        return self.batch_function(self.payloads)


def is_main_process() -> bool:
    """Return whether this is the main process (rank 0) of the run."""
    return read_rank_and_world_size()[0] == 0
