"""Run folders as they stand on disk: one `RunRecord` each, whatever state they are in.

Reads files only, so it works on a folder copied from a cluster. What a scheduler knows can be added (`queues`).
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import open_file
from llmrl.core.plain_data import read_object
from llmrl.run import ownership
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.folder import split_overrides
from llmrl.run.folder_names import is_run_folder, old_layout, seed_of
from llmrl.run.heartbeat import is_fresh
from llmrl.run.metrics import FILE_NAME as METRICS_NAME
from llmrl.run.metrics import KIND, X
from llmrl.run.queued import Queued, read_queued
from llmrl.run.status import SUMMARY_NAME, RunProgress, RunState, Status, read_status

log = logging.getLogger(__name__)

State = RunState | Literal["queued", "cancelled", "lost", "unreadable"]
"""A run's state as a reader sees it. `queued`: a launcher has taken it on, it waits. `cancelled`: the user took it back
before it began. `lost`: its process, or its place in the queue, is gone without a word (kill -9, out of memory, a dead
machine). `unreadable`: a record is damaged or of a newer llmrl."""

UNFINISHED: tuple[State, ...] = ("failed", "stopped", "preempted", "budget_exhausted", "cancelled", "lost")
"""States in which nobody works on a run and the same command would go on with it."""

_NOT_RUNS = {"checkpoints", "evaluation", "videos", "llm_cache", "sources", "__pycache__"}
_TAIL_BYTES = 16_384
_LISTED = 12
"""Runs that an error names."""
NOTHING_RECORDED = "no process has got far enough to record anything"


@dataclass(frozen=True)
class RunRecord:
    """What is known of one run.

    Attributes:
        folder: the run folder.
        name: folder of the experiment or sweep under the output root.
        group: `<label>-<hash>`: runs of one group are the seeds of one experiment.
        seed: the seed.
        state: see `State`.
        attempt: attempts so far; 0 if none has started.
        overrides: what was typed, `{key: value}`, without the seed and what cannot change numbers.
        llm: label of the language model behind the results; empty if none.
        env: name of the environment; empty if the run never got as far as that.
        progress: how far it is.
        result: the scalar of a finished run.
        shared: what it has in common with other runs, see `llmrl.run.shared_factors`.
        error: last line of what went wrong.
        waits: why its job waits, as far as a scheduler says; empty for others.
        host, job_id: where it runs, ran, or waits; `job_id` is the scheduler's, or empty.
        backend: dotted name of the class that computes it; empty for a run that was started by itself.
        pid: of the latest attempt; 0 if none has started.
        log: file with what its job printed; empty if it was started by itself.
        started, updated: Unix time of the latest attempt's start and of the latest news, seconds; 0 if none.
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
        """Hash of the config, as the folder's name ends."""
        return self.group.rpartition("-")[2]

    @property
    def reference(self) -> str:
        """What commands take to find the run, `run:<hash>/s<seed>`."""
        return f"run:{self.digest}/s{self.seed}"

    def summary(self) -> dict[str, Any]:
        """The content of `summary.json`; empty where there is none that can be read."""
        try:
            return read_object(self.folder / SUMMARY_NAME)
        except (FileNotFoundError, ValueError):
            return {}

    def last_metrics(self) -> dict[str, Any]:
        """The newest value of each counter and metric in the last whole rows of `metrics.jsonl`; empty without rows.

        Rows of different kinds follow each other, so one row alone tells little. Reads the end of the file only.
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
                    continue  # the first is cut where reading began
        numbers = (int, float, type(None))
        return {name: x for name, x in newest.items() if name not in (KIND, X) and isinstance(x, numbers)}


def find_runs(folder: Path) -> list[Path]:
    """All run folders in and under `folder` (which may be one), sorted by name, seeds by number.

    Those of versions that named folders otherwise are left out, with a warning.

    Raises:
        RunFolderError: there is no such folder, or it is, or only has, runs of a version that named folders otherwise.
    """
    if not folder.is_dir():
        raise RunFolderError(f"there is no folder {folder}; give one of runs, such as outputs or outputs/<name>")
    found = list(_walk(folder))
    old = [said for each in found if (said := old_layout(each))]
    runs = [each for each in found if not old_layout(each)]
    if old and not runs:
        raise RunFolderError(old[0] + (f" (there are {len(old) - 1:,} more)" if len(old) > 1 else ""))
    if old:
        _warn(f"{len(old):,} left out: {old[0]}")
    return sorted(runs, key=lambda run: (str(run.parent), _seed(run)))


@functools.cache
def _warn(text: str) -> None:
    """Say it once, however often a folder is looked at."""
    log.warning("%s", text)


def only_run(folder: Path) -> Path:
    """Return the one run in and under `folder`, which may be it.

    Raises:
        RunFolderError: there is none, or several, which are listed.
    """
    if (folder / CONFIG_NAME).is_file() and not old_layout(folder):
        return folder
    runs = find_runs(folder)
    if len(runs) != 1:
        raise RunFolderError(f"{folder} has {_several(runs)}")
    return runs[0]


def _several(runs: Sequence[Path]) -> str:
    """Runs as an error lists them."""
    listed = "".join(f"\n  {run}" for run in runs[:_LISTED])
    more = f"\n  and {len(runs) - _LISTED:,} more" if len(runs) > _LISTED else ""
    if not runs:
        return "no run in it; give one like outputs/<name>/<run>/s0"
    return f"{len(runs):,} runs:{listed}{more}\nGive one of them"


def _walk(folder: Path) -> Iterator[Path]:
    if is_run_folder(folder) or old_layout(folder):
        yield folder
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir() and entry.name not in _NOT_RUNS and not entry.name.startswith((".", "backup_")):
                yield from _walk(Path(entry.path))


@dataclass(frozen=True)
class JobEnd:
    """How a scheduler's job ended.

    Attributes:
        word: in the scheduler's words.
        cancelled: whether somebody took it back.
    """

    word: str
    cancelled: bool


@dataclass(frozen=True)
class Queue:
    """What a scheduler has waiting or running.

    Attributes:
        backend: whose jobs these are, see `Queued.backend`.
        cluster: its name.
        users: whose jobs were asked for.
        states: state by job id, in the scheduler's words (`PENDING`, `RUNNING`, ...).
        ended: the same of jobs that ended lately.
        reasons: why jobs wait, in words, of those that do and whose reason is known.
    """

    backend: str
    cluster: str
    users: frozenset[str]
    states: Mapping[str, str]
    ended: Mapping[str, JobEnd] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)

    def knows(self, queued: Queued) -> bool:
        """Return whether a run's job would be in this queue, and is not another cluster's or somebody else's."""
        ours = (queued.backend, queued.cluster) == (self.backend, self.cluster)
        return ours and queued.user in self.users


