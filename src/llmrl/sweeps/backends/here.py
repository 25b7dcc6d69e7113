"""`hardware/backend=here`: computation in the launching process itself."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Hardware, Job, JobOutcome, Pack
    from llmrl.sweeps.work import Task

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Here(Backend):
    """A backend that computes the runs in this process, those with equal keys together and others one after the other.

    It is for debuggers, and for runs of fractions of a second.

    Runs share what a process shares: loaded libraries, their threads, and a crash of the interpreter.
    """

    def check(self, hardware: Hardware) -> None:
        if hardware.parallel not in (None, 1):
            raise ConfigError(
                f"hardware.parallel={hardware.parallel}: this backend computes in a single process; leave it null, or "
                "use hardware/backend=local"
            )

    def packs(self, jobs: Sequence[Job]) -> list[Pack]:
        from llmrl.sweeps.machine import Machine
        from llmrl.sweeps.packing import pack_for_machine

        return pack_for_machine(jobs, 1, Machine.this().memory_gb)

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        return 1

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[JobOutcome]:
        from llmrl.sweeps.backends.protocol import JobOutcome, Pack
        from llmrl.sweeps.jobs import cancelled, describe, take_on

        outcomes: list[JobOutcome] = []
        with StopFlag("no further run is started") as stop:
            waiting = []
            for pack in self.packs(jobs):
                attempts = {}
                for job in pack.jobs:
                    try:
                        attempts[job.folder] = take_on(job, sweep_folder, beside=pack.folders).attempt
                    except RunFolderError as error:
                        outcomes.append(JobOutcome(job, job.folder, "failed", error=str(error)))
                if active_jobs := tuple(job for job in pack.jobs if job.folder in attempts):
                    waiting.append((Pack(active_jobs), attempts))
            for pack, attempts in waiting:
                if stop.requested:
                    pack_outcomes = [cancelled(job) for job in pack.jobs]
                else:
                    pack_outcomes = _compute(pack, attempts, task, stop)
                outcomes += pack_outcomes
                for outcome in pack_outcomes:
                    log.info("%s", describe(outcome))  # the progress bar is that of the run
        return outcomes


def _compute(pack: Pack, attempts: Mapping[Path, int], task: Task, stop: StopFlag) -> list[JobOutcome]:
    """Compute the runs of a pack and return their outcomes, whatever exceptions occur."""
    from llmrl.sweeps.jobs import ended_outcome
    from llmrl.sweeps.packing import works_of

    began = time.monotonic()
    with _preserve_environment(os.environ):
        ends = works_of(pack, task, {})()
    seconds = time.monotonic() - began
    jobs = {job.folder: job for job in pack.jobs}
    return [ended_outcome(jobs[e.folder], attempts[e.folder], e.exit_code, e.error, stop.signal, seconds) for e in ends]


@contextmanager
def _preserve_environment(environment: os._Environ[str]) -> Iterator[None]:
    """Restore environment variables and module finders that are set for a run."""
    previous, finders = dict(environment), list(sys.meta_path)
    try:
        yield
    finally:
        for name in environment.keys() - previous.keys():
            del environment[name]
        environment.update(previous)
        sys.meta_path[:] = finders
