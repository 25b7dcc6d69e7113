"""A process of a sweep on this machine, which computes one run, or several.

Forked from a server that has imported what every run needs (Python's `forkserver`), it starts in hundredths of a second
and still shares nothing with the others but memory that nobody writes to.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from llmrl.core.errors import short_error
from llmrl.core.trust import NOBODY
from llmrl.run.ownership import process_start
from llmrl.run.signals import SIGNALS
from llmrl.sweeps.backends.protocol import Job, JobOutcome, Pack
from llmrl.sweeps.jobs import has_ended, left_behind
from llmrl.sweeps.machine import RUNS_BESIDE, THREAD_VARIABLES
from llmrl.sweeps.packing import works_of
from llmrl.sweeps.work import PackWork, RowEnd, Task

PRELOAD = "llmrl.sweeps.preload"
"""The module with what the server imports once for all runs."""

_LONGEST_WORDS = 1000  # characters of a run
_NUMBERS = [getattr(signal, name) for name in SIGNALS]


class RunProcess:
    """The process of one run, or of several that are its rows, started by construction.

    Args:
        pack: the runs; they have been taken on.
        attempts: that each had had by then, by run folder.
        task: what the process calls.
        log_file: gets what it prints.
        gpus: ids of the GPUs it may see; empty: those of this process.
        beside: processes that share the machine's cores, itself included.
    """

    def __init__(
        self,
        pack: Pack,
        attempts: Mapping[Path, int],
        task: Task,
        log_file: Path,
        gpus: tuple[str, ...],
        beside: int = 1,
    ) -> None:
        self.pack, self.gpus, self.attempts = pack, gpus, attempts
        environment = dict.fromkeys(THREAD_VARIABLES, str(pack.hardware.threads or pack.cores))
        environment[RUNS_BESIDE] = str(beside)
        if gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        works = works_of(pack, task, environment)
        context = multiprocessing.get_context("forkserver")
        self._last_words, childs_end = context.Pipe(duplex=False)
        self._told: str | list[RowEnd] = ""
        self._process: ForkServerProcess = context.Process(target=_live, args=(works, str(log_file), childs_end))
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

    def listen(self) -> None:
        """Take what it has to say, if that is there: more than a pipe holds would keep it from ending."""
        try:
            if not self._last_words.closed and self._last_words.poll():
                self._told = self._last_words.recv()
        except EOFError:
            self._last_words.close()

    def outcomes(self, stopped_by: int | None) -> tuple[list[JobOutcome], list[Job]]:
        """What the ended process left behind.

        Args:
            stopped_by: the signal by which the sweep was told to stop, if it was.

        Returns:
            What became of its runs, but for those that it took with it when it died, of which some had company and
            nobody was to stop; and these.
        """
        self._process.join(timeout=10)
        self.listen()
        self._last_words.close()
        code, seconds = self._process.exitcode or 0, time.monotonic() - self._started
        several = len(self.pack.jobs) > 1
        ends = {end.folder: end for end in self._told} if isinstance(self._told, list) else {}
        words = self._told if isinstance(self._told, str) else ""
        ended, unfinished = [], []
        for job in self.pack.jobs:
            attempt, end = self.attempts[job.folder], ends.get(job.folder, RowEnd(job.folder, code, words))
            if several and not ends:
                if has_ended(job, attempt):
                    end = RowEnd(job.folder, 0)
                elif stopped_by is None:
                    unfinished.append(job)
                    continue
            ended.append(left_behind(job, attempt, end.code, end.said, stopped_by, seconds))
        return ended, unfinished

    @property
    def died(self) -> str:
        """How the process died, in words."""
        code, words = self._process.exitcode or 0, self._told if isinstance(self._told, str) else ""
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{how} ({words})" if words else how


def preload(jobs: Sequence[Job]) -> None:
    """Start the server, which imports what these runs need; does nothing once it runs.

    It starts with `SIGNALS` blocked, because a terminal sends Ctrl-C to it, too, and `_live` unblocks them.
    """
    targets = {node.get("_target_") for job in jobs for node in job.config.values() if isinstance(node, dict)}
    ours = [str(target) for target in targets if str(target).startswith("llmrl.")]
    own = sorted({target.rpartition(".")[0] for target in ours if NOBODY.covers(target)})
    multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOAD, *own])
    resource_tracker.ensure_running()  # here, because it unblocks signals
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _NUMBERS)
    try:
        with _unseen_main():
            forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


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


def _live(works: PackWork, log_file: str, last_words: Connection) -> None:
    """The life of a process. How its runs ended goes to the launcher too: a full disk takes no records."""
    os.setpgid(0, 0)  # a terminal's Ctrl-C is the launcher's to hand on
    for number in _NUMBERS:  # the server ignores and blocks them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _NUMBERS)
    output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    try:
        ends = works()
        last_words.send([replace(end, said=end.said[:_LONGEST_WORDS]) for end in ends])
    except BaseException as error:
        last_words.send(short_error(error)[:_LONGEST_WORDS])
        if isinstance(error, KeyboardInterrupt):  # before a run could say so itself; Python would leave with 1
            raise SystemExit(128 + signal.SIGINT) from None
        raise
