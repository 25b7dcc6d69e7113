"""The payload of a SLURM job, which computes its runs, and requeues the job after a time limit or a preemption."""

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
from llmrl.sweeps.payload import ProcessPayload, is_main_process

log = logging.getLogger(__name__)

PEER_EXIT_TIMEOUT_S = 60
"""Seconds after the end of one of a run's processes at which a job ends the others, so that the error can be
recorded."""


@dataclass(frozen=True)
class SlurmPayload:
    """`ProcessPayload` as submitit runs them in a SLURM job."""

    payload: ProcessPayload

    def __call__(self) -> None:
        """Compute the runs; requeue the job if a run was signaled to save before a time limit or a preemption.

        Runs that are finished by then are not started again.

        Raises:
            SystemExit: a run did not finish; with the exit code of `llmrl-train`, of several the lowest.
        """
        _export_torchrun_variables()
        # submitit's handler counts time-outs and requeues. During the runs it is replaced by one that saves first.
        requeue = signal.getsignal(signal.SIGUSR2)
        codes = [end.exit_code for end in self.payload() if end.exit_code]
        if not codes:
            return
        is_warned = 128 + signal.SIGUSR2 in codes or (
            128 + signal.SIGTERM in codes and is_main_process() and _is_job_running()
        )
        if is_main_process() and is_warned and callable(requeue):
            signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # ignore further warnings
            try:
                requeue(signal.SIGUSR2, None)
            except Exception as refused:
                self._record_requeue_error(f"{type(refused).__name__}: {refused}")
                raise
        raise SystemExit(min(codes))

    def checkpoint(self) -> Any:
        """Return the payload that submitit submits again: the same."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)

    def _record_requeue_error(self, text: str) -> None:
        """Record in the status of unfinished runs why they are not continued."""
        for run in self.payload.payloads:
            try:
                status = read_status(run.folder)
                if status is not None and status.state != "finished":
                    status.error = f"{text} Repeat the command, or `llmrl-sweep retry`, to resume."
                    status.write(run.folder)
            except RunFolderError as error:
                log.error("%s; could not record it in %s: %s", text, run.folder, error)


def _export_torchrun_variables() -> None:
    """Set the environment variables of torchrun for this task, if its job has several."""
    from submitit.helpers import TorchDistributedEnvironment

    if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)


def _is_job_running(n_queries: int = 5, interval_s: float = 2.0) -> bool:
    """Return whether SLURM still counts this job as running after it has sent SIGTERM.

    A job that is canceled or requeued soon has another state, and SLURM ends it. A job whose preemption begins with a
    grace period stays RUNNING, and would be FAILED if it ended within this period.
    """
    for _ in range(n_queries):
        command = ["squeue", "--noheader", f"--jobs={os.environ.get('SLURM_JOB_ID', '')}", "--format=%T"]
        try:
            state = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout.strip()
        except (OSError, subprocess.SubprocessError):
            return False
        if state != "RUNNING":
            return False
        time.sleep(interval_s)
    return True
