"""Stages of a run: the runs that it needs, one after the other, and then the run itself."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.errors import RunFolderError
from llmrl.core.threads import daemon_thread
from llmrl.run.progress_bar import clock
from llmrl.run.progress_rows import row_here
from llmrl.run.status import RunStage, progress_of

if TYPE_CHECKING:
    from llmrl.run.run import Run

log = logging.getLogger(__name__)

REPORT_S = 2.0
"""Seconds between two updates of a stage in `status.json`."""


@contextmanager
def stage_of_run(run: Run, stage: RunStage, folder: Path, env_steps: int) -> Iterator[None]:
    """Return a context in which a run that another run needs is computed, by this process or another one.

    The stage's first and last moments are logged. Meanwhile the progress in `folder` is copied to the `status.json` of
    `run`, and the stage's name is shown in the display of several runs.

    Args:
        run: run that waits.
        stage: stage at its beginning.
        folder: run folder of the needed run, which need not exist yet.
        env_steps: environment steps of the needed run.
    """
    log.info("%s: started, %s environment steps", stage, f"{env_steps:,}")
    began, row = time.monotonic(), row_here()
    outer = "" if row is None else row.stage
    if row is not None:
        row.stage = stage.name
    ended = threading.Event()
    reporter = daemon_thread("llmrl-stage", _report, run, stage, folder, ended)
    reporter.start()
    try:
        yield
    finally:
        ended.set()
        reporter.join()
        run.status.stage = None
        if row is not None:
            row.stage = outer
    log.info("%s: finished after %s", stage, clock(time.monotonic() - began))


def _report(run: Run, stage: RunStage, folder: Path, ended: threading.Event) -> None:
    """Copy the progress in `folder` to the status of `run` until `ended` is set."""
    written: RunStage | None = None
    while True:
        fraction, eta_s, inner = progress_of(folder)
        name = stage.name if inner is None else f"{stage.name}: {inner}"
        current = replace(stage, name=name, fraction=fraction, eta_s=eta_s)
        if current != written:
            run.status.stage = written = current
            try:
                if run.processes.is_main:
                    run.status.write(run.folder)
            except RunFolderError as error:
                log.debug("the stage of %s was not written: %s", run.folder, error)
        if ended.wait(REPORT_S):
            return
