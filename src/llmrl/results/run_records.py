"""Records of runs in any state, from the files in their folders.

On the machine of a run, a record also depends on whether its process exists. Folders that were copied from a cluster
can be read, too. Snapshots of schedulers' queues add the states of jobs (`queues`).
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
from llmrl.run.folder import is_run_folder, parse_seed, split_overrides
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import KIND_KEY, X_KEY
from llmrl.run.ownership import process_seems_alive
from llmrl.run.queued import LAUNCHER_ALIVE_NAME, LaunchRecord, read_launch_record
from llmrl.run.status import SUMMARY_NAME, RunProgress, Status, StatusState, read_status

RunState = StatusState | Literal["queued", "canceled", "lost", "unreadable"]
"""State of a run from its files.

`queued`: the run waits in the queue of a launcher or scheduler. `canceled`: it was canceled before it started. `lost`:
its process or job ended without recording an outcome (possibly SIGKILL, out of memory or a node failure).
`unreadable`: a file is damaged or was written by a newer version of llmrl.
"""

RESUMABLE_STATES: tuple[RunState, ...] = ("failed", "stopped", "preempted", "budget_exhausted", "canceled", "lost")
"""States of inactive runs that a repetition of the command resumes or starts."""

_SKIPPED_FOLDERS = {"checkpoints", "evaluation", "videos", "llm_cache", "sources", "__pycache__"}
_LONG_SUMMARY_KEYS = ("history", "confirmations")
"""Keys of `summary.json` with lists that grow with the length of the run."""
_TAIL_BYTES = 16_384
"""Bytes at the end of `metrics.jsonl` from which the newest values are read."""
_MAX_LISTED_RUNS = 12
"""Maximum number of runs that an error message lists."""
NO_RECORD_ERROR = "neither a launcher nor a process has left a record of this run"


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
        overrides: overrides by key, without the seed and keys that cannot change results.
        llm: label of the run's language model; empty without one.
        env: name of the environment; empty if it has not been built.
        progress: progress of the run.
        result: scalar result of a finished run.
        shared_factors: factors shared with other runs (`llmrl.run.shared_factors`).
        prerequisites: folders of the runs that this run needs: pre-training runs and baseline (reference) runs.
        error: one-line description of what went wrong or stopped the run.
        pending_reason: reason of the scheduler why the job waits; empty if it does not wait.
        host: machine of the latest attempt, or of the launcher while the run waits.
        job_id: id of the scheduler's job; empty without a scheduler.
        backend: dotted name of the class of the backend; empty if no launcher started the run.
        pid: process id of the latest attempt; 0 if none has started.
        log: file with the output of the job; empty if no launcher started the run.
        started: Unix time of the latest attempt's start, seconds; 0 if none.
        updated: Unix time of the latest update of its records, seconds; 0 if none.
    """

    folder: Path
    name: str
    group: str
    seed: int
    state: RunState
    attempt: int = 0
    overrides: dict[str, str] = field(default_factory=dict)
    llm: str = ""
    env: str = ""
    progress: RunProgress = field(default_factory=RunProgress)
    result: float | None = None
    shared_factors: dict[str, list[str]] = field(default_factory=dict)
    prerequisites: tuple[Path, ...] = ()
    error: str = ""
    pending_reason: str = ""
    host: str = ""
    job_id: str = ""
    backend: str = ""
    pid: int = 0
    log: str = ""
    started: float = 0.0
    updated: float = 0.0

    @property
    def config_hash(self) -> str:
        """Hash of the config, the last part of the folder's name."""
        return self.group.rpartition("-")[2]

    @property
    def run_reference(self) -> str:
        """Reference to the run for commands, `run:<hash>/s<seed>`."""
        return f"run:{self.config_hash}/s{self.seed}"

    def summary(self) -> dict[str, Any]:
        """Return the content of `summary.json`; empty if it is missing or cannot be read."""
        return read_json_or_empty(self.folder / SUMMARY_NAME)

    @cached_property
    def compact_summary(self) -> dict[str, Any]:
        """Content of `summary.json` without `_LONG_SUMMARY_KEYS`; cached after the first read."""
        return {key: value for key, value in self.summary().items() if key not in _LONG_SUMMARY_KEYS}

    def read_last_metrics(self) -> dict[str, Any]:
        """Return the newest value of each counter and metric at the end of `metrics.jsonl`; empty without rows.

        Rows of different kinds alternate, so the last rows are combined. Only `_TAIL_BYTES` of the file are read.
        """
        try:
            with open_file(self.folder / METRICS_NAME) as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
                lines = file.read().splitlines(keepends=True)
        except OSError:
            return {}
        newest_values: dict[str, Any] = {}
        for line in lines:
            if line.endswith(b"\n"):
                try:
                    newest_values |= json.loads(line)
                except (ValueError, TypeError, RecursionError):
                    continue  # the first line may be incomplete
        return {
            name: value
            for name, value in newest_values.items()
            if name not in (KIND_KEY, X_KEY) and isinstance(value, (int, float, type(None)))
        }


