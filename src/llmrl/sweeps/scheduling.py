"""What schedulers know of jobs, for whichever backend: asking them, and waiting for jobs to end."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.analysis.runs import JobEnd, Queue, read_run
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.trust import NOBODY
from llmrl.run.progress import Progress
from llmrl.run.queued import Queued, read_queued
from llmrl.sweeps.backends.protocol import Backend, Outcome, Scheduler, SchedulerError, name_of
from llmrl.sweeps.jobs import describe
from llmrl.sweeps.watch import SweepWatch

log = logging.getLogger(__name__)

_POLL_S = (1.0, 15.0)  # shortest and longest wait between looks at the queue
_GONE_AFTER = 2  # looks in a row without a job before it counts as over: requeueing takes a moment


def scheduler_of(backend: str) -> Scheduler | None:
    """Return the scheduler that a run's record names; None for backends whose runs end with their launcher.

    Args:
        backend: dotted name of a class; of other packages only those are heeded that are installed, or that the user's
            own file trusts: whoever wrote the run folder does not say what code runs.

    Raises:
        ConfigError: that is not trusted, or cannot be imported.
    """
    if not backend:
        return None
    found = NOBODY.locate(backend, "queued.json: backend")
    if Backend not in getattr(found, "__mro__", ()):
        raise ConfigError(f"queued.json: backend={backend} is no backend")
    made: type[Scheduler] | None = found.scheduler
    return None if made is None else made()


def taken_by_schedulers(folders: Iterable[Path]) -> dict[str, list[Queued]]:
    """Return the latest submissions of runs, by backend: those with a job id."""
    found: dict[str, list[Queued]] = {}
    for folder in folders:
        try:
            queued = read_queued(folder)
        except RunFolderError:
            continue  # the run's record tells of it
        if queued is not None and queued.job_id:
            found.setdefault(queued.backend, []).append(queued)
    return found


def ask_schedulers(folders: Iterable[Path], sure: bool = False) -> list[Queue]:
    """Return what schedulers have waiting or running where these runs were submitted.

    Args:
        folders: run folders, which need not exist.
        sure: raise if one would have to be asked and cannot be; else its jobs are believed to be there.

    Raises:
        ConfigError: see `sure`.
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
    """Return how a backend's jobs ended, from its queues and, for older ones, from what its scheduler has kept.

    Raises:
        ConfigError: as `scheduler_of`.
    """
    lately = {job: end for queue in queues if queue.backend == backend for job, end in queue.ended.items()}
    known = {job: lately[job] for job in job_ids if job in lately}
    scheduler = scheduler_of(backend)
    return known if scheduler is None else {**scheduler.ended(sorted(set(job_ids) - known.keys())), **known}


def wait_for(submitted: Sequence[Outcome]) -> Iterator[Outcome]:
    """Yield the outcome of each submitted run, as they end; all of one backend.

    A scheduler that does not answer is waited out: the jobs go on without it.
    """
    pending = {outcome.folder: _submission(outcome) for outcome in submitted}
    jobs = {outcome.folder: outcome for outcome in submitted}
    unseen = dict.fromkeys(pending, 0)
    delay = _POLL_S[0]
    made = submitted[0].job.hardware.backend.scheduler
    assert made is not None
    scheduler = made()
    with Progress(len(pending), "runs", "sweep") as progress:
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


def _submission(outcome: Outcome) -> Queued:
    """Who took a submitted run on, with the job's id even where that could not be written down."""
    queued = read_queued(outcome.folder)
    assert queued is not None
    return replace(queued, job_id=outcome.job_id)


def outcome_of(submitted: Outcome, queued: Queued, queues: Sequence[Queue]) -> Outcome:
    """Return what became of a run whose job is no longer in the queue."""
    job = submitted.job
    record = read_run(job.folder, queues)
    if record.state == "running":
        return Outcome.of(job, record, state="elsewhere", skipped=True, error="another process works on it")
    begun = record.attempt > queued.attempt
    if begun and record.state in ("finished", "failed", "budget_exhausted"):
        return Outcome.of(job, record)
    end = ended(name_of(job.hardware.backend), [queued.job_id], queues).get(queued.job_id)
    error = record.error if begun else f"job {queued.job_id} left the queue before the run had started"
    taken_back = record.state == "cancelled" or (end is not None and end.cancelled)
    state = record.state if begun else "cancelled" if taken_back else "lost"
    return Outcome.of(job, record, state=state, error=f"{error} ({end.word})" if end is not None else error)
