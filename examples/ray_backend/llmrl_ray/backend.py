"""Backend that computes the runs of a sweep as tasks of a Ray cluster, `hardware/backend=ray`."""

from __future__ import annotations

import _thread
import logging
import os
import pickle
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from llmrl.core.errors import ConfigError, summarize_error
from llmrl.core.ranges import NonNegativeInt
from llmrl.run.command_exit import EXIT_FAILED, EXIT_INTERRUPTED
from llmrl.run.ownership import JOB_ID_VARIABLE, release_ended_job
from llmrl.run.signals import StopFlag
from llmrl.sweeps.backends.protocol import Backend, Job, JobBatch, JobOutcome, SchedulerError
from llmrl.sweeps.jobs import (
    BatchLaunch,
    describe_outcome,
    has_run_ended,
    mark_canceled,
    outcome_from_exit,
    record_batch_launch,
    redirect_output,
    write_log_header,
)
from llmrl.sweeps.machine import THREAD_VARIABLES
from llmrl.sweeps.packing import build_process_payload
from llmrl.sweeps.payload import RunExit, RunFunction

log = logging.getLogger(__name__)

_POLL_S = 0.5


@dataclass(frozen=True)
class Ray(Backend):
    """Backend that computes each run in a worker process of a Ray cluster whose machines share a file system.

    Runs end when the launching process ends. If the worker or the machine of a run is lost, the run is restarted on
    another worker, where it resumes.

    Attributes:
        address: address of the cluster, `host:port`; `auto`: the cluster of this machine.
        retries: maximum number of restarts of a lost run.
    """

    address: str = "auto"
    retries: NonNegativeInt = 3

    def prepare(self, jobs: Sequence[Job]) -> None:
        import ray

        if not ray.is_initialized():
            try:
                ray.init(self.address, log_to_driver=False, logging_level=logging.WARNING)
            except (ConnectionError, ValueError) as error:
                raise SchedulerError(f"hardware.backend.address={self.address}: {error}") from error
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        for batch in self.make_batches(jobs):
            needs = {"CPU": batch.cores, "GPU": batch.hardware.gpus, "memory": batch.memory_gb * 1e9}
            if not any(all(node.get(name, 0) >= need for name, need in needs.items()) for node in nodes):
                raise ConfigError(
                    f"no machine of the Ray cluster has the resources of a run: {needs}; they have {nodes}"
                )

    def count_parallel(self, batches: Sequence[JobBatch]) -> int | None:
        return batches[0].hardware.parallel

    def launch(self, jobs: Sequence[Job], run_function: RunFunction, sweep_folder: Path) -> list[JobOutcome]:
        import ray

        outcomes: list[JobOutcome] = []
        waiting: list[BatchLaunch] = []
        running: dict[ray.ObjectRef, BatchLaunch] = {}
        losses: Counter[Path] = Counter()
        is_stopping = False
        (sweep_folder / "logs").mkdir(exist_ok=True)
        with StopFlag("runs save and stop") as stop:
            for number, batch in enumerate(self.make_batches(jobs)):
                folder = batch.folders[0]
                log_file = sweep_folder / "logs" / f"{number:04d}-{folder.parent.name}-{folder.name}.log"
                write_log_header(log_file, batch)
                launches, failures = record_batch_launch(batch, sweep_folder, str(log_file))
                waiting += launches
                outcomes += failures
            while running or (waiting and not stop.requested):
                while waiting and not stop.requested and len(running) < (jobs[0].hardware.parallel or len(jobs)):
                    launch = waiting.pop(0)
                    running[_submit(launch, run_function)] = launch
                if stop.requested and not is_stopping:
                    is_stopping = True
                    for reference in running:
                        ray.cancel(reference)
                for reference in ray.wait(list(running), timeout=_POLL_S)[0] if running else []:
                    launch = running.pop(reference)
                    folder = launch.batch.folders[0]
                    run_exit = _get_run_exit(reference, launch)
                    if run_exit.exit_code < 0 and losses[folder] < self.retries and not stop.requested:
                        losses[folder] += 1
                        log.warning("%s is lost and restarts: %s", folder, run_exit.error)
                        waiting.insert(0, launch)
                        continue
                    stop_signal = signal.SIGINT if stop.requested else None
                    job, attempt = launch.batch.jobs[0], launch.attempts[folder]
                    outcome = outcome_from_exit(job, attempt, run_exit.exit_code, run_exit.error, stop_signal)
                    if outcome.state == "lost":
                        outcome = replace(outcome, error=f"its worker is lost ({run_exit.error})")
                    outcomes.append(outcome)
                    log.info("%s", describe_outcome(outcome))
        return outcomes + [mark_canceled(job) for launch in waiting for job in launch.batch.jobs]


def _submit(launch: BatchLaunch, run_function: RunFunction) -> Any:
    """Submit a run, and return the reference to its task."""
    import ray

    batch = launch.batch
    environment = dict.fromkeys(THREAD_VARIABLES, str(batch.hardware.threads or batch.cores))
    payload = pickle.dumps(build_process_payload(batch, run_function, environment))
    # Each worker computes a single run, so that runs do not share state.
    worker = ray.remote(max_calls=1, max_retries=0)(compute).options(
        name=str(batch.folders[0]), num_cpus=batch.cores, num_gpus=batch.hardware.gpus, memory=batch.memory_gb * 1e9
    )
    return worker.remote(payload, environment, launch.records[0].log, str(Path.cwd()))


def compute(payload: bytes, environment: dict[str, str], log_file: str, working_directory: str) -> RunExit:
    """Compute a run in a worker process.

    Args:
        payload: pickled `ProcessPayload`, which is loaded after the environment variables are set.
        environment: environment variables that libraries read during import.
        log_file: file for the output.
        working_directory: working directory of the launching process.
    """
    import ray

    redirect_output(log_file)
    # Ray cancels a task with an interrupt, like Ctrl-C. It is replaced by SIGTERM, at which a run saves, even if
    # `llmrl-sweep cancel` has already sent SIGTERM.
    _thread.interrupt_main = partial(_thread.interrupt_main, signal.SIGTERM)  # type: ignore[assignment]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # before the run handles signals
    os.chdir(working_directory)
    os.environ.update(environment)
    os.environ[JOB_ID_VARIABLE] = ray.get_runtime_context().get_task_id()
    (run_exit,) = pickle.loads(payload)()  # noqa: S301 (created by the launching process)
    return run_exit


def _get_run_exit(reference: Any, launch: BatchLaunch) -> RunExit:
    """Return the exit of the run of a finished task; a negative exit code means that the worker is lost."""
    import ray

    (job,) = launch.batch.jobs
    try:
        run_exit: RunExit = ray.get(reference)
    except ray.exceptions.TaskCancelledError:
        return RunExit(job.folder, EXIT_INTERRUPTED)
    except ray.exceptions.RayTaskError as error:
        return RunExit(job.folder, EXIT_FAILED, summarize_error(error.cause))
    except ray.exceptions.RayError as error:
        release_ended_job(job.folder, reference.task_id().hex())
        if has_run_ended(job, launch.attempts[job.folder]):
            return RunExit(job.folder, 0)
        return RunExit(job.folder, -signal.SIGKILL, summarize_error(error))
    return run_exit
