"""Records of run folders on disk, in any state of the run.

This module only reads files, so it works on a folder copied from a cluster. The state of a scheduler's queue can be
added (`queues`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.run import ownership
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.files import read_json_or_empty
from llmrl.run.folder import is_run_folder, seed_of, split_overrides
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import KIND, X
from llmrl.run.ownership import seems_alive
from llmrl.run.queued import LaunchRecord, read_launch_record
from llmrl.run.status import SUMMARY_NAME, RunProgress, RunState, Status, read_status

State = RunState | Literal["queued", "cancelled", "lost", "unreadable"]
"""State of a run from its records.

`queued`: a launcher has accepted it, and it waits. `cancelled`: the user canceled it before it started. `lost`: its
process or its job ended without a record (kill -9, out of memory, a failed machine). `unreadable`: a record is damaged
or was written by a newer version of llmrl.
"""

UNFINISHED_STATES: tuple[State, ...] = ("failed", "stopped", "preempted", "budget_exhausted", "cancelled", "lost")
"""States in which no process works on a run, and the same command would continue it."""

_NOT_RUNS = {"checkpoints", "evaluation", "videos", "llm_cache", "sources", "__pycache__"}
_PROPOSAL_LISTS = ("history", "confirmations")
"""Keys of `summary.json` whose length grows with the run."""
_TAIL_BYTES = 16_384
_MAX_LISTED = 12
"""Maximum number of runs that an error message lists."""
NOTHING_RECORDED = "no process has written a record yet"


@dataclass(frozen=True)
class RunRecord:
    """The record of one run.

    Attributes:
        folder: run folder.
        name: folder of the experiment or sweep under the output root.
        group: `<label>-<hash>`; runs of one group are the seeds of one experiment.
        seed: seed of the run.
        state: state of the run.
        attempt: number of attempts so far; 0 if none has started.
        overrides: overrides by key, without the seed and those that cannot change results.
        llm: label of the language model behind the results; empty without one.
        env: name of the environment; empty if it was never built.
        progress: progress of the run.
        result: scalar result of a finished run.
        shared: factors shared with other runs (`llmrl.run.shared_factors`).
        prerequisites: folders of the runs that it needs: pre-training, reference lines.
        error: last line of the error message.
        waits: reason why its job waits, from the scheduler; empty for others.
        host: machine on which it runs, ran, or waits.
        job_id: the scheduler's job; empty without a scheduler.
        backend: dotted name of the class that computes it; empty for a run that was not started by a launcher.
        pid: process of the latest attempt; 0 if none has started.
        log: file with the output of its job; empty if it was not started by a launcher.
        started: Unix time of the latest attempt's start, seconds; 0 if none.
        updated: Unix time of the latest update of its records, seconds; 0 if none.
    """

    folder: Path
    name: str
    group: str
    seed: int
    state: State
    attempt: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    llm: str = ""
    env: str = ""
    progress: RunProgress = field(default_factory=RunProgress)
    result: float | None = None
    shared: dict[str, list[str]] = field(default_factory=dict)
    prerequisites: tuple[Path, ...] = ()
    error: str = ""
    waits: str = ""
    host: str = ""
    job_id: str = ""
    backend: str = ""
    pid: int = 0
    log: str = ""
    started: float = 0.0
    updated: float = 0.0

    @property
    def digest(self) -> str:
        """Hash of the config, the last part of the folder's name."""
        return self.group.rpartition("-")[2]

    @property
    def reference(self) -> str:
        """Reference to the run for commands, `run:<hash>/s<seed>`."""
        return f"run:{self.digest}/s{self.seed}"

    def summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`; empty if it is missing or cannot be read."""
        return read_json_or_empty(self.folder / SUMMARY_NAME)

    @cached_property
    def short_summary(self) -> dict[str, Any]:
        """Content of `summary.json` without the lists that have an element for every proposal, read once."""
        return {key: value for key, value in self.summary().items() if key not in _PROPOSAL_LISTS}

    def last_metrics(self) -> dict[str, Any]:
        """Return the newest value of each counter and metric in the last complete rows of `metrics.jsonl`.

        Rows of different kinds alternate, so several rows are combined. Only the end of the file is read. The result is
        empty without rows.
        """
        try:
            with open_file(self.folder / METRICS_NAME) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return {}
        newest: dict[str, Any] = {}
        for line in lines:
            if line.endswith(b"\n"):
                try:
                    newest |= json.loads(line)
                except (ValueError, TypeError, RecursionError):
                    continue  # the first line may be incomplete
        numbers = (int, float, type(None))
        return {name: x for name, x in newest.items() if name not in (KIND, X) and isinstance(x, numbers)}


def find_runs(folder: Path) -> list[Path]:
    """Return all run folders in `folder` (which may be one), sorted by name, seeds by number.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give a folder of runs, such as outputs or outputs/<name>")
    return sorted(_walk(folder), key=lambda run: (str(run.parent), _seed(run)))


def only_run(folder: Path) -> Path:
    """Return the only run in `folder`, which may be the run folder.

    Raises:
        RunFolderError: there is no run, or there are several, which are listed.
    """
    if (folder / CONFIG_NAME).is_file():
        return folder
    runs = find_runs(folder)
    if not runs:
        raise RunFolderError(f"{folder} has no run in it; give a run folder, such as outputs/<name>/<run>/s0")
    if len(runs) > 1:
        lines = "".join(f"\n  {run}" for run in runs[:_MAX_LISTED])
        omission = f"\n  and {len(runs) - _MAX_LISTED:,} more" if len(runs) > _MAX_LISTED else ""
        raise RunFolderError(f"{folder} has {len(runs):,} runs:{lines}{omission}\nGive one of them")
    return runs[0]


def _walk(folder: Path) -> Iterator[Path]:
    if is_run_folder(folder):
        yield folder
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name not in _NOT_RUNS and not entry.name.startswith((".", "backup_")):
                yield from _walk(Path(entry.path))


@dataclass(frozen=True)
class JobEnd:
    """The end of a scheduler's job.

    Attributes:
        word: final state as named by the scheduler.
        cancelled: whether a user canceled it.
    """

    word: str
    cancelled: bool


@dataclass(frozen=True)
class Queue:
    """The waiting and running jobs of a scheduler.

    Attributes:
        backend: class of the jobs (`LaunchRecord.backend`).
        cluster: name of the cluster.
        users: users whose jobs were queried.
        states: state by job id, as named by the scheduler (`PENDING`, `RUNNING`, ...).
        ended: ends of recently ended jobs by job id.
        reasons: reasons why jobs wait by job id, if they are known.
    """

    backend: str
    cluster: str
    users: frozenset[str]
    states: Mapping[str, str]
    ended: Mapping[str, JobEnd] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def knows(self, queued: LaunchRecord) -> bool:
        """Return whether a run's job would be in this queue: it has the same backend, cluster and user."""
        is_same_cluster = (queued.backend, queued.cluster) == (self.backend, self.cluster)
        return is_same_cluster and queued.user in self.users


def _job_state(queue: Queue | None, job_id: str) -> str | None:
    """Return the state of a run's job: empty if it is gone; None if it has none, or no queue can know it."""
    return queue.states.get(job_id, "") if queue is not None and job_id else None


def read_runs(folder: Path, queues: Sequence[Queue] = ()) -> list[RunRecord]:
    """Return a record of every run in `folder` (`read_run`)."""
    return [read_run(run, queues) for run in find_runs(folder)]


def read_run(folder: Path, queues: Sequence[Queue] = ()) -> RunRecord:
    """Return the record of the run in `folder`; errors in its files are part of the record.

    Args:
        folder: run folder.
        queues: waiting and running jobs of schedulers; a job that no queue can know is assumed to exist.
    """
    folder = folder.absolute()
    record = RunRecord(folder, folder.parent.parent.name, folder.parent.name, _seed(folder), state="unreadable")
    try:
        status, queued = read_status(folder), read_launch_record(folder)
        if queued is not None:
            record = replace(record, backend=queued.backend, log=queued.log)
        if status is None and queued is None:
            return replace(record, state="lost", error=NOTHING_RECORDED)
        queue = next((queue for queue in queues if queued is not None and queue.knows(queued)), None)
        if status is not None:
            state, error_text = _started_state(folder, status, queue)
            job_id = status.job_id
        if queued is not None and (status is None or (status.attempt <= queued.attempt and state != "running")):
            queued_state, queued_error = _queued_state(queued, queue)
            if status is None or queued_state == "queued":
                state, error_text, job_id = queued_state, queued_error, queued.job_id
    except RunFolderError as error:
        return replace(record, error=str(error))
    waits = queue.reasons.get(job_id, "") if queue is not None and state == "queued" else ""
    if status is None:
        assert queued is not None
        return replace(
            record,
            state=state,
            error=error_text,
            waits=waits,
            overrides=split_overrides(queued.overrides),
            host=queued.host,
            job_id=job_id,
            updated=queued.submitted,
        )
    return replace(
        record,
        state=state,
        attempt=status.attempt,
        overrides=split_overrides(status.overrides),
        llm=status.llm,
        env=status.env,
        progress=status.progress,
        result=status.result,
        shared=status.shared,
        prerequisites=tuple(Path(prerequisite.folder).absolute() for prerequisite in status.prerequisites),
        error=error_text,
        waits=waits,
        host=status.host,
        job_id=job_id,
        pid=status.pid,
        started=status.started,
        updated=status.updated,
    )


def _queued_state(queued: LaunchRecord, queue: Queue | None) -> tuple[State, str]:
    """Return the state of a run that has not started, and an error message."""
    if queued.cancelled:
        return "cancelled", f"canceled before it started: {queued.cancelled}"
    if queued.error:
        return "lost", queued.error
    if not queued.job_id:
        if queued.launcher_lives():
            return "queued", ""
        return "lost", f"the launcher (process {queued.pid} on {queued.host}) ended before it started this run"
    if queue is None or _job_state(queue, queued.job_id) != "":
        return "queued", ""
    end = queue.ended.get(queued.job_id)
    if end is not None and end.cancelled:
        return "cancelled", f"canceled before it started: job {queued.job_id} ({end.word})"
    return "lost", f"job {queued.job_id} left the queue before the run had started"


def _started_state(folder: Path, status: Status, queue: Queue | None) -> tuple[State, str]:
    """Return the state of a run that has started, from its records, process and job, and an error message."""
    job_state = _job_state(queue, status.job_id)
    if status.state == "preempted" and job_state:
        return "queued", ""  # put back into the queue, or about to start again
    if status.state != "running":
        return status.state, status.error
    owner = ownership.read_owner(folder)
    owner_file = folder / ownership.FILE_NAME
    if job_state != "" and owner is not None and seems_alive(owner.machine, owner.pid, owner.process_start, owner_file):
        return "running", status.error
    if job_state:
        return "queued", ""  # between two attempts
    message = (
        f"process {status.pid} on {status.host} ended without a message (kill -9, out of memory, a failed machine?)"
    )
    return "lost", message


def _seed(folder: Path) -> int:
    return seed_of(folder) or 0
