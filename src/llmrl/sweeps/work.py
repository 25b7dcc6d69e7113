"""What the process of a job does: one run, with every way it can end made visible to the launcher."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError, short_error
from llmrl.core.privacy import keep_private
from llmrl.core.processes import placed
from llmrl.core.terminal import guard_terminal
from llmrl.run.ending import EXIT_IN_USE
from llmrl.run.files import write_atomic
from llmrl.run.queued import read_queued
from llmrl.run.status import Status, read_status

log = logging.getLogger(__name__)

Task = Callable[[dict[str, Any], list[str]], float | None]
"""Runs the experiment of a resolved config; leaves with SystemExit if it did not finish. A module's function, so that
other processes can import it."""


@dataclass(frozen=True)
class Work:
    """A job as its process gets it; small and plain, so that it can be pickled anywhere.

    Attributes:
        task: what to call.
        config, overrides: what with.
        folder: the run folder.
        environment: variables to set for it.
    """

    task: Task
    config: dict[str, Any]
    overrides: list[str]
    folder: Path
    environment: dict[str, str]

    def __call__(self) -> float | None:
        """Run it.

        Raises:
            SystemExit: with the exit code of `llmrl-train`.
            Exception: whatever a defect raised.
        """
        os.environ.update(self.environment)
        guard_terminal()
        keep_private(self.config.get("private", True))
        config = self.config
        if self._started_before():
            # This job was put back into the queue: what it began is to be gone on with.
            config = {**config, "rerun": False, "resume": True}
        try:
            return self.task(config, self.overrides)
        except BaseException as error:
            self._record(error)
            raise

    def _started_before(self) -> bool:
        """Whether an attempt was made since the launcher took the run on."""
        try:
            queued, status = read_queued(self.folder), read_status(self.folder)
        except RunFolderError:
            return False  # the run says so itself
        return queued is not None and status is not None and status.attempt > queued.attempt

    def _record(self, error: BaseException) -> None:
        """Make sure that a failure before the run had got hold of its folder is seen in it."""
        if not leads():
            return  # the first of the run's processes learns of it
        if isinstance(error, SystemExit):
            if error.code == EXIT_IN_USE:
                return
            error = error.__cause__ or error
        if isinstance(error, KeyboardInterrupt):
            return  # nothing has failed
        try:
            if self._started_before():
                return  # the run has recorded it
            queued = read_queued(self.folder)
            attempt = 1 + (queued.attempt if queued else 0)
            write_atomic(self.folder / "traceback.txt", "".join(traceback.format_exception(error)))
            Status(state="failed", attempt=attempt, overrides=self.overrides, error=short_error(error)).write(
                self.folder
            )
        except (OSError, RunFolderError) as second:
            log.error("could not record the failure in %s: %s", self.folder, second)


def leads() -> bool:
    """Return whether this is the first of the processes that compute the run together."""
    return placed()[0] == 0
