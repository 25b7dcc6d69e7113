"""Several runs computed together in one process: each in a thread of its own, from its folder to its last word, while
the main thread plays and updates for all of them (`llmrl.loops.batched_executor`)."""

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
from llmrl.run.progress_rows import RowsDisplay
from llmrl.run.signals import PROMISED_S, GivenUp, StopFlag
from llmrl.sweeps.work import JobWork, RowEnd

_ALIKE = ("hardware", "loggers", "output_root", "private", "trusted_modules")
"""Keys of a config that say something of its whole process: threads and precision of torch, variables that libraries
of loggers read, modes of files, and which code may be imported."""


def compute_rows(works: Sequence[JobWork]) -> list[RowEnd]:
    """Compute runs together in this process; returns how each ended, in their order.

    What ends one of them (an error, a spent budget, weights that are no numbers) ends it alone. A signal is meant for
    all: each saves and stops as it would by itself. To be called in the main thread of a process that is prepared
    (`JobWork.prepare`).

    Args:
        works: the runs, which are `alike`. None is fine-tuning or computed by several processes, and none draws from
            random streams that a process has once.
    """
    if len(works) == 1:
        return [works[0].end(compute)]
    with suppress(ConfigError):  # every run says so itself
        _ = RunResources(works[0].config).device  # torch counts its threads in each thread, and this one has the work

    def given_up() -> GivenUp:
        assert stop.signal is not None
        return GivenUp(stop.signal)

    stop = StopFlag(f"saving and stopping all runs, within {PROMISED_S} s; a second Ctrl-C stops at once", given_up)
    rows, ends = (
        BatchedExecutor(),
        [RowEnd(work.folder, EXIT_FAILED, "its thread has ended without a word") for work in works],
    )

    def live(number: int, work: JobWork, seat: ExecutorSeat) -> None:
        try:
            name = f"{work.folder.parent.name}/{work.folder.name}"
            stop.lead()
            display.show_here(name)
            ends[number] = work.end(partial(compute, seat=seat, whose=name))
        finally:
            seat.leave()

    with stop, RowsDisplay(len(works)) as display:
        threads = []
        for number, work in enumerate(works):
            context, row = contextvars.copy_context(), partial(live, number, work, rows.seat(work.key))
            threads.append(threading.Thread(target=context.run, args=(row,), name=work.folder.name))
        _until_the_end(rows, threads)
    return ends


def _until_the_end(rows: BatchedExecutor, threads: Sequence[threading.Thread]) -> None:
    """Start the threads, answer them, and wait until all have ended, whatever comes in between."""
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
        except BaseException as raised:  # noqa: BLE001 (every run is told of it, and ends by it)
            error = raised


def alike(config: Mapping[str, Any]) -> str:
    """Return what has to be equal in the resolved configs of runs that share a process, as text; so have the variables
    that are set for them (`JobWork.environment`)."""
    return json.dumps([application_of(config).command, *(config.get(key) for key in _ALIKE)], sort_keys=True)
