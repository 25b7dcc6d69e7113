"""`hardware/backend=local`: parallel processes on this machine."""

from __future__ import annotations

import logging
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.run.folder import unwritable
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.signals import PROMISED_S, StopFlag
from llmrl.sweeps.backends.protocol import Backend, Job, JobOutcome, Pack
from llmrl.sweeps.jobs import cancelled, describe, resumed_job, take_on, write_log_header
from llmrl.sweeps.machine import Machine
from llmrl.sweeps.packing import pack_for_machine, repack
from llmrl.sweeps.process import RunProcess, preload, thread_limits
from llmrl.sweeps.watch import SweepWatch, bar_name
from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True)
class Local(Backend):
    """A backend that computes runs in parallel processes on this machine.

    If there are more runs than fit at once, those with equal keys share processes as rows.
    """

    def prepare(self, jobs: Sequence[Job]) -> None:
        machine = Machine.this()
        for job in jobs:
            machine.places(job.hardware, job.cores)

    def packs(self, jobs: Sequence[Job]) -> list[Pack]:
        machine = Machine.this()
        places = min(machine.places(job.hardware, job.cores) for job in jobs)
        return pack_for_machine(jobs, places, machine.memory_gb)

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        machine = Machine.this()
        return min(len(packs), *(machine.places(pack.hardware, pack.cores) for pack in packs))

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[JobOutcome]:
        return PackPool(self.packs(jobs), task, sweep_folder).run()


@dataclass
class _Waiting:
    """A process that has yet to be started.

    It has its runs, the number of attempts of each when it was queued, and the file for its output.
    """

    pack: Pack
    attempts: dict[Path, int]
    log_file: Path


