"""Runs of a sweep side by side on this machine, a fresh process each.

Processes are forked from a server that has imported what every run needs (Python's `forkserver`), so a run starts in
hundredths of a second and still shares nothing with the others but memory that nobody writes to.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from llmrl.analysis.runs import read_run
from llmrl.core.errors import RunFolderError
from llmrl.run.progress import Progress
from llmrl.run.signals import StopFlag
from llmrl.sweeps.hardware import THREAD_VARIABLES, Machine
from llmrl.sweeps.jobs import Job, Outcome, describe, take_on, write_log_header
from llmrl.sweeps.work import EXIT_IN_USE, Task, Work

log = logging.getLogger(__name__)

PRELOAD = ["llmrl.sweeps.preload"]
"""What the server imports once for all runs."""

_POLL_S = 0.5


class _Running:
    """One run's process."""

    def __init__(self, job: Job, folder: Path, task: Task, log_file: Path, gpus: tuple[str, ...]) -> None:
        self.job, self.folder, self.log_file, self.gpus = job, folder, log_file, gpus
        threads = job.hardware.threads or job.cores
        environment = {name: str(threads) for name in THREAD_VARIABLES}
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        work = Work(task, job.config, job.overrides, folder)
        context = multiprocessing.get_context("forkserver")
        self._last_words, childs_end = context.Pipe(duplex=False)
        arguments = (work, str(log_file), environment, childs_end)
        self.process: ForkServerProcess = context.Process(target=_in_child, args=arguments)
        self.started = time.monotonic()
        with _unseen_main():
            self.process.start()
        childs_end.close()

    def outcome(self) -> Outcome:
        """What its ended process left behind."""
        self.process.join()
        code = self.process.exitcode or 0
        record = read_run(self.folder)
        outcome = Outcome.of(self.job, record, seconds=time.monotonic() - self.started)
        try:
            said = self._last_words.recv()
        except EOFError:
            said = ""
        self._last_words.close()
        if code == EXIT_IN_USE:
            return replace(outcome, state="elsewhere", skipped=True, error=said)
        if code < 0:
            return replace(outcome, state="lost", error=f"its process was killed by {signal.Signals(-code).name}")
        if code > 0 and record.state in ("queued", "running", "lost"):  # it could not even write that it has failed
            return replace(outcome, state="failed", error=said or f"its process ended with exit code {code}")
        return outcome

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there still."""
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, number)


def run_pool(jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
    """Run all jobs, as many at once as fit; those that fail do not stop the others.

    The first Ctrl-C or termination signal is handed on to the runs, which save and stop, and starts no others; a
    second Ctrl-C stops them at once.

    Args:
        jobs: runs to compute.
        task: what each process calls.
        sweep_folder: gets a log file of what each run prints.
    """
    machine = Machine.this()
    waiting = list(jobs)
    outcomes: list[Outcome] = []
    folders: dict[int, tuple[Path, Path]] = {}
    (sweep_folder / "logs").mkdir(parents=True, exist_ok=True)
    for job in list(waiting):
        log_file = sweep_folder / "logs" / f"{job.folder.parent.name}-{job.folder.name}.log"
        try:
            write_log_header(log_file, job)
            take_on(job, "local", str(log_file))
        except RunFolderError as error:
            waiting.remove(job)
            outcomes.append(Outcome(job, job.folder, "failed", error=str(error)))
            continue
        folders[id(job)] = (job.folder, log_file)
    running: list[_Running] = []
    free = list(machine.gpus)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    with (
        _thread_limits(waiting),
        Progress(len(jobs), "runs", "sweep", done=len(outcomes)) as progress,
        StopFlag() as stop,
    ):
        handed_on = 0
        while waiting or running:
            while waiting and not stop.requested and _fits(waiting[0], running, machine, free):
                job = waiting.pop(0)
                gpus = tuple(free[: job.hardware.gpus])
                del free[: job.hardware.gpus]
                running.append(_Running(job, *folders[id(job)][:1], task, folders[id(job)][1], gpus))
            if stop.requested and not running:
                break
            try:
                ended = wait([one.process.sentinel for one in running], _POLL_S)
                if stop.signal is not None and not handed_on:
                    handed_on += 1
                    progress.say(f"telling {len(running)} runs to save and stop; {len(waiting)} are not started")
                    for one in running:
                        one.signal(stop.signal)
            except KeyboardInterrupt:
                for one in running:
                    one.signal(signal.SIGINT)
                continue
            for one in [one for one in running if one.process.sentinel in ended]:
                running.remove(one)
                free += one.gpus
                outcome = one.outcome()
                outcomes.append(outcome)
                progress.say(describe(outcome))
                progress.update(len(outcomes))
    outcomes += [Outcome(job, job.folder, "not started", error="the sweep was stopped") for job in waiting]
    return outcomes


def _fits(job: Job, running: Sequence[_Running], machine: Machine, free: Sequence[str]) -> bool:
    """Whether one more run has room; with nothing running it always has."""
    if not running:
        return True
    if len(running) >= machine.places(job.hardware, job.cores):
        return False
    if job.hardware.gpus and machine.gpus and len(free) < job.hardware.gpus:
        return False
    cores = sum(one.job.cores for one in running) + job.cores
    memory = sum(one.job.hardware.memory_gb for one in running) + job.hardware.memory_gb
    return cores <= machine.cores and memory <= machine.memory_gb


@contextmanager
def _thread_limits(jobs: Sequence[Job]) -> Iterator[None]:
    """The server loads numerical libraries, which read their thread counts then, once for all runs."""
    threads = str(max((job.hardware.threads or job.cores for job in jobs), default=1))
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, threads))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _unseen_main() -> Iterator[None]:
    """Without what would make a new process import the launching program's main module: a run does not need it."""
    namespace: dict[str, Any] = vars(sys.modules["__main__"])
    hidden: dict[str, Any] = {name: namespace.pop(name) for name in ("__spec__", "__file__") if name in namespace}
    namespace["__spec__"] = None
    try:
        yield
    finally:
        namespace.update(hidden)


def _in_child(work: Work, log_file: str, environment: dict[str, str], last_words: Connection) -> None:
    """The life of a run's process. Why it ended goes to the launcher too: a full disk takes no records."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C is the launcher's to hand on
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.update(environment)
    try:
        work()
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, SystemExit) and error.__cause__ else error
        last_words.send(f"{type(cause).__name__}: {cause}")
        raise
