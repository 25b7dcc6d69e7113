"""`hardware/backend=local`: parallel processes on this machine, each of which computes one run or several.

The processes are forked from a server that has imported the modules of all runs (Python's `forkserver`). They therefore
start within hundredths of a second and share the memory of these modules (copy-on-write).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError, summarize_error
from llmrl.core.trust import NO_FURTHER_TRUST
from llmrl.run.folder import make_write_error
from llmrl.run.ownership import get_process_start
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.signals import MAX_STOP_S, SIGNALS, StopFlag
from llmrl.sweeps.backends.protocol import Backend, Job, JobBatch, JobOutcome
from llmrl.sweeps.jobs import (
    BatchLaunch,
    describe_outcome,
    has_run_ended,
    mark_canceled,
    outcome_from_exit,
    record_batch_launch,
    redirect_output,
    write_log_header,
)
from llmrl.sweeps.machine import N_PARALLEL_PROCESSES_VARIABLE, THREAD_VARIABLES, Machine, preserve_environment
from llmrl.sweeps.packing import build_process_payload, make_batches_for_machine
from llmrl.sweeps.payload import ProcessPayload, RunExit, RunFunction
from llmrl.sweeps.watch import SweepWatch, name_progress_bar

_POLL_S = 0.5
"""Maximum seconds between two checks of processes, displays and signals."""
PRELOAD_MODULE = "llmrl.sweeps.preload"
"""Module that the server imports."""

_MAX_ERROR_CHARACTERS = 1000
"""Maximum number of characters of the error text that a process reports."""
_SIGNAL_NUMBERS = [getattr(signal, name) for name in SIGNALS]


class RunProcess:
    """The process of a batch. The constructor starts it.

    Args:
        launch: batch of the process, with launch records.
        run_function: function that executes a run; a `BatchableRunFunction` for several.
        gpu_ids: ids of the GPUs that the process may use; empty: no restriction.
        n_processes: number of processes that share the machine's cores, including this one.
    """

    def __init__(
        self, launch: BatchLaunch, run_function: RunFunction, gpu_ids: tuple[str, ...], n_processes: int = 1
    ) -> None:
        self.launch, self.batch, self.gpu_ids = launch, launch.batch, gpu_ids
        batch, log_file = launch.batch, launch.records[0].log
        environment = dict.fromkeys(THREAD_VARIABLES, str(batch.hardware.threads or batch.cores))
        environment[N_PARALLEL_PROCESSES_VARIABLE] = str(n_processes)
        if gpu_ids:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_ids)
        payload = build_process_payload(batch, run_function, environment)
        context = multiprocessing.get_context("forkserver")
        self._pipe, child_pipe = context.Pipe(duplex=False)
        self._report: str | list[RunExit] = ""
        self._process: ForkServerProcess = context.Process(target=_run_process, args=(payload, log_file, child_pipe))
        self._start_time = time.monotonic()
        with _hide_main_module():
            self._process.start()
        child_pipe.close()
        assert self._process.pid is not None
        self._pid, self._process_start = self._process.pid, get_process_start(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Handle for `multiprocessing.connection.wait`, ready when the process or its server has ended."""
        return self._process.sentinel

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._process_start is not None and get_process_start(self._pid) == self._process_start

    def send_signal(self, signal_number: int) -> None:
        """Send the process a signal, if it exists."""
        with suppress(ProcessLookupError):
            if self.is_running:
                os.kill(self._pid, signal_number)

    def receive_report(self) -> None:
        """Receive the report of the process if there is one. A process whose pipe is full could not end."""
        try:
            if not self._pipe.closed and self._pipe.poll():
                self._report = self._pipe.recv()
        except EOFError:
            self._pipe.close()

    def collect_outcomes(self, stop_signal: int | None) -> tuple[list[JobOutcome], list[Job]]:
        """Return the outcomes of the runs after the process has ended.

        Args:
            stop_signal: number of the signal that stopped the sweep; None without one.

        Returns:
            The outcomes, and the jobs to queue again: unfinished runs of a process with several runs that ended without
            a report and without a stop signal.
        """
        self._process.join(timeout=10)
        self.receive_report()
        self._pipe.close()
        code, seconds = self._process.exitcode or 0, time.monotonic() - self._start_time
        is_shared = len(self.batch.jobs) > 1
        exits = {run_exit.folder: run_exit for run_exit in self._report} if isinstance(self._report, list) else {}
        attempts = self.launch.attempts
        outcomes, retry_jobs = [], []
        for job in self.batch.jobs:
            attempt, run_exit = attempts[job.folder], exits.get(job.folder, RunExit(job.folder, code, self._error))
            if is_shared and not exits:
                if has_run_ended(job, attempt):
                    run_exit = RunExit(job.folder, 0)
                elif stop_signal is None:
                    retry_jobs.append(job)
                    continue
            outcomes.append(outcome_from_exit(job, attempt, run_exit.exit_code, run_exit.error, stop_signal, seconds))
        return outcomes, retry_jobs

    @property
    def exit_description(self) -> str:
        """Text with the signal or exit code with which the process ended, and its error."""
        code = self._process.exitcode or 0
        description = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{description} ({self._error})" if self._error else description

    @property
    def _error(self) -> str:
        """Error that the process reported instead of the exits of its runs; empty if there is none."""
        return self._report if isinstance(self._report, str) else ""


