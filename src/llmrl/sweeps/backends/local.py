"""`hardware/backend=local`: processes of this machine, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrl.sweeps.backends.protocol import Backend

if TYPE_CHECKING:
    from llmrl.sweeps.backends.protocol import Job, Outcome
    from llmrl.sweeps.work import Task


@dataclass(frozen=True)
class Local(Backend):
    """Compute each run in a process of its own on this machine, as many at once as have room."""

    def prepare(self, jobs: Sequence[Job]) -> None:
        from llmrl.sweeps.machine import Machine

        machine = Machine.this()
        for job in jobs:
            machine.places(job.hardware, job.cores)

    def launch(self, jobs: Sequence[Job], task: Task, sweep_folder: Path) -> list[Outcome]:
        from llmrl.sweeps.backends.pool import Pool

        return Pool(jobs, task, sweep_folder).run()
