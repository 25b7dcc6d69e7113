"""Several runs that one process computes together.

Each run has a thread of its own, while the main thread plays and updates for all of them
(`llmrl.loops.batched_executor`).
"""

from __future__ import annotations

import contextvars
import json
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.experiment.experiment import application_of
from llmrl.experiment.resources import RunResources
from llmrl.experiment.run_job import compute
from llmrl.loops.batched_executor import BatchedExecutor
from llmrl.loops.compute_requests import ExecutorSeat
from llmrl.run.command_exit import EXIT_FAILED
from llmrl.run.progress_bar import RowsDisplay
from llmrl.run.signals import PROMISED_S, GivenUp, StopFlag
from llmrl.sweeps.work import JobWork, RunExit

_PROCESS_KEYS = ("hardware", "loggers", "output_root", "private", "trusted_modules")
"""Keys of a config that affect its whole process: threads and precision of torch, environment variables that libraries
of loggers read, modes of files, and permission to import code."""


def compute_rows(works: Sequence[JobWork]) -> list[RunExit]:
    """Compute runs together in this process; return how each ended, in order.

    An error of one run (an exception, a used-up budget, weights that are not finite) ends that run only. A signal
    applies to all runs: each saves and stops as it would by itself. Call this in the main thread of a process that is
    prepared (`JobWork.prepare`).

    Args:
        works: runs with equal `process_key`s. None is a fine-tuning run or draws from random streams that exist once
            per process.
    """
    if len(works) == 1:
        return [works[0].run_and_capture_exit(compute)]
    with suppress(ConfigError):  # every run reports it itself
        _ = RunResources(works[0].config).device  # sets torch's threads, which are settings of this thread

    def build_error() -> GivenUp:
        assert stop.signal is not None
        return GivenUp(stop.signal)

    stop = StopFlag(f"saving and stopping all runs, within {PROMISED_S} s; a second Ctrl-C stops at once", build_error)
    rows = BatchedExecutor()
    ends = [RunExit(work.folder, EXIT_FAILED, "its thread has ended without a result") for work in works]

    def compute_row(number: int, work: JobWork, seat: ExecutorSeat) -> None:
        try:
            name = f"{work.folder.parent.name}/{work.folder.name}"
            stop.lead()
            display.show_here(name)
            ends[number] = work.run_and_capture_exit(partial(compute, seat=seat, whose=name))
        finally:
            seat.leave()

    with stop, RowsDisplay(len(works)) as display:
        threads = []
        for number, work in enumerate(works):
            context, row = contextvars.copy_context(), partial(compute_row, number, work, rows.seat(work.batch_key))
            threads.append(threading.Thread(target=context.run, args=(row,), name=work.folder.name))
        _run_threads(rows, threads)
    return ends


def _run_threads(rows: BatchedExecutor, threads: Sequence[threading.Thread]) -> None:
    """Start the threads, answer their requests, and wait until all have ended, whatever exceptions occur."""
    error: BaseException | None = None
    while True:
        try:
            if error is not None:
                rows.abandon(error)
            for thread in threads:
                if thread.ident is None:
                    thread.start()
            if error is None:
                rows.run()
            for thread in threads:
                thread.join()
            return
        except BaseException as raised:  # noqa: BLE001 (it is raised in every run)
            error = raised


def process_key(config: Mapping[str, Any]) -> str:
    """Return a text that must be equal for runs that share a process, from their resolved configs.

    The environment variables that are set for them must be equal, too (`JobWork.environment`).
    """
    return json.dumps([application_of(config).command, *(config.get(key) for key in _PROCESS_KEYS)], sort_keys=True)
