"""`hardware/backend=local`: parallel processes on this machine."""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.run.folder import unwritable
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.signals import PROMISED_S, StopFlag
from llmrl.sweeps.backends.protocol import Backend, Job, JobBatch, JobOutcome
from llmrl.sweeps.jobs import BatchLaunch, cancel_before_start, describe_outcome, record_batch_launch, write_log_header
from llmrl.sweeps.machine import THREAD_VARIABLES, Machine, preserve_environment
from llmrl.sweeps.packing import batch_for_machine
from llmrl.sweeps.payload import RunFunction
from llmrl.sweeps.process import RunProcess, preload
from llmrl.sweeps.watch import SweepWatch, name_progress_bar

log = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True)
class Local(Backend):
    """A backend that computes runs in parallel processes on this machine.

    If there are more runs than fit at once, those with equal keys share processes.
    """

    def prepare(self, jobs: Sequence[Job]) -> None:
        machine = Machine.detect()
        for job in jobs:
            machine.count_parallel(job.hardware, job.cores)

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        machine = Machine.detect()
        n_processes = min(machine.count_parallel(job.hardware, job.cores) for job in jobs)
        return batch_for_machine(jobs, n_processes, machine.memory_gb)

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        machine = Machine.detect()
        return min(len(batches), *(machine.count_parallel(batch.hardware, batch.cores) for batch in batches))

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        return BatchProcessPool(self.make_batches(jobs), run_function, sweep_folder).run()


class BatchProcessPool:
    """A pool of processes that compute batches of runs; a failed run does not stop the others.

    The first Ctrl-C or termination signal is passed on to the runs, which save and stop; no others are started. A
    second Ctrl-C stops them at once. If a process of several runs dies, its unfinished runs are queued again, each for
    a process of its own.

    Args:
        batches: runs to compute, by process.
        run_function: function that each process calls; a `BatchableRunFunction` if batches have several runs.
        sweep_folder: folder for log files with the output of each process.
    """

    def __init__(self, batches: Sequence[JobBatch], run_function: RunFunction, sweep_folder: Path) -> None:
        self.machine = Machine.detect()
        self.batches, self.run_function, self.logs = batches, run_function, sweep_folder / "logs"
        self.jobs = [job for batch in batches for job in batch.jobs]
        self.free_gpus = list(self.machine.gpus)
        self.waiting: list[BatchLaunch] = []
        self.running: list[RunProcess] = []
        self.outcomes: list[JobOutcome] = []

    def run(self) -> list[JobOutcome]:
        """Compute all runs; return their outcomes in order of ending, canceled runs last.

        Raises:
            RunFolderError: `sweep_folder` cannot be written.
        """
        threads = max((job.hardware.threads or job.cores for job in self.jobs), default=1)
        # The flag is entered before launches are recorded, so that waiting runs are recorded as canceled after a stop.
        with preserve_environment(), StopFlag() as stop:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))  # the server loads libraries for all runs
            try:
                self.logs.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise unwritable(self.logs, error) from error
            for batch_index, batch in enumerate(self.batches):
                if stop.requested:
                    self.outcomes += [cancel_before_start(job) for job in batch.jobs]
                else:
                    self._record_and_queue(batch_index, batch)
            preload(self.jobs)
            self._compute(stop)
        return self.outcomes + [cancel_before_start(job) for launch in self.waiting for job in launch.batch.jobs]

    def _compute(self, stop: StopFlag) -> None:
        """Start processes and collect their outcomes, until none is left or a signal stops the sweep."""
        with ProgressBar(len(self.jobs), "runs", name_progress_bar(self.jobs), done=len(self.outcomes)) as progress:
            is_stopping, watch = False, SweepWatch(progress)
            while self.running or (self.waiting and not stop.requested):
                try:
                    if not stop.requested:
                        self._start_processes()
                    self._wait()
                    watch.update_if_due([job.folder for process in self.running for job in process.batch.jobs])
                    if stop.signal is not None and not is_stopping:
                        is_stopping = True
                        n_waiting = sum(len(pending.batch.jobs) for pending in self.waiting)
                        n_running = sum(len(process.batch.jobs) for process in self.running)
                        progress.print_line(
                            f"{n_running} runs save and stop within {PROMISED_S} s (at once on a second Ctrl-C); "
                            f"{n_waiting} waiting runs are canceled"
                        )
                        self._signal(stop.signal)
                except KeyboardInterrupt:
                    self._signal(signal.SIGINT)
                for process in [process for process in self.running if not process.is_running]:
                    self.running.remove(process)
                    self.free_gpus += process.gpus
                    process_outcomes, retry_jobs = process.outcomes(stop.signal)
                    self.outcomes += process_outcomes
                    for outcome in process_outcomes:
                        progress.print_line(describe_outcome(outcome))
                    if retry_jobs:
                        n = len(process.batch.jobs)
                        progress.print_line(
                            f"a process of {n} runs {process.exit_description}; {len(retry_jobs)} are queued again"
                        )
                        self._requeue(process.launch, retry_jobs)
                    progress.update(len(self.outcomes))

    def _record_and_queue(self, batch_index: int, batch: JobBatch) -> None:
        """Record the launch of a batch's runs, and queue those for which this succeeded."""
        first = batch.jobs[0].folder
        name = f"{len(batch.jobs)}-rows" if len(batch.jobs) > 1 else f"{first.parent.name}-{first.name}"
        log_file = self.logs / f"{batch_index:04d}-{name}.log"
        write_log_header(log_file, batch)
        launches, failures = record_batch_launch(batch, self.logs.parent, str(log_file))
        self.waiting += launches
        self.outcomes += failures

    def _requeue(self, shared: BatchLaunch, jobs: Sequence[Job]) -> None:
        """Queue the runs of a process that died, each by itself and before all others: one may have killed it."""
        requeued: list[BatchLaunch] = []
        for job in jobs:
            try:
                requeued.append(shared.split_off(job))
            except RunFolderError as error:
                self.outcomes.append(JobOutcome(job, job.folder, "failed", error=str(error)))
        self.waiting = requeued + self.waiting

    def _start_processes(self) -> None:
        while self.waiting and self._fits(self.waiting[0].batch):
            first = self.waiting.pop(0)
            hardware = first.batch.hardware
            gpus = tuple(self.free_gpus[: hardware.gpus])
            del self.free_gpus[: hardware.gpus]
            n_processes = min(self.machine.count_parallel(hardware, first.batch.cores), len(self.batches))
            self.running.append(RunProcess(first, self.run_function, gpus, n_processes))

    def _fits(self, batch: JobBatch) -> bool:
        """Return whether one more process fits; with no process running, it always does."""
        if not self.running:
            return True
        if len(self.running) >= self.machine.count_parallel(batch.hardware, batch.cores):
            return False
        if self.machine.gpus and len(self.free_gpus) < batch.hardware.gpus:
            return False
        cores = sum(process.batch.cores for process in self.running) + batch.cores
        memory = sum(process.batch.memory_gb for process in self.running) + batch.memory_gb
        return cores <= self.machine.cores and memory <= self.machine.memory_gb

    def _wait(self) -> None:
        """Wait until a process may have ended, or for `_POLL_S`."""
        ready = wait([process.sentinel for process in self.running], _POLL_S)
        for process in self.running:
            process.receive_report()
        if ready and all(process.is_running for process in self.running):
            time.sleep(_POLL_S)  # the fork server is gone, so sentinels no longer show which process has ended

    def _signal(self, number: int) -> None:
        for process in self.running:
            process.signal(number)
