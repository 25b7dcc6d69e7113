"""`hardware/backend=here`: the launching process itself, one run after the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.errors import ConfigError, RunFolderError, short_error
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Hardware, Job, Outcome
    from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Here(Backend):
    """Compute the runs in this process, one after the other: for debuggers, and for runs of fractions of a second.

    Runs share what a process shares: loaded libraries, their threads, and a crash of the interpreter.
    """

    def check(self, hardware: Hardware) -> None:
        if hardware.parallel not in (None, 1):
            raise ConfigError(
                f"hardware.parallel={hardware.parallel}: one process computes one run at a time; "
                "hardware/backend=local computes several"
            )

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
        from llmrl.sweeps.backends.protocol import Outcome
        from llmrl.sweeps.jobs import cancelled, describe, take_on

        outcomes: list[Outcome] = []
        with StopFlag("no further run is started") as stop:
            waiting = []
            for job in jobs:
                try:
                    waiting.append((job, take_on(job, sweep_folder).attempt))
                except RunFolderError as error:
                    outcomes.append(Outcome(job, job.folder, "failed", error=str(error)))
            for job, attempt in waiting:
                outcomes.append(cancelled(job) if stop.requested else _compute(job, attempt, task, stop))
                log.info("%s", describe(outcomes[-1]))  # no bar: the run has one
        return outcomes


def _compute(job: Job, attempt: int, task: Task, stop: StopFlag) -> Outcome:
    """One run, with every way it can end."""
    from llmrl.sweeps.jobs import left_behind
    from llmrl.sweeps.work import Work

    began, code, said = time.monotonic(), 0, ""
    with _restored(os.environ):
        try:
            Work(task, job.config, job.overrides, job.folder, job.environment)()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            said = short_error(end.__cause__ or end)
        except KeyboardInterrupt as end:  # before the run could say so itself, or the second one
            code, said = 130, short_error(end)
        except Exception as error:  # noqa: BLE001 (the run has recorded it; the others go on)
            code, said = 1, short_error(error)
    return left_behind(job, attempt, code, said, stop.signal, time.monotonic() - began)


@contextmanager
def _restored(environment: os._Environ[str]) -> Iterator[None]:
    """Variables set for one run are not those of the next."""
    before = dict(environment)
    try:
        yield
    finally:
        for name in environment.keys() - before.keys():
            del environment[name]
        environment.update(before)
