"""`hardware/backend=here`: computation in the launching process itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmrl.core.errors import ConfigError
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend, Hardware, Job, JobOutcome, Pack
from llmrl.sweeps.jobs import Claim, cancelled_outcome, claim_pack, describe_outcome, ended_outcome
from llmrl.sweeps.machine import Machine, preserve_environment
from llmrl.sweeps.packing import build_payload, pack_for_machine
from llmrl.sweeps.payload import RunFunction

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
        return pack_for_machine(jobs, 1, Machine.this().memory_gb)

    def at_once(self, packs: Sequence[Pack]) -> int | None:
        return 1

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        outcomes: list[JobOutcome] = []
        with StopFlag("no further run is started") as stop:
            waiting: list[Claim] = []
            for pack in self.packs(jobs):
                claims, failures = claim_pack(pack, sweep_folder)
                waiting += claims
                outcomes += failures
            for claim in waiting:
                if stop.requested:
                    pack_outcomes = [cancelled_outcome(job) for job in claim.pack.jobs]
                else:
                    pack_outcomes = _compute(claim, run_function, stop)
                outcomes += pack_outcomes
                for outcome in pack_outcomes:
                    log.info("%s", describe_outcome(outcome))  # the progress bar is that of the run
        return outcomes


def _compute(claim: Claim, run_function: RunFunction, stop: StopFlag) -> list[JobOutcome]:
    """Compute the runs of a claim and return their outcomes, whatever exceptions occur."""
    start = time.monotonic()
    with preserve_environment():
        ends = build_payload(claim.pack, run_function, {})()
    seconds = time.monotonic() - start
    attempts, jobs = claim.attempts, {job.folder: job for job in claim.pack.jobs}
    return [ended_outcome(jobs[e.folder], attempts[e.folder], e.exit_code, e.error, stop.signal, seconds) for e in ends]
