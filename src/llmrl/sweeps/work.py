"""What the process of a job does: one run, with every way it can end made visible to the launcher."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
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

ALONE_S = 60
"""Seconds after the end of one of a run's processes at which a job ends the others; the first has recorded it then."""


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
        if not _leads():
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
class ClusterWork:
    """`Work` as submitit runs it in a SLURM job."""

    work: Work

    def __call__(self) -> float | None:
        """Run it; if it was told to save before a time limit or a preemption, put the job back into the queue."""
        _place()
        # submitit's handler counts time-outs and requeues. The run's own, which saves first, replaces it meanwhile.
        requeue = signal.getsignal(signal.SIGUSR2)
        try:
            return self.work()
        except SystemExit as stop:
            if not _leads():
                raise
            warned = stop.code == 128 + signal.SIGUSR2 or (stop.code == 128 + signal.SIGTERM and _left_running())
            if not warned or not callable(requeue):
                raise
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a second warning has nothing to add
            try:
                requeue(signal.SIGUSR2, None)
            except Exception as refused:
                self._tell(f"{type(refused).__name__}: {refused}")
                raise
            raise

    def checkpoint(self) -> Any:
        """What submitit puts into the queue again: the same work."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _tell(self, text: str) -> None:
        """Note in the run's status why nobody goes on with it."""
        try:
            status = read_status(self.work.folder)
            if status is not None:
                status.error = f"{text} Repeat the command, or `llmrl-sweep retry`, to go on."
                status.write(self.work.folder)
        except RunFolderError as error:
            log.error("%s; could not note it in %s: %s", text, self.work.folder, error)


def _place() -> None:
    """Tell this task of a job who it is among the processes of its run, if there are several, as torchrun would."""
    from submitit.helpers import TorchDistributedEnvironment

    if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def _leads() -> bool:
    return placed()[0] == 0


def _left_running(looks: int = 5, every_s: float = 2.0) -> bool:
    """Whether SLURM, having sent SIGTERM to this job, still counts it as running.

    A job that is cancelled or requeued has another state at once, or a moment later, and is SLURM's to end. One whose
    preemption begins with a time of grace stays RUNNING, and would be FAILED for leaving before that is over.
    """
    for _ in range(looks):
        command = ["squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%T"]
        try:
            state = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return False
        if state != "RUNNING":
            return False
        time.sleep(every_s)
    return True
