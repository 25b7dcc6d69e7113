"""Processes of a sweep on this machine, each of which computes one run or several.

They are forked from a server that has imported the modules that every run needs (Python's `forkserver`), so they start
within hundredths of a second, and share only memory that none of them writes.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from llmrl.core.errors import short_error
from llmrl.core.trust import NOBODY
from llmrl.run.ownership import process_start
from llmrl.run.signals import SIGNALS
from llmrl.sweeps.backends.protocol import Job, JobOutcome
from llmrl.sweeps.jobs import BatchLaunch, has_ended, outcome_from_exit
from llmrl.sweeps.machine import N_PARALLEL_RUNS_VARIABLE, THREAD_VARIABLES
from llmrl.sweeps.packing import build_payload
from llmrl.sweeps.payload import ProcessPayload, RunExit, RunFunction

PRELOAD = "llmrl.sweeps.preload"
"""Module that the server imports once for all runs."""

_MAX_ERROR_CHARACTERS = 1000
"""Maximum number of characters of the error text of a run."""
_SIGNAL_NUMBERS = [getattr(signal, name) for name in SIGNALS]


class RunProcess:
    """The process of a batch; it starts when it is constructed.

    Args:
        launch: batch of the process, with launch records.
        run_function: function that the process calls.
        gpus: ids of the GPUs that the process may use; empty: those of this process.
        n_processes: number of processes that share the machine's cores, including this one.
    """

    def __init__(
        self, launch: BatchLaunch, run_function: RunFunction, gpus: tuple[str, ...], n_processes: int = 1
    ) -> None:
        self.launch, self.batch, self.gpus = launch, launch.batch, gpus
        batch, log_file = launch.batch, launch.records[0].log
        environment = dict.fromkeys(THREAD_VARIABLES, str(batch.hardware.threads or batch.cores))
        environment[N_PARALLEL_RUNS_VARIABLE] = str(n_processes)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        payload = build_payload(batch, run_function, environment)
        context = multiprocessing.get_context("forkserver")
        self._pipe, child_pipe = context.Pipe(duplex=False)
        self._report: str | list[RunExit] = ""
        self._process: ForkServerProcess = context.Process(target=_run_process, args=(payload, log_file, child_pipe))
        self._started = time.monotonic()
        with _hide_main_module():
            self._process.start()
        child_pipe.close()
        assert self._process.pid is not None
        self._pid, self._start = self._process.pid, process_start(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Handle that is ready when the process has ended, or when its server has ended (then check `is_running`)."""
        return self._process.sentinel

    @property
    def is_running(self) -> bool:
        """True while the process exists."""
        return self._start is not None and process_start(self._pid) == self._start

    def signal(self, number: int) -> None:
        """Send the process a signal, if it exists."""
        with suppress(ProcessLookupError):
            if self.is_running:
                os.kill(self._pid, number)

    def receive_report(self) -> None:
        """Receive the report of the process if it was sent, because the process cannot end while its pipe is full."""
        try:
            if not self._pipe.closed and self._pipe.poll():
                self._report = self._pipe.recv()
        except EOFError:
            self._pipe.close()

    def outcomes(self, stop_signal: int | None) -> tuple[list[JobOutcome], list[Job]]:
        """Return the outcomes of the runs of the ended process.

        Args:
            stop_signal: number of the signal that stopped the sweep; None without one.

        Returns:
            The outcomes, and the jobs to queue again: unfinished runs of a shared process that died without a stop
            signal.
        """
        self._process.join(timeout=10)
        self.receive_report()
        self._pipe.close()
        code, seconds = self._process.exitcode or 0, time.monotonic() - self._started
        is_shared = len(self.batch.jobs) > 1
        exits = {run_exit.folder: run_exit for run_exit in self._report} if isinstance(self._report, list) else {}
        attempts = self.launch.attempts
        outcomes, retry_jobs = [], []
        for job in self.batch.jobs:
            attempt, run_exit = attempts[job.folder], exits.get(job.folder, RunExit(job.folder, code, self._error))
            if is_shared and not exits:
                if has_ended(job, attempt):
                    run_exit = RunExit(job.folder, 0)
                elif stop_signal is None:
                    retry_jobs.append(job)
                    continue
            outcomes.append(outcome_from_exit(job, attempt, run_exit.exit_code, run_exit.error, stop_signal, seconds))
        return outcomes, retry_jobs

    @property
    def exit_description(self) -> str:
        """Description of the exit of the process: a signal or its exit code, and its error."""
        code = self._process.exitcode or 0
        description = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{description} ({self._error})" if self._error else description

    @property
    def _error(self) -> str:
        """Error of the process; empty if its runs reported their exits, or nothing was received."""
        return self._report if isinstance(self._report, str) else ""


def preload(jobs: Sequence[Job]) -> None:
    """Start the fork server, which imports the modules that these runs need; do nothing if it is running.

    It starts with `SIGNALS` blocked, because a terminal also sends Ctrl-C to it; `_run_process` unblocks them.
    """
    targets = {node.get("_target_") for job in jobs for node in job.config.values() if isinstance(node, dict)}
    project_targets = [str(target) for target in targets if str(target).startswith("llmrl.")]
    modules = sorted({target.rpartition(".")[0] for target in project_targets if NOBODY.covers(target)})
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD, *modules])
    resource_tracker.ensure_running()  # here, because it unblocks signals
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNAL_NUMBERS)
    try:
        with _hide_main_module():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


@contextmanager
def _hide_main_module() -> Iterator[None]:
    """Hide the launching program's main module, which new processes would import although runs do not need it."""
    namespace: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: namespace.pop(name) for name in ("__spec__", "__file__") if name in namespace}
    namespace["__spec__"] = None
    try:
        yield
    finally:
        namespace.update(hidden)


def redirect_output(log_file: str) -> None:
    """Append standard output and standard error of this process to a file from now on."""
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def _run_process(payload: ProcessPayload, log_file: str, pipe: Connection) -> None:
    """Execute the runs of a process; send their exits to the launcher, because a full disk prevents records."""
    os.setpgid(0, 0)  # the launcher passes the terminal's Ctrl-C on
    for number in _SIGNAL_NUMBERS:  # the server ignores and blocks them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNAL_NUMBERS)
    redirect_output(log_file)
    try:
        exits = payload()
        pipe.send([replace(run_exit, error=run_exit.error[:_MAX_ERROR_CHARACTERS]) for run_exit in exits])
    except BaseException as error:
        pipe.send(short_error(error)[:_MAX_ERROR_CHARACTERS])
        if isinstance(error, KeyboardInterrupt):  # before a run handles signals; Python's exit code would be 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise
