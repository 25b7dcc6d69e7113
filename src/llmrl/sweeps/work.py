"""The work of a job's process: it computes one run or several, and reports the end of each to the launcher."""

from __future__ import annotations

import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError, short_error
from llmrl.core.privacy import keep_private
from llmrl.core.processes import rank_and_world_size
from llmrl.core.terminal import guard_terminal
from llmrl.run.command_exit import EXIT_FAILED, EXIT_IN_USE, EXIT_INTERRUPTED
from llmrl.run.files import write_atomic
from llmrl.run.queued import read_queued
from llmrl.run.source_copies import import_from, sources_of
from llmrl.run.status import Status, read_status

log = logging.getLogger(__name__)

Task = Callable[[dict[str, Any], list[str]], float | None]
"""Function that computes the run of a resolved config and its overrides, and returns its result; it raises SystemExit
if the run did not finish. It must be defined at module level, so that other processes can import it."""


@dataclass(frozen=True)
class JobWork:
    """A job in the form that its process receives, small and plain, so that it can be pickled.

    Attributes:
        task: function that computes the run.
        config, overrides: arguments of `task`.
        folder: run folder.
        environment: environment variables to set.
        key: runs with equal keys may be computed as one batch if they share a process; None: not in a batch.
        sources: files of the user's modules as they were at submission (`run.source_copies`).
    """

    task: Task
    config: dict[str, Any]
    overrides: list[str]
    folder: Path
    environment: dict[str, str]
    key: str | None = None
    sources: Mapping[str, bytes] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sources", sources_of(self.config))

    def __call__(self) -> float | None:
        """Prepare the process, compute the run and return its result.

        Raises:
            SystemExit: the run did not finish; with the exit code of `llmrl-train`.
            Exception: an unexpected error.
        """
        self.prepare()
        return self.compute(self.task)

    def prepare(self, others: Sequence[JobWork] = ()) -> None:
        """Set up the process: environment variables, terminal output, modes of new files, and imports of user modules.

        Modules of this run and of `others`, which share the process, are imported as they were at submission.
        """
        os.environ.update(self.environment)
        guard_terminal()
        keep_private(self.config.get("private", True))
        import_from({path: x for work in (*others, self) for path, x in work.sources.items()}, self.folder)

    def end(self, task: Task) -> RowEnd:
        """Compute the run by `task` in a prepared process; return how it ended. Exceptions become exit codes."""
        try:
            self.compute(task)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            return RowEnd(self.folder, code, short_error(end.__cause__ or end))
        except KeyboardInterrupt as end:  # before the run handles signals, or a second Ctrl-C
            return RowEnd(self.folder, EXIT_INTERRUPTED, short_error(end))
        except Exception as error:  # noqa: BLE001 (the run has recorded it; the others continue)
            return RowEnd(self.folder, EXIT_FAILED, short_error(error))
        return RowEnd(self.folder, 0)

    def compute(self, task: Task) -> float | None:
        """Compute the run by `task` in a prepared process and return its result.

        Raises:
            SystemExit, Exception: as `__call__`.
        """
        config = self.config
        if self._started_before():
            # The job was requeued, so its earlier attempt must be resumed.
            config = {**config, "rerun": False, "resume": True}
        try:
            return task(config, self.overrides)
        except BaseException as error:
            self._record(error)
            raise

    def _started_before(self) -> bool:
        """Return whether an attempt has started since the launcher recorded the run."""
        try:
            launch_record, status = read_queued(self.folder), read_status(self.folder)
        except RunFolderError:
            return False  # the run itself reports this error
        return launch_record is not None and status is not None and status.attempt > launch_record.attempt

    def _record(self, error: BaseException) -> None:
        """Record a failure in the run folder if it came before the run owned the folder."""
        if not leads():
            return  # only the first of the run's processes records
        if isinstance(error, SystemExit):
            if error.code == EXIT_IN_USE:
                return
            error = error.__cause__ or error
        if isinstance(error, KeyboardInterrupt):
            return  # nothing has failed
        try:
            if self._started_before():
                return  # the run has recorded it
            launch_record = read_queued(self.folder)
            attempt = 1 + (launch_record.attempt if launch_record else 0)
            write_atomic(self.folder / "traceback.txt", "".join(traceback.format_exception(error)))
            Status(state="failed", attempt=attempt, overrides=self.overrides, error=short_error(error)).write(
                self.folder
            )
        except (OSError, RunFolderError) as second:
            log.error("could not record the failure in %s: %s", self.folder, second)


@dataclass(frozen=True)
class RowEnd:
    """The end of one of several runs of a process.

    Attributes:
        folder: run folder.
        code: exit code that a process of its own would have had; 0 for a finished run.
        said: short error text, for a run that could not record its failure; empty without an error.
    """

    folder: Path
    code: int
    said: str = ""


TaskRows = Callable[[Sequence[JobWork]], list[RowEnd]]
"""Function that computes several runs at once in this prepared process; at module level, as a `Task`."""


@dataclass(frozen=True)
class PackWork:
    """The runs that a process computes together; small and plain, as `JobWork`.

    Attributes:
        works: one job or more, with equal environment variables and other process-wide settings.
        task_rows: function that computes several runs.
    """

    works: list[JobWork]
    task_rows: TaskRows

    def __call__(self) -> list[RowEnd]:
        """Compute the runs; return the end of each, in order. A single run is computed by its own task."""
        first = self.works[0]
        first.prepare(self.works[1:])
        return [first.end(first.task)] if len(self.works) == 1 else self.task_rows(self.works)


def leads() -> bool:
    """Return whether this process is the first of those that compute the run together."""
    return rank_and_world_size()[0] == 0