def _job_state(queues: Sequence[Queue], queued: Queued | None, job_id: str) -> str | None:
    """State of a run's job: empty if it is gone; None if none of these queues can know."""
    if queued is None or not job_id:
        return None
    return next((queue.states.get(job_id, "") for queue in queues if queue.knows(queued)), None)


def _reason(queues: Sequence[Queue], queued: Queued | None, job_id: str) -> str:
    """Why a run's job waits; empty if none of these queues knows."""
    if queued is None:
        return ""
    return next((queue.reasons.get(job_id, "") for queue in queues if queue.knows(queued)), "")


def read_runs(folder: Path, queues: Sequence[Queue] = ()) -> list[RunRecord]:
    """A record of every run in and under `folder`; see `read_run`."""
    return [read_run(run, queues) for run in find_runs(folder)]


def read_run(folder: Path, queues: Sequence[Queue] = ()) -> RunRecord:
    """The record of the run in `folder`; never raises for what is in it.

    Args:
        folder: a run folder.
        queues: what schedulers have waiting or running; a job that none of them can know is believed to be there still.
    """
    folder = folder.absolute()
    place: dict[str, Any] = {
        "folder": folder,
        "name": folder.parent.parent.name,
        "group": folder.parent.name,
        "seed": _seed(folder),
    }
    try:
        status, queued = read_status(folder), read_queued(folder)
    except RunFolderError as error:
        return RunRecord(**place, state="unreadable", error=str(error))
    launched: dict[str, Any] = {} if queued is None else {"backend": queued.backend, "log": queued.log}
    if status is None:
        if queued is None:
            return RunRecord(**place, state="lost", error=NOTHING_RECORDED)
        state, error_text = _queued_state(queued, queues)
        return RunRecord(
            **place,
            **launched,
            state=state,
            error=error_text,
            waits=_reason(queues, queued, queued.job_id) if state == "queued" else "",
            overrides=split_overrides(queued.overrides),
            host=queued.host,
            job_id=queued.job_id,
            updated=queued.submitted,
        )
    try:
        state, error_text = _started_state(folder, status, queued, queues)
    except RunFolderError as error:
        return RunRecord(**place, **launched, state="unreadable", error=str(error))
    job = status.job_id
    taken_on_again = queued is not None and status.attempt <= queued.attempt and state != "running"
    if queued is not None and taken_on_again and _queued_state(queued, queues)[0] == "queued":
        state, error_text, job = "queued", "", queued.job_id
    return RunRecord(
        **place,
        **launched,
        state=state,
        attempt=status.attempt,
        overrides=split_overrides(status.overrides),
        llm=status.llm,
        env=status.env,
        progress=status.progress,
        result=status.result,
        shared=status.shared,
        error=error_text,
        waits=_reason(queues, queued, job) if state == "queued" else "",
        host=status.host,
        job_id=job,
        pid=status.pid,
        started=status.started,
        updated=status.updated,
    )


