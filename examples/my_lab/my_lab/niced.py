"""A backend, `hardware/backend=niced`."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass

from llmrl.core.ranges import NonNegativeInt
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend
from llmrl.sweeps.jobs import cancelled, ended_outcome, take_on
from llmrl.sweeps.work import JobWork


@dataclass(frozen=True)
class Niced(Backend):
    """Computes runs one after the other, each in a new interpreter that gives way to other programs."""

    level: NonNegativeInt = 10

    def launch(self, jobs, task, sweep_folder):
        with StopFlag("the run saves and stops") as stop:
            return [cancelled(job) if stop.requested else self._compute(job, task, sweep_folder, stop) for job in jobs]

    def _compute(self, job, task, sweep_folder, stop):
        queued = take_on(job, sweep_folder)
        work = JobWork(task, job.config, job.overrides, job.folder, job.environment)
        code = f"import os, pickle, sys; os.nice({self.level}); pickle.load(sys.stdin.buffer)()"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
        process.stdin.write(pickle.dumps(work))
        process.stdin.close()
        told = False
        while process.poll() is None:
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if stop.requested and not told:
                    told = True
                    os.kill(process.pid, stop.signal)
        return ended_outcome(job, queued.attempt, process.returncode, stopped_by=stop.signal)
