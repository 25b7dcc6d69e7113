"""`hardware/backend=local`: processes of this machine, side by side."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.run.folder import unwritable
from llmrl.run.progress import Progress
from llmrl.run.signals import PROMISED_S, StopFlag
from llmrl.sweeps.backends.protocol import Backend, Job, Outcome
from llmrl.sweeps.jobs import cancelled, describe, take_on, write_log_header
from llmrl.sweeps.machine import Machine
from llmrl.sweeps.process import RunProcess, preload, thread_limits
from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True)
class Local(Backend):
    """Compute each run in a process of its own on this machine, as many at once as have room."""

    def prepare(self, jobs: Sequence[Job]) -> None:
        machine = Machine.this()
        for job in jobs:
            machine.places(job.hardware, job.cores)

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
        return Pool(jobs, task, sweep_folder).run()


class Pool:
    """Runs all jobs; those that fail do not stop the others.

    The first Ctrl-C or termination signal is handed on to the runs, which save and stop, and starts no others; a
    second Ctrl-C stops them at once.

    Args:
        jobs: runs to compute.
        task: what each process calls.
        sweep_folder: gets a log file of what each run prints.

    Raises:
        RunFolderError: `sweep_folder` cannot be written.
    """

    def __init__(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> None:
        self.machine = Machine.this()
        self.jobs, self.task, self.logs = jobs, task, sweep_folder / "logs"
        self.free_gpus = list(self.machine.gpus)
        self.waiting: list[tuple[Job, int, Path]] = []
        self.running: list[RunProcess] = []
        self.outcomes: list[Outcome] = []

    def run(self) -> list[Outcome]:
        """Until the last run has ended; outcomes as they came."""
        threads = max((job.hardware.threads or job.cores for job in self.jobs), default=1)
        # Before a run is taken on: whatever waits when the user stops the sweep is cancelled, and not just left.
        with thread_limits(threads), StopFlag() as stop:
            self._take_on(stop)
            preload(self.jobs)
            self._compute(stop)
        return self.outcomes + [cancelled(job) for job, _, _ in self.waiting]

    def _compute(self, stop: StopFlag) -> None:
        """Start and end processes until none is left, or those that are left are not to be started."""
        with Progress(len(self.jobs), "runs", "sweep", done=len(self.outcomes)) as progress:
            told = False
            while self.running or (self.waiting and not stop.requested):
                try:
                    if not stop.requested:
                        self._start_what_fits()
                    self._wait()
                    if stop.signal is not None and not told:
                        told = True
                        waiting = f"{len(self.waiting)} that wait are cancelled"
                        within = f"within {PROMISED_S} s, at once on a second Ctrl-C"
                        progress.say(f"telling {len(self.running)} runs to save and stop, {within}; {waiting}")
                        self._signal(stop.signal)
                except KeyboardInterrupt:
                    self._signal(signal.SIGINT)
                for process in [process for process in self.running if not process.running]:
                    self.running.remove(process)
                    self.free_gpus += process.gpus
                    self.outcomes.append(process.outcome(stop.signal))
                    progress.say(describe(self.outcomes[-1]))
                    progress.update(len(self.outcomes))

    def _take_on(self, stop: StopFlag) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.logs, error) from error
        for i, job in enumerate(self.jobs):
            log_file = self.logs / f"{i:04d}-{job.folder.parent.name}-{job.folder.name}.log"
            if stop.requested:
                self.waiting.append((job, 0, log_file))
                continue
            try:
                write_log_header(log_file, job)
                queued = take_on(job, self.logs.parent, str(log_file))
            except RunFolderError as error:
                self.outcomes.append(Outcome(job, job.folder, "failed", error=str(error)))
                continue
            self.waiting.append((job, queued.attempt, log_file))

    def _start_what_fits(self) -> None:
        while self.waiting and self._fits(self.waiting[0][0]):
            job, attempt, log_file = self.waiting.pop(0)
            gpus = tuple(self.free_gpus[: job.hardware.gpus])
            del self.free_gpus[: job.hardware.gpus]
            beside = min(self.machine.places(job.hardware, job.cores), len(self.jobs))
            self.running.append(RunProcess(job, attempt, self.task, log_file, gpus, beside))

    def _fits(self, job: Job) -> bool:
        """Whether one more run has room; with nothing running it always has."""
        if not self.running:
            return True
        if len(self.running) >= self.machine.places(job.hardware, job.cores):
            return False
        if self.machine.gpus and len(self.free_gpus) < job.hardware.gpus:
            return False
        cores = sum(process.job.cores for process in self.running) + job.cores
        memory = sum(process.job.hardware.memory_gb for process in self.running) + job.hardware.memory_gb
        return cores <= self.machine.cores and memory <= self.machine.memory_gb

    def _wait(self) -> None:
        """Until a process may have ended, or a moment has passed."""
        ready = wait([process.sentinel for process in self.running], _POLL_S)
        if ready and all(process.running for process in self.running):
            time.sleep(_POLL_S)  # the server is gone and can tell nothing of its children

    def _signal(self, number: int) -> None:
        for process in self.running:
            process.signal(number)