def _queued_state(queued: Queued, queues: Sequence[Queue]) -> tuple[State, str]:
    """Whether what was taken on still waits, and if not, what became of it."""
    if queued.cancelled:
        return "cancelled", f"cancelled before it began: {queued.cancelled}"
    if queued.error:
        return "lost", queued.error
    if not queued.job_id:
        if queued.launcher_lives():
            return "queued", ""
        return "lost", f"the launcher (process {queued.pid} on {queued.host}) ended before this run's turn"
    if _job_state(queues, queued, queued.job_id) != "":
        return "queued", ""
    for queue in queues:
        end = queue.ended.get(queued.job_id) if queue.knows(queued) else None
        if end is not None and end.cancelled:
            return "cancelled", f"cancelled before it began: job {queued.job_id} ({end.word})"
    return "lost", f"job {queued.job_id} left the queue before the run had started"


def _started_state(folder: Path, status: Status, queued: Queued | None, queues: Sequence[Queue]) -> tuple[State, str]:
    """The state of a run that has been started, its process's and the queue's news included."""
    in_queue = _job_state(queues, queued, status.job_id)
    if status.state == "preempted" and in_queue:
        return "queued", ""  # put back into the queue, or about to start again
    if status.state != "running":
        return status.state, status.error
    holder = ownership.read_owner(folder)
    if in_queue != "" and holder is not None and _alive(holder, folder / ownership.FILE_NAME):
        return "running", status.error
    if in_queue:
        return "queued", ""  # between two attempts
    gone = f"process {status.pid} on {status.host} ended without a word (kill -9, out of memory, a dead machine?)"
    return "lost", gone


def _alive(holder: ownership.Owner, path: Path) -> bool:
    """As `ownership.is_alive`, but by this machine's clock: a reader writes nothing into the folder."""
    if holder.machine == ownership.this_machine():
        return ownership.process_exists(holder.machine, holder.pid, holder.process_start)
    return is_fresh(path)


def _seed(folder: Path) -> int:
    return seed_of(folder) or 0