class PackPool:
    """A pool of processes that compute packs of runs; a failed run does not stop the others.

    The first Ctrl-C or termination signal is passed on to the runs, which save and stop, and no others are started. A
    second Ctrl-C stops them at once. If a process of several runs dies, its unfinished runs are queued again.

    Args:
        packs: runs to compute, by process.
        task: function that each process calls; a `SharedTask` if packs have several runs.
        sweep_folder: folder for log files with the output of each process.
    """

    def __init__(self, packs: Sequence[Pack], task: Task, sweep_folder: Path) -> None:
        self.machine = Machine.this()
        self.packs, self.task, self.logs = packs, task, sweep_folder / "logs"
        self.jobs = [job for pack in packs for job in pack.jobs]
        self.free_gpus = list(self.machine.gpus)
        self.waiting: list[_Waiting] = []
        self.running: list[RunProcess] = []
        self.outcomes: list[JobOutcome] = []
        self.deaths: Counter[Path] = Counter()
        self._processes = 0

    def run(self) -> list[JobOutcome]:
        """Compute all runs; return their outcomes in order of ending, canceled runs last.

        Raises:
            RunFolderError: `sweep_folder` cannot be written.
        """
        threads = max((job.hardware.threads or job.cores for job in self.jobs), default=1)
        # The flag is entered before launches are recorded, so that waiting runs are recorded as canceled after a stop.
        with thread_limits(threads), StopFlag() as stop:
            self._make_folder()
            for pack in self.packs:
                if stop.requested:
                    self.waiting.append(_Waiting(pack, {}, self.logs))
                else:
                    self._take_on(pack)
            preload(self.jobs)
            self._compute(stop)
        return self.outcomes + [cancelled(job) for waiting in self.waiting for job in waiting.pack.jobs]

    def _compute(self, stop: StopFlag) -> None:
        """Start processes and collect their outcomes, until none is left or a signal stops the sweep."""
        with ProgressBar(len(self.jobs), "runs", bar_name(self.jobs), done=len(self.outcomes)) as progress:
            is_stopping, watch = False, SweepWatch(progress)
            while self.running or (self.waiting and not stop.requested):
                try:
                    if not stop.requested:
                        self._start_processes()
                    self._wait()
                    watch.look([job.folder for process in self.running for job in process.pack.jobs])
                    if stop.signal is not None and not is_stopping:
                        is_stopping = True
                        n_waiting = sum(len(pending.pack.jobs) for pending in self.waiting)
                        n_running = sum(len(process.pack.jobs) for process in self.running)
                        progress.print_line(
                            f"{n_running} runs save and stop within {PROMISED_S} s (at once on a second Ctrl-C); "
                            f"{n_waiting} waiting runs are canceled"
                        )
                        self._signal(stop.signal)
                except KeyboardInterrupt:
                    self._signal(signal.SIGINT)
                for process in [process for process in self.running if not process.running]:
                    self.running.remove(process)
                    self.free_gpus += process.gpus
                    process_outcomes, retry_jobs = process.outcomes(stop.signal)
                    for outcome in process_outcomes:
                        self.outcomes.append(self._with_deaths(outcome))
                        progress.print_line(describe(self.outcomes[-1]))
                    if retry_jobs:
                        n = len(process.pack.jobs)
                        progress.print_line(f"a process of {n} runs {process.died}; {len(retry_jobs)} are queued again")
                        self._requeue(retry_jobs, process.attempts)
                    progress.update(len(self.outcomes))

    def _make_folder(self) -> None:
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.logs, error) from error

    def _take_on(self, pack: Pack) -> None:
        """Record the launch of a pack's runs, and queue those for which this succeeded."""
        is_shared, first = len(pack.jobs) > 1, pack.jobs[0].folder
        name = f"{len(pack.jobs)}-rows" if is_shared else f"{first.parent.name}-{first.name}"
        log_file = self.logs / f"{self._processes:04d}-{name}.log"
        self._processes += 1
        attempts: dict[Path, int] = {}
        for job in pack.jobs:
            try:
                if not attempts:
                    write_log_header(log_file, pack)
                deaths = self.deaths[job.folder]
                launch_record = take_on(job, self.logs.parent, str(log_file), beside=pack.folders, deaths=deaths)
            except RunFolderError as error:
                self.outcomes.append(JobOutcome(job, job.folder, "failed", error=str(error)))
                continue
            attempts[job.folder] = launch_record.attempt
        if active_jobs := tuple(job for job in pack.jobs if job.folder in attempts):
            self.waiting.append(_Waiting(Pack(active_jobs), attempts, log_file))

    def _requeue(self, jobs: Sequence[Job], attempts: Mapping[Path, int]) -> None:
        """Queue runs again whose process has died, before all waiting ones."""
        self.deaths.update(job.folder for job in jobs)
        waiting, self.waiting = self.waiting, []
        for pack in repack([resumed_job(job, attempts[job.folder]) for job in jobs], self.deaths):
            self._take_on(pack)
        self.waiting += waiting

    def _with_deaths(self, outcome: JobOutcome) -> JobOutcome:
        """Return the outcome with a note on how often the run's process had died before."""
        if not (deaths := self.deaths[outcome.folder]):
            return outcome
        text = f"its process died {'once' if deaths == 1 else f'{deaths} times'} before"
        return replace(outcome, error=f"{outcome.error}; {text}" if outcome.error else text)

    def _start_processes(self) -> None:
        while self.waiting and self._fits(self.waiting[0].pack):
            first = self.waiting.pop(0)
            hardware = first.pack.hardware
            gpus = tuple(self.free_gpus[: hardware.gpus])
            del self.free_gpus[: hardware.gpus]
            n_processes = min(self.machine.places(hardware, first.pack.cores), len(self.packs))
            self.running.append(RunProcess(first.pack, first.attempts, self.task, first.log_file, gpus, n_processes))

    def _fits(self, pack: Pack) -> bool:
        """Return whether one more process fits; with no process running, it always does."""
        if not self.running:
            return True
        if len(self.running) >= self.machine.places(pack.hardware, pack.cores):
            return False
        if self.machine.gpus and len(self.free_gpus) < pack.hardware.gpus:
            return False
        cores = sum(process.pack.cores for process in self.running) + pack.cores
        memory = sum(process.pack.memory_gb for process in self.running) + pack.memory_gb
        return cores <= self.machine.cores and memory <= self.machine.memory_gb

    def _wait(self) -> None:
        """Wait until a process may have ended, or for `_POLL_S`."""
        ready = wait([process.sentinel for process in self.running], _POLL_S)
        for process in self.running:
            process.listen()
        if ready and all(process.running for process in self.running):
            time.sleep(_POLL_S)  # the fork server is gone, so sentinels no longer show which process has ended

    def _signal(self, number: int) -> None:
        for process in self.running:
            process.signal(number)
