"""What the process of a job does: one run or several, with every way they can end made visible to the launcher."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError, short_error
from llmrl.core.privacy import keep_private
from llmrl.core.processes import placed
from llmrl.core.terminal import guard_terminal
from llmrl.run.ending import EXIT_FAILED, EXIT_IN_USE, EXIT_INTERRUPTED
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
        key: runs with equal keys may be computed as one batch, where they share a process; None: this one is not.
    """

    task: Task
    config: dict[str, Any]
    overrides: list[str]
    folder: Path
    environment: dict[str, str]
    key: str | None = None

    def __call__(self) -> float | None:
        """Run it.

        Raises:
            SystemExit: with the exit code of `llmrl-train`.
            Exception: whatever a defect raised.
        """
        self.prepare()
        return self.compute(self.task)

    def prepare(self) -> None:
        """Set up what the whole process shares: variables, what reaches the terminal, modes of new files."""
        os.environ.update(self.environment)
        guard_terminal()
        keep_private(self.config.get("private", True))

    def end(self, task: Task) -> RowEnd:
        """Run it by `task` in a process that is prepared; returns how that ended, whatever happened."""
        try:
            self.compute(task)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            return RowEnd(self.folder, code, short_error(end.__cause__ or end))
        except KeyboardInterrupt as end:  # before the run could say so itself, or the second one
            return RowEnd(self.folder, EXIT_INTERRUPTED, short_error(end))
        except Exception as error:  # noqa: BLE001 (the run has recorded it; the others go on)
            return RowEnd(self.folder, EXIT_FAILED, short_error(error))
        return RowEnd(self.folder, 0)

    def compute(self, task: Task) -> float | None:
        """Run it by `task` in a process that is prepared.

        Raises:
            SystemExit, Exception: as a call.
        """
        config = self.config
        if self._started_before():
            # This job was put back into the queue: what it began is to be gone on with.
            config = {**config, "rerun": False, "resume": True}
        try:
            return task(config, self.overrides)
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


@dataclass(frozen=True)
class RowEnd:
    """How one of several runs of a process ended.

    Attributes:
        folder: the run folder.
        code: that a process of its own would have left with: 0 for a finished run.
        said: its last words, for a run that could not record why it failed; empty: none.
    """

    folder: Path
    code: int
    said: str = ""


TaskRows = Callable[[Sequence[Work]], list[RowEnd]]
"""Computes several runs at once in this process, which is prepared. A module's function, as a `Task` is."""


@dataclass(frozen=True)
class Works:
    """The runs that a process computes together; small and plain, as `Work`.

    Attributes:
        works: one or more, whose environments are equal, and what else a process has once.
        task_rows: what to call for several.
    """

    works: list[Work]
    task_rows: TaskRows

    def __call__(self) -> list[RowEnd]:
        """Compute them; returns how each ended, in their order. One is computed as it would be by itself."""
        first = self.works[0]
        first.prepare()
        return [first.end(first.task)] if len(self.works) == 1 else self.task_rows(self.works)


def leads() -> bool:
    """Return whether this is the first of the processes that compute the run together."""
    return placed()[0] == 0
