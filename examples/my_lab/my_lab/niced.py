"""Backend that runs jobs at low priority, `hardware/backend=niced`."""

import os
import pickle
import subprocess
import sys
from dataclasses import dataclass

from llmrl.core.ranges import NonNegativeInt
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend
from llmrl.sweeps.jobs import mark_canceled, outcome_from_exit, record_launch
from llmrl.sweeps.payload import RunPayload


@dataclass(frozen=True)
class Niced(Backend):
    """Backend that computes runs sequentially, each in a new process with a lower scheduling priority.

    Attributes:
        level: increase of the niceness.
    """

    level: NonNegativeInt = 10

    def launch(self, jobs, run_function, sweep_folder):
        with StopFlag("the run saves and stops") as stop:
            return [
                mark_canceled(job) if stop.requested else self._compute(job, run_function, sweep_folder, stop)
                for job in jobs
            ]

    def _compute(self, job, run_function, sweep_folder, stop):
        launch_record = record_launch(job, sweep_folder)
        payload = RunPayload(run_function, job.config, job.overrides, job.folder, job.environment)
        code = f"import os, pickle, sys; os.nice({self.level}); pickle.load(sys.stdin.buffer)()"
        process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True)
        process.stdin.write(pickle.dumps(payload))
        process.stdin.close()
        is_signaled = False
        while process.poll() is None:
            try:
                process.wait(timeout=0.2)
            except subprocess.TimeoutExpired:
                if stop.requested and not is_signaled:
                    is_signaled = True
                    os.kill(process.pid, stop.signal)
        return outcome_from_exit(job, launch_record.attempt, process.returncode, stop_signal=stop.signal)