def find_runs(folder: Path) -> list[Path]:
    """Return all run folders in `folder`, which may be one itself, sorted by parent folder and seed.

    Raises:
        RunFolderError: there is no such folder.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give a folder of runs, such as outputs or outputs/<name>")
    return sorted(_iterate_run_folders(folder), key=lambda run: (str(run.parent), parse_seed(run) or 0))


def find_only_run(folder: Path) -> Path:
    """Return the folder of the only run in `folder`, which may be the run folder itself.

    Raises:
        RunFolderError: there is no run, or there are several. The message lists these.
    """
    if (folder / CONFIG_NAME).is_file():
        return folder
    runs = find_runs(folder)
    if not runs:
        raise RunFolderError(f"{folder} has no run in it; give a run folder, such as outputs/<name>/<run>/s0")
    if len(runs) > 1:
        lines = "".join(f"\n  {run}" for run in runs[:_MAX_LISTED_RUNS])
        omission = f"\n  and {len(runs) - _MAX_LISTED_RUNS:,} more" if len(runs) > _MAX_LISTED_RUNS else ""
        raise RunFolderError(f"{folder} has {len(runs):,} runs:{lines}{omission}\nGive one of them")
    return runs[0]


def _iterate_run_folders(folder: Path) -> Iterator[Path]:
    if is_run_folder(folder):
        yield folder
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name not in _SKIPPED_FOLDERS and not entry.name.startswith((".", "backup_")):
                yield from _iterate_run_folders(Path(entry.path))


@dataclass(frozen=True)
class JobEnd:
    """The end of a scheduler's job.

    Attributes:
        description: final state of the job, as the scheduler names it.
        canceled: whether a user canceled the job.
    """

    description: str
    canceled: bool


@dataclass(frozen=True)
class QueueSnapshot:
    """Snapshot of the waiting and running jobs of a scheduler.

    Attributes:
        backend: dotted name of the backend's class (`LaunchRecord.backend`).
        cluster: name of the cluster.
        users: users whose jobs were queried.
        states: states of the scheduler by job id (`PENDING`, `RUNNING`, ...).
        job_ends: ends of recently ended jobs by job id.
        pending_reasons: known reasons why jobs wait, by job id.
    """

    backend: str
    cluster: str
    users: frozenset[str]
    states: Mapping[str, str]
    job_ends: Mapping[str, JobEnd] = field(default_factory=dict)
    pending_reasons: Mapping[str, str] = field(default_factory=dict)

    def covers(self, launch_record: LaunchRecord) -> bool:
        """Return whether the job of a launch record belongs to this queue, by backend, cluster and user."""
        is_same_cluster = (launch_record.backend, launch_record.cluster) == (self.backend, self.cluster)
        return is_same_cluster and launch_record.user in self.users


def _get_job_state(queue: QueueSnapshot | None, job_id: str) -> str | None:
    """Return the state of a job in `queue`; "" if it has left the queue; None without a job or a queue."""
    return queue.states.get(job_id, "") if queue is not None and job_id else None


def read_runs(folder: Path) -> list[RunRecord]:
    """Return a record of every run in `folder` (`read_run`)."""
    return [read_run(run) for run in find_runs(folder)]


def read_run(folder: Path, queues: Sequence[QueueSnapshot] = ()) -> RunRecord:
    """Return the record of the run in `folder`, with state `unreadable` and an `error` if a file cannot be read.

    Args:
        folder: run folder.
        queues: snapshots of schedulers' queues. A job that none of them covers is assumed to be in its queue.
    """
    folder = folder.absolute()
    record = RunRecord(
        folder, folder.parent.parent.name, folder.parent.name, parse_seed(folder) or 0, state="unreadable"
    )
    try:
        status, launch_record = read_status(folder), read_launch_record(folder)
        if launch_record is not None:
            record = replace(record, backend=launch_record.backend, log=launch_record.log)
        if status is None and launch_record is None:
            return replace(record, state="lost", error=NO_RECORD_ERROR)
        queue = next((queue for queue in queues if launch_record is not None and queue.covers(launch_record)), None)
        if status is not None:
            state, error_text = _determine_started_state(folder, status, queue)
            job_id = status.job_id
        if launch_record is not None and (
            status is None or (status.attempt <= launch_record.attempt and state != "running")
        ):
            queued_state, queued_error = _determine_queued_state(launch_record, queue)
            if status is None or queued_state == "queued":
                state, error_text, job_id = queued_state, queued_error, launch_record.job_id
    except RunFolderError as error:
        return replace(record, error=str(error))
    pending_reason = queue.pending_reasons.get(job_id, "") if queue is not None and state == "queued" else ""
    if status is None:
        assert launch_record is not None
        return replace(
            record,
            state=state,
            error=error_text,
            pending_reason=pending_reason,
            overrides=split_overrides(launch_record.overrides),
            host=launch_record.host,
            job_id=job_id,
            updated=launch_record.submitted,
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
        shared_factors=status.shared,
        prerequisites=tuple(Path(prerequisite.folder).absolute() for prerequisite in status.prerequisites),
        error=error_text,
        pending_reason=pending_reason,
        host=status.host,
        job_id=job_id,
        pid=status.pid,
        started=status.started,
        updated=status.updated,
    )


def _determine_queued_state(launch_record: LaunchRecord, queue: QueueSnapshot | None) -> tuple[RunState, str]:
    """Return the state of a launched run that has not started, and an error text."""
    if launch_record.canceled:
        return "canceled", f"canceled before it started: {launch_record.canceled}"
    if launch_record.error:
        return "lost", launch_record.error
    if not launch_record.job_id:
        alive_file = Path(launch_record.sweep) / LAUNCHER_ALIVE_NAME
        if process_seems_alive(launch_record.machine, launch_record.pid, launch_record.process_start, alive_file):
            return "queued", ""
        return (
            "lost",
            f"the launcher (process {launch_record.pid} on {launch_record.host}) ended before it started this run",
        )
    if queue is None or _get_job_state(queue, launch_record.job_id) != "":
        return "queued", ""
    job_end = queue.job_ends.get(launch_record.job_id)
    if job_end is not None and job_end.canceled:
        return "canceled", f"canceled before it started: job {launch_record.job_id} ({job_end.description})"
    return "lost", f"job {launch_record.job_id} left the queue before the run had started"


def _determine_started_state(folder: Path, status: Status, queue: QueueSnapshot | None) -> tuple[RunState, str]:
    """Return the state of a started run, from its status file, owner process and scheduler job, and an error text."""
    job_state = _get_job_state(queue, status.job_id)
    if status.state == "preempted" and job_state:
        return "queued", ""  # the job was requeued
    if status.state != "running":
        return status.state, status.error
    owner = ownership.read_owner(folder)
    owner_file = folder / ownership.FILE_NAME
    if owner and job_state != "" and process_seems_alive(owner.machine, owner.pid, owner.process_start, owner_file):
        return "running", status.error
    if job_state:
        return "queued", ""  # the job was requeued, and its process has not started yet
    message = (
        f"process {status.pid} on {status.host} ended without recording an outcome (possibly SIGKILL, out of memory or "
        "a node failure)"
    )
    return "lost", message