def start_fork_server(jobs: Sequence[Job]) -> None:
    """Start the fork server, which imports the modules of `jobs`, unless it is running.

    It starts with `SIGNALS` blocked, because a terminal sends Ctrl-C to it, too. `_run_process` unblocks them.
    """
    targets = {node.get("_target_") for job in jobs for node in job.config.values() if isinstance(node, dict)}
    project_targets = [str(target) for target in targets if str(target).startswith("llmrl.")]
    modules = sorted({target.rpartition(".")[0] for target in project_targets if NO_FURTHER_TRUST.is_trusted(target)})
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD_MODULE, *modules])
    resource_tracker.ensure_running()  # before signals are blocked, because its start unblocks them
    previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNAL_NUMBERS)
    try:
        with _hide_main_module():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Hide the `__main__` module of this program, which new processes would import although runs do not need it."""
    namespace: dict[str, Any] = vars(sys.modules["__main__"])
    attributes: dict[str, Any] = {name: namespace.pop(name) for name in ("__spec__", "__file__") if name in namespace}
    namespace["__spec__"] = None
    try:
        yield
    finally:
        namespace.update(attributes)


def _run_process(payload: ProcessPayload, log_file: str, pipe: Connection) -> None:
    """Execute the runs of a process and send their exits to the launcher, even if a full disk prevents records."""
    os.setpgid(0, 0)  # no Ctrl-C of the terminal reaches this process, because the launcher forwards it
    for signal_number in _SIGNAL_NUMBERS:  # the server ignores and blocks these signals
        signal.signal(signal_number, signal.default_int_handler if signal_number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNAL_NUMBERS)
    redirect_output(log_file)
    try:
        pipe.send([replace(run_exit, error=run_exit.error[:_MAX_ERROR_CHARACTERS]) for run_exit in payload()])
    except BaseException as error:
        pipe.send(summarize_error(error)[:_MAX_ERROR_CHARACTERS])
        if isinstance(error, KeyboardInterrupt):  # raised before a run handles signals; Python would exit with code 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise


@dataclass(frozen=True)
class Local(Backend):
    """A backend that computes runs in parallel processes on this machine.

    If more runs are missing than fit on the machine at once, runs with equal batch keys share processes.
    """

    def prepare(self, jobs: Sequence[Job]) -> None:
        machine = Machine.detect()
        for job in jobs:
            machine.count_parallel_runs(job.hardware, job.cores)

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        machine = Machine.detect()
        n_processes = min(machine.count_parallel_runs(job.hardware, job.cores) for job in jobs)
        return make_batches_for_machine(jobs, n_processes, machine.memory_gb)

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        machine = Machine.detect()
        return min(len(batches), *(machine.count_parallel_runs(batch.hardware, batch.cores) for batch in batches))

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        return BatchProcessPool(self.make_batches(jobs), run_function, sweep_folder).run()


class BatchProcessPool:
    """A pool of processes that compute batches of runs; a failed run does not stop the others.

    The first Ctrl-C or termination signal is forwarded to the runs, which save and stop; no further runs are started. A
    second Ctrl-C stops them at once. If a process with several runs is killed, its unfinished runs are queued again,
    each for a process of its own.

    Args:
        batches: runs to compute, by process.
        run_function: function that each process calls; a `BatchableRunFunction` if batches have several runs.
        sweep_folder: folder for log files with the output of each process.
    """

    def __init__(self, batches: Sequence[JobBatch], run_function: RunFunction, sweep_folder: Path) -> None:
        self.machine = Machine.detect()
        self.batches, self.run_function, self.log_folder = batches, run_function, sweep_folder / "logs"
        self.jobs = [job for batch in batches for job in batch.jobs]
        self.free_gpu_ids = list(self.machine.gpu_ids)
        self.waiting_launches: list[BatchLaunch] = []
        self.running_processes: list[RunProcess] = []
        self.outcomes: list[JobOutcome] = []

    def run(self) -> list[JobOutcome]:
        """Compute all runs; return their outcomes in order of ending, canceled runs last.

        Raises:
            RunFolderError: `sweep_folder` cannot be written.
        """
        n_threads = max((job.hardware.threads or job.cores for job in self.jobs), default=1)
        # The flag is entered before launches are recorded, so that waiting runs are recorded as canceled after a stop.
        with preserve_environment(), StopFlag() as stop_flag:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(n_threads)))  # for libraries that the server loads
            try:
                self.log_folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise make_write_error(self.log_folder, error) from error
            for batch_index, batch in enumerate(self.batches):
                if stop_flag.requested:
                    self.outcomes += [mark_canceled(job) for job in batch.jobs]
                else:
                    self._record_and_queue(batch_index, batch)
            start_fork_server(self.jobs)
            self._run_processes(stop_flag)
        waiting_jobs = [job for launch in self.waiting_launches for job in launch.batch.jobs]
        return self.outcomes + [mark_canceled(job) for job in waiting_jobs]

    def _run_processes(self, stop_flag: StopFlag) -> None:
        """Start processes and collect their outcomes, until all runs have ended or a signal stops the sweep."""
        with ProgressBar(len(self.jobs), "runs", name_progress_bar(self.jobs), done=len(self.outcomes)) as progress:
            is_stopping, watch = False, SweepWatch(progress)
            while self.running_processes or (self.waiting_launches and not stop_flag.requested):
                try:
                    if not stop_flag.requested:
                        self._start_processes()
                    self._wait_for_processes()
                    running_jobs = [job for process in self.running_processes for job in process.batch.jobs]
                    watch.update_if_due([job.folder for job in running_jobs])
                    if stop_flag.signal is not None and not is_stopping:
                        is_stopping = True
                        n_waiting = sum(len(pending.batch.jobs) for pending in self.waiting_launches)
                        progress.print_line(
                            f"{len(running_jobs)} runs save and stop within {MAX_STOP_S} s (at once on a second "
                            f"Ctrl-C); {n_waiting} waiting runs are canceled"
                        )
                        self._send_signal(stop_flag.signal)
                except KeyboardInterrupt:
                    self._send_signal(signal.SIGINT)
                for process in [process for process in self.running_processes if not process.is_running]:
                    self.running_processes.remove(process)
                    self.free_gpu_ids += process.gpu_ids
                    process_outcomes, retry_jobs = process.collect_outcomes(stop_flag.signal)
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
        """Record the launch of the runs of a batch, and queue the runs for which this succeeded."""
        folder = batch.jobs[0].folder
        name = f"{len(batch.jobs)}-rows" if len(batch.jobs) > 1 else f"{folder.parent.name}-{folder.name}"
        log_file = self.log_folder / f"{batch_index:04d}-{name}.log"
        write_log_header(log_file, batch)
        launches, failures = record_batch_launch(batch, self.log_folder.parent, log_file=str(log_file))
        self.waiting_launches += launches
        self.outcomes += failures

    def _requeue(self, launch: BatchLaunch, jobs: Sequence[Job]) -> None:
        """Queue the runs of a killed process first, each for a process of its own, because one may be the cause."""
        requeued: list[BatchLaunch] = []
        for job in jobs:
            try:
                requeued.append(launch.split_off(job))
            except RunFolderError as error:
                self.outcomes.append(JobOutcome(job, job.folder, "failed", error=str(error)))
        self.waiting_launches = requeued + self.waiting_launches

    def _start_processes(self) -> None:
        while self.waiting_launches and self._has_room_for(self.waiting_launches[0].batch):
            launch = self.waiting_launches.pop(0)
            hardware = launch.batch.hardware
            gpu_ids = tuple(self.free_gpu_ids[: hardware.gpus])
            del self.free_gpu_ids[: hardware.gpus]
            n_processes = min(self.machine.count_parallel_runs(hardware, launch.batch.cores), len(self.batches))
            self.running_processes.append(RunProcess(launch, self.run_function, gpu_ids, n_processes))

    def _has_room_for(self, batch: JobBatch) -> bool:
        """Return whether cores, memory and GPUs suffice for one more process; the first process always fits."""
        if not self.running_processes:
            return True
        if len(self.running_processes) >= self.machine.count_parallel_runs(batch.hardware, batch.cores):
            return False
        if self.machine.gpu_ids and len(self.free_gpu_ids) < batch.hardware.gpus:
            return False
        cores = sum(process.batch.cores for process in self.running_processes) + batch.cores
        memory = sum(process.batch.memory_gb for process in self.running_processes) + batch.memory_gb
        return cores <= self.machine.cores and memory <= self.machine.memory_gb

    def _wait_for_processes(self) -> None:
        """Wait until a process may have ended, or for `_POLL_S`."""
        ready = wait([process.sentinel for process in self.running_processes], _POLL_S)
        for process in self.running_processes:
            process.receive_report()
        if ready and all(process.is_running for process in self.running_processes):
            time.sleep(_POLL_S)  # the fork server has ended, so all sentinels are ready

    def _send_signal(self, signal_number: int) -> None:
        for process in self.running_processes:
            process.send_signal(signal_number)
