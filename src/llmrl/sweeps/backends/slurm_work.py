"""What a SLURM job does: its runs, put back into the queue where its time limit or a preemption came first."""

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
from llmrl.sweeps.work import PackWork, leads

log = logging.getLogger(__name__)

ALONE_S = 60
"""Seconds after the end of one of a run's processes at which a job ends the others; the first has recorded it then."""


@dataclass(frozen=True)
class ClusterWork:
    """`PackWork` as submitit runs them in a SLURM job."""

    works: PackWork

    def __call__(self) -> None:
        """Compute the runs; if one was told to save before a time limit or a preemption, put the job back into the
        queue. Those that are finished by then are not begun again.

        Raises:
            SystemExit: a run did not finish; with the exit code of `llmrl-train`, of several the lowest.
        """
        _place()
        # submitit's handler counts time-outs and requeues. The runs' own, which saves first, replaces it meanwhile.
        requeue = signal.getsignal(signal.SIGUSR2)
        codes = [end.code for end in self.works() if end.code]
        if not codes:
            return
        warned = 128 + signal.SIGUSR2 in codes or (128 + signal.SIGTERM in codes and leads() and _left_running())
        if leads() and warned and callable(requeue):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # a second warning has nothing to add
            try:
                requeue(signal.SIGUSR2, None)
            except Exception as refused:
                self._tell(f"{type(refused).__name__}: {refused}")
                raise
        raise SystemExit(min(codes))

    def checkpoint(self) -> Any:
        """What submitit puts into the queue again: the same work."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _tell(self, text: str) -> None:
        """Note in the status of its unfinished runs why nobody goes on with them."""
        for work in self.works.works:
            try:
                status = read_status(work.folder)
                if status is not None and status.state != "finished":
                    status.error = f"{text} Repeat the command, or `llmrl-sweep retry`, to go on."
                    status.write(work.folder)
            except RunFolderError as error:
                log.error("%s; could not note it in %s: %s", text, work.folder, error)


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
