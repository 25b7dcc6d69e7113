"""What a SLURM job does: a run, put back into the queue where its time limit or a preemption came first."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.run.status import read_status
from llmrl.sweeps.work import Work, leads

log = logging.getLogger(__name__)

ALONE_S = 60
"""Seconds after the end of one of a run's processes at which a job ends the others; the first has recorded it then."""


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
            if not leads():
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
