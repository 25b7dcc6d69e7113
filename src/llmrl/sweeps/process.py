"""The process of one run on this machine.

Forked from a server that has imported what every run needs (Python's `forkserver`), it starts in hundredths of a second
and still shares nothing with the others but memory that nobody writes to.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from llmrl.core.errors import short_error
from llmrl.core.trust import NOBODY
from llmrl.run.owner import process_start
from llmrl.run.signals import SIGNALS
from llmrl.sweeps.backends.protocol import Job, Outcome
from llmrl.sweeps.jobs import left_behind
from llmrl.sweeps.machine import RUNS_BESIDE, THREAD_VARIABLES
from llmrl.sweeps.work import Task, Work

PRELOAD = "llmrl.sweeps.preload"
"""The module with what the server imports once for all runs."""

_LONGEST_WORDS = 1000  # characters; more than a pipe holds would keep the process from ending


class RunProcess:
    """One run's process, started by construction.

    Args:
        job: the run; it has been taken on.
        attempt: attempts it had had by then.
        task: what the process calls.
        log_file: gets what it prints.
        gpus: ids of the GPUs it may see; empty: those of this process.
        beside: runs that share the machine's cores, itself included.
    """

    def __init__(
        self, job: Job, attempt: int, task: Task, log_file: Path, gpus: tuple[str, ...], beside: int = 1
    ) -> None:
        self.job, self.gpus, self._attempt = job, gpus, attempt
        environment = dict.fromkeys(THREAD_VARIABLES, str(job.hardware.threads or job.cores))
        environment[RUNS_BESIDE] = str(beside)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        work = Work(task, job.config, job.overrides, job.folder, {**environment, **job.environment})
        context = multiprocessing.get_context("forkserver")
        self._last_words, childs_end = context.Pipe(duplex=False)
        self._process: ForkServerProcess = context.Process(target=_live, args=(work, str(log_file), childs_end))
        self._started = time.monotonic()
        with _unseen_main():
            self._process.start()
        childs_end.close()
        assert self._process.pid is not None
        self._pid, self._start = self._process.pid, process_start(self._process.pid)

    @property
    def sentinel(self) -> int:
        """Ready when the process has ended; also when the server that would know is gone: ask `running` then."""
        return self._process.sentinel

    @property
    def running(self) -> bool:
        """Whether that very process is there still."""
        return self._start is not None and process_start(self._pid) == self._start

    def signal(self, number: int) -> None:
        """Send it a signal, if it is there still."""
        if self.running:
            try:
                os.kill(self._pid, number)
            except ProcessLookupError:
                return

    def outcome(self, stopped_by: int | None) -> Outcome:
        """What the ended process left behind; `stopped_by` is the signal by which the sweep was told to stop."""
        self._process.join(timeout=10)
        code = self._process.exitcode or 0
        seconds = time.monotonic() - self._started
        return left_behind(self.job, self._attempt, code, self._said(), stopped_by, seconds)

    def _said(self) -> str:
        try:
            return str(self._last_words.recv()) if self._last_words.poll() else ""
        except EOFError:
            return ""
        finally:
            self._last_words.close()


def preload(jobs: Sequence[Job]) -> None:
    """Have the server import what these runs need; does nothing once it runs."""
    targets = {node.get("_target_") for job in jobs for node in job.config.values() if isinstance(node, dict)}
    ours = [str(target) for target in targets if str(target).startswith("llmrl.")]
    own = sorted({target.rpartition(".")[0] for target in ours if NOBODY.covers(target)})
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD, *own])


@contextmanager
def thread_limits(threads: int) -> Iterator[None]:
    """The server loads numerical libraries, which read their thread counts then, once for all runs."""
    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
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


def _live(work: Work, log_file: str, last_words: Connection) -> None:
    """The life of a run's process. Why it ended goes to the launcher too: a full disk takes no records."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C is the launcher's to hand on
    for name in SIGNALS:  # the server ignores them
        signal.signal(getattr(signal, name), signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL)
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    try:
        work()
    except BaseException as error:
        cause = error.__cause__ if isinstance(error, SystemExit) and error.__cause__ else error
        last_words.send(short_error(cause)[:_LONGEST_WORDS])
        if isinstance(error, KeyboardInterrupt):  # before the run could say so itself; Python would leave with 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise
