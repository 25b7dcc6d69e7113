"""`hardware/backend=here`: computation in the launching process itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend, Hardware, Job, JobBatch, JobOutcome
from llmrl.sweeps.jobs import BatchLaunch, describe_outcome, mark_canceled, outcome_from_exit, record_batch_launch
from llmrl.sweeps.machine import Machine, preserve_environment
from llmrl.sweeps.packing import build_process_payload, make_batches_for_machine
from llmrl.sweeps.payload import RunFunction

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Here(Backend):
    """A backend that computes all runs in this process, for debuggers and for runs of fractions of a second.

    Runs with equal batch keys are computed together, others one after the other. A crash of the interpreter ends all.
    """

    def check(self, hardware: Hardware) -> None:
        if hardware.parallel not in (None, 1):
            raise ConfigError(
                f"hardware.parallel={hardware.parallel}: this backend computes in a single process; leave it null, or "
                "use hardware/backend=local"
            )

    def make_batches(self, jobs: Sequence[Job]) -> list[JobBatch]:
        return make_batches_for_machine(jobs, n_processes=1, memory_gb=Machine.detect().memory_gb)

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        return 1

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        outcomes: list[JobOutcome] = []
        with StopFlag("no further run is started") as stop_flag:
            waiting: list[BatchLaunch] = []
            for batch in self.make_batches(jobs):
                launches, failures = record_batch_launch(batch, sweep_folder)
                waiting += launches
                outcomes += failures
            for launch in waiting:
                if stop_flag.requested:
                    batch_outcomes = [mark_canceled(job) for job in launch.batch.jobs]
                else:
                    batch_outcomes = _compute_batch(launch, run_function, stop_flag)
                outcomes += batch_outcomes
                for outcome in batch_outcomes:
                    log.info("%s", describe_outcome(outcome))  # not by a progress bar, because the run shows its own
        return outcomes


def _compute_batch(launch: BatchLaunch, run_function: RunFunction, stop_flag: StopFlag) -> list[JobOutcome]:
    """Compute the runs of a batch and return their outcomes; exceptions of runs are not raised."""
    start = time.monotonic()
    with preserve_environment():
        run_exits = build_process_payload(launch.batch, run_function, environment={})()
    seconds = time.monotonic() - start
    job_by_folder, outcomes = {job.folder: job for job in launch.batch.jobs}, []
    for run_exit in run_exits:
        job, attempt = job_by_folder[run_exit.folder], launch.attempts[run_exit.folder]
        outcomes.append(outcome_from_exit(job, attempt, run_exit.exit_code, run_exit.error, stop_flag.signal, seconds))
    return outcomes
