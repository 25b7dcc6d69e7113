"""Queries to schedulers of any backend about jobs, and waiting for jobs to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.analysis.runs import JobEnd, Queue, read_run
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.trust import NOBODY
from llmrl.run.progress_bar import ProgressBar
from llmrl.run.queued import Queued, read_queued
from llmrl.sweeps.backends.protocol import Backend, JobOutcome, Scheduler, SchedulerError, name_of
from llmrl.sweeps.jobs import describe
from llmrl.sweeps.watch import SweepWatch, bar_name

log = logging.getLogger(__name__)

_POLL_S = (1.0, 15.0)  # shortest and longest wait between looks at the queue
_GONE_AFTER = 2  # polls in a row without a job before it counts as ended, because requeueing takes a moment


def scheduler_of(backend: str) -> Scheduler | None:
    """Return the scheduler of the backend in a run's record; None for backends whose runs end with their launcher.

    Args:
        backend: dotted name of a class. Classes of other packages must be installed plugins, or trusted by the user's
            own file, because a run folder from elsewhere must not decide what code runs.

    Raises:
        ConfigError: the class is not trusted, is not a backend, or cannot be imported.
    """
    if not backend:
        return None
    found = NOBODY.locate(backend, "queued.json: backend")
    if Backend not in getattr(found, "__mro__", ()):
        raise ConfigError(f"queued.json: backend={backend} is no backend")
    made: type[Scheduler] | None = found.scheduler
    return None if made is None else made()


def taken_by_schedulers(folders: Iterable[Path]) -> dict[str, list[Queued]]:
    """Return the latest submission of each run that has a job id, by backend."""
    found: dict[str, list[Queued]] = {}
    for folder in folders:
        try:
            queued = read_queued(folder)
        except RunFolderError:
            continue  # the run's record reports this error
        if queued is not None and queued.job_id:
            found.setdefault(queued.backend, []).append(queued)
    return found


def ask_schedulers(folders: Iterable[Path], sure: bool = False) -> list[Queue]:
    """Return the queues of the schedulers that these runs were submitted to.

    Args:
        folders: run folders, which need not exist.
        sure: whether to raise if a scheduler cannot be queried; else its jobs are assumed to exist.

    Raises:
        SchedulerError: a scheduler cannot be queried, and `sure` is set.
    """
    queues: list[Queue] = []
    for backend, taken in taken_by_schedulers(folders).items():
        try:
            scheduler = scheduler_of(backend)
            queues += scheduler.ask(taken) if scheduler is not None else []
        except ConfigError as error:
            if sure:
                raise SchedulerError(f"a run may wait or run as job {taken[0].job_id}, and {error}") from error
            log.debug("%s is not asked: %s", backend, error)
    return queues


def ended(backend: str, job_ids: Iterable[str], queues: Sequence[Queue]) -> Mapping[str, JobEnd]:
    """Return the ends of a backend's jobs by id, from its queues or, for older jobs, from its scheduler's records.

    Raises:
        ConfigError: as `scheduler_of`.
    """
    lately = {job: end for queue in queues if queue.backend == backend for job, end in queue.ended.items()}
    known = {job: lately[job] for job in job_ids if job in lately}
    scheduler = scheduler_of(backend)
    return known if scheduler is None else {**scheduler.ended(sorted(set(job_ids) - known.keys())), **known}


def wait_for(submitted: Sequence[JobOutcome]) -> Iterator[JobOutcome]:
    """Yield the outcome of each submitted run of one backend, in order of ending.

    A scheduler that does not answer is queried again later, because its jobs go on.
    """
    pending = {outcome.folder: _submission(outcome) for outcome in submitted}
    jobs = {outcome.folder: outcome for outcome in submitted}
    unseen = dict.fromkeys(pending, 0)
    delay = _POLL_S[0]
    made = submitted[0].job.hardware.backend.scheduler
    assert made is not None
    scheduler = made()
    with ProgressBar(len(pending), "runs", bar_name([outcome.job for outcome in submitted])) as progress:
        watch = SweepWatch(progress)
        while pending:
            try:
                queues = scheduler.ask(list(pending.values()))
            except SchedulerError as error:
                log.debug("asked again later: %s", error)
                queues = []
            for folder, queued in list(pending.items()):
                queue = next((queue for queue in queues if queue.knows(queued)), None)
                if queue is None:
                    continue
                unseen[folder] = unseen[folder] + 1 if queued.job_id not in queue.states else 0
                if unseen[folder] >= _GONE_AFTER:
                    outcome = outcome_of(jobs[folder], pending.pop(folder), queues)
                    progress.say(describe(outcome))
                    progress.update(len(submitted) - len(pending))
                    yield outcome
            watch.look(list(pending))
            if pending:
                time.sleep(delay)
                delay = min(delay * 1.3, _POLL_S[1])


def _submission(outcome: JobOutcome) -> Queued:
    """Return the launch record of a submitted run, with the job id even if that could not be recorded."""
    queued = read_queued(outcome.folder)
    assert queued is not None
    return replace(queued, job_id=outcome.job_id)


def outcome_of(submitted: JobOutcome, queued: Queued, queues: Sequence[Queue]) -> JobOutcome:
    """Return the outcome of a run whose job is no longer in the queue."""
    job = submitted.job
    record = read_run(job.folder, queues)
    if record.state == "running":
        return JobOutcome.of(job, record, state="elsewhere", skipped=True, error="another process works on it")
    begun = record.attempt > queued.attempt
    if begun and record.state in ("finished", "failed", "budget_exhausted"):
        return JobOutcome.of(job, record)
    end = ended(name_of(job.hardware.backend), [queued.job_id], queues).get(queued.job_id)
    error = record.error if begun else f"job {queued.job_id} left the queue before the run had started"
    taken_back = record.state == "cancelled" or (end is not None and end.cancelled)
    state = record.state if begun else "cancelled" if taken_back else "lost"
    return JobOutcome.of(job, record, state=state, error=f"{error} ({end.word})" if end is not None else error)
