"""Queries to the schedulers of backends, and the wait for the ends of jobs."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.trust import NO_FURTHER_TRUST
from llmrl.results.run_records import JobEnd, QueueSnapshot, read_run
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.queued import LaunchRecord, read_launch_record
from llmrl.sweeps.backends.protocol import Backend, JobOutcome, Scheduler, SchedulerError, get_qualified_backend_name
from llmrl.sweeps.jobs import describe_outcome
from llmrl.sweeps.watch import SweepWatch, name_progress_bar

log = logging.getLogger(__name__)

_MIN_POLL_S, _MAX_POLL_S = 1.0, 15.0
"""Minimum and maximum seconds between two queries of the queue."""
_MAX_ABSENT_POLLS = 2
"""Number of consecutive queries without a job after which it counts as ended; a requeued job is absent for a while."""


def load_scheduler(backend: str) -> Scheduler | None:
    """Return the scheduler of the backend in a launch record; None for backends without a scheduler.

    Args:
        backend: dotted name of a class. Classes of other packages must be entry points of installed packages, because
            a run folder of another user must not select the code that runs.

    Raises:
        ConfigError: the class is not trusted, is not a backend, or cannot be imported.
    """
    if not backend:
        return None
    backend_class = NO_FURTHER_TRUST.locate(backend, "queued.json: backend")
    if Backend not in getattr(backend_class, "__mro__", ()):
        raise ConfigError(f"queued.json: backend={backend} is not a backend")
    scheduler_class: type[Scheduler] | None = backend_class.scheduler
    return None if scheduler_class is None else scheduler_class()


def query_schedulers(folders: Iterable[Path], strict: bool = False) -> list[QueueSnapshot]:
    """Return the queues of the schedulers to which these runs were submitted.

    Args:
        folders: run folders, which need not exist.
        strict: whether to raise if a scheduler cannot be queried. False: its jobs are assumed to exist.

    Raises:
        SchedulerError: a scheduler cannot be queried, and `strict` is set.
    """
    launch_records_by_backend: dict[str, list[LaunchRecord]] = {}
    for folder in folders:
        with suppress(RunFolderError):  # the run's record reports this error
            launch_record = read_launch_record(folder)
            if launch_record is not None and launch_record.job_id:
                launch_records_by_backend.setdefault(launch_record.backend, []).append(launch_record)
    queues: list[QueueSnapshot] = []
    for backend, launch_records in launch_records_by_backend.items():
        try:
            scheduler = load_scheduler(backend)
            queues += scheduler.query_queues(launch_records) if scheduler is not None else []
        except ConfigError as error:
            if strict:
                raise SchedulerError(
                    f"a run may be waiting or running as job {launch_records[0].job_id}, but {error}"
                ) from error
            log.debug("%s is not queried: %s", backend, error)
    return queues


def find_job_ends(backend: str, job_ids: Collection[str], queues: Sequence[QueueSnapshot]) -> Mapping[str, JobEnd]:
    """Return the ends of a backend's jobs by id, from `queues` or, for older jobs, from the scheduler's accounting.

    Raises:
        ConfigError: the backend is not trusted, is not a backend, or cannot be imported.
    """
    queue_ends = {job: end for queue in queues if queue.backend == backend for job, end in queue.job_ends.items()}
    recent_ends = {job: queue_ends[job] for job in job_ids if job in queue_ends}
    scheduler = load_scheduler(backend)
    older_ends = {} if scheduler is None else scheduler.find_job_ends(sorted(set(job_ids) - recent_ends.keys()))
    return {**older_ends, **recent_ends}


def wait_for_jobs(submissions: Sequence[JobOutcome]) -> Iterator[JobOutcome]:
    """Yield the outcome of each submitted run when its job has ended; `submissions` are those of one backend.

    If a query fails, it is repeated later, because the jobs continue.
    """
    pending = {outcome.folder: _read_submission_record(outcome) for outcome in submissions}
    outcome_by_folder = {outcome.folder: outcome for outcome in submissions}
    n_absent_polls = dict.fromkeys(pending, 0)
    delay_s = _MIN_POLL_S
    scheduler_class = submissions[0].job.hardware.backend.scheduler
    assert scheduler_class is not None
    scheduler = scheduler_class()
    with ProgressBar(len(pending), "runs", name_progress_bar([outcome.job for outcome in submissions])) as progress:
        sweep_watch = SweepWatch(progress)
        while pending:
            try:
                queues = scheduler.query_queues(list(pending.values()))
            except SchedulerError as error:
                log.debug("queried again later: %s", error)
                queues = []
            for folder, launch_record in list(pending.items()):
                queue = next((queue for queue in queues if queue.covers(launch_record)), None)
                if queue is None:
                    continue
                n_absent_polls[folder] = n_absent_polls[folder] + 1 if launch_record.job_id not in queue.states else 0
                if n_absent_polls[folder] >= _MAX_ABSENT_POLLS:
                    outcome = read_outcome(outcome_by_folder[folder], pending.pop(folder), queues)
                    progress.print_line(describe_outcome(outcome))
                    progress.update(len(submissions) - len(pending))
                    yield outcome
            sweep_watch.update_if_due(list(pending))
            if pending:
                time.sleep(delay_s)
                delay_s = min(delay_s * 1.3, _MAX_POLL_S)


def _read_submission_record(outcome: JobOutcome) -> LaunchRecord:
    """Return the launch record of a submitted run, with the job id even if it could not be written to the file."""
    launch_record = read_launch_record(outcome.folder)
    assert launch_record is not None
    return replace(launch_record, job_id=outcome.job_id)


def read_outcome(submission: JobOutcome, launch_record: LaunchRecord, queues: Sequence[QueueSnapshot]) -> JobOutcome:
    """Return the outcome of a run whose job is no longer in the queue."""
    job = submission.job
    record = read_run(job.folder, queues)
    if record.state == "running":
        return JobOutcome.from_record(job, record, state="elsewhere", skipped=True, error="another process computes it")
    has_started = record.attempt > launch_record.attempt
    if has_started and record.state in ("finished", "failed", "budget_exhausted"):
        return JobOutcome.from_record(job, record)
    job_id = launch_record.job_id
    end = find_job_ends(get_qualified_backend_name(job.hardware.backend), [job_id], queues).get(job_id)
    error = record.error if has_started else f"job {job_id} left the queue before the run had started"
    is_cancellation = record.state == "canceled" or (end is not None and end.canceled)
    state = record.state if has_started else "canceled" if is_cancellation else "lost"
    end_text = "" if end is None else f" ({end.description})"
    return JobOutcome.from_record(job, record, state=state, error=error + end_text)
