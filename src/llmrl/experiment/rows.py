"""Several runs computed together in one process: each in a thread of its own, whose games and updates the main thread
computes for all of them."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Sequence
from functools import partial

from llmrl.experiment.job import compute
from llmrl.loops.requests import Seat
from llmrl.loops.rows import Rows
from llmrl.sweeps.work import RowEnd, Work


def compute_rows(works: Sequence[Work]) -> list[RowEnd]:
    """Compute runs together in this process; returns how each ended, in their order. One that fails ends alone.

    Called in the main thread of a process that is prepared (`Work.prepare`).

    Args:
        works: the runs, alike in all that a process shares.
    """
    rows, ends = Rows(), [RowEnd(work.folder, 1, "not begun") for work in works]

    def live(number: int, work: Work, seat: Seat) -> None:
        try:
            ends[number] = work.end(partial(compute, seat=seat))
        finally:
            seat.leave()

    threads = []
    for number, work in enumerate(works):
        context, seat = contextvars.copy_context(), rows.seat()
        threads.append(threading.Thread(target=context.run, args=(live, number, work, seat), name=work.folder.name))
    for thread in threads:
        thread.start()
    rows.run()
    for thread in threads:
        thread.join()
    return ends
