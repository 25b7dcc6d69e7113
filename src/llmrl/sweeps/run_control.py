"""Control of the runs of a folder: records with information from schedulers, cancellation, and removal of files.

Symbolic links are never followed.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.folder_files import open_folder
from llmrl.results.run_records import RESUMABLE_STATES, JobEnd, RunRecord, find_runs, read_run, read_runs
from llmrl.run import ownership
from llmrl.run.folder import parse_seed
from llmrl.run.queued import LAUNCHER_ALIVE_NAME, read_launch_record, record_cancellation
from llmrl.run.status import read_status
from llmrl.sweeps.scheduling import find_job_ends, load_scheduler, query_schedulers

_SCHEDULER_JOB_ID_PATTERN = re.compile(r"[0-9]+(_[0-9]+)?")
"""Pattern of valid job ids. Another text could act as an option of a scheduler's command."""
UNSETTLED_STATES = ("running", "queued", "lost", "preempted")
"""States for which a scheduler may have newer information than the run folder."""


def query_run_records(folder: Path, strict: bool = False) -> list[RunRecord]:
    """Return a record of every run in `folder`, at any depth, with the latest states of schedulers' jobs.

    Args:
        folder: folder of runs.
        strict: whether to raise if a scheduler that is needed cannot be queried.

    Raises:
        RunFolderError: there is no such folder.
        SchedulerError: a scheduler cannot be queried, and `strict` is set.
    """
    runs = read_runs(folder)
    pending_folders = [run.folder for run in runs if run.job_id and run.state in UNSETTLED_STATES]
    queues = query_schedulers(pending_folders, strict) if pending_folders else []
    if not queues:
        return runs
    backends = {queue.backend for queue in queues}
    updated_runs = [read_run(run.folder, queues) if run.backend in backends else run for run in runs]
    job_ends: dict[tuple[str, str], JobEnd] = {}
    for backend in backends:
        ended_runs = [run for run in updated_runs if run.backend == backend and run.state in ("lost", "preempted")]
        job_ids = {run.job_id for run in ended_runs if run.job_id}
        job_ends |= {(backend, job): end for job, end in find_job_ends(backend, job_ids, queues).items()}
    return [
        _add_job_end(run, job_ends[run.backend, run.job_id])
        if (run.backend, run.job_id) in job_ends and run.state in RESUMABLE_STATES
        else run
        for run in updated_runs
    ]


def _add_job_end(run: RunRecord, end: JobEnd) -> RunRecord:
    """Return the record of an unfinished run with the end of its job in the error text."""
    error = f"{run.error} ({end.description})"
    if run.state == "lost" and run.attempt == 0 and end.canceled:
        return replace(run, state="canceled", error=error)
    return replace(run, error=error)


def cancel_runs(runs: Sequence[RunRecord]) -> tuple[int, int, list[str]]:
    """Stop the running and waiting runs of `runs`; running ones save first.

    Returns:
        Number of canceled scheduler jobs, number of local processes that got a signal to stop, and a text for each run
        that could not be stopped.

    Raises:
        RunFolderError: a process, or the queue of a local launcher, also has runs that are not in `runs`, and can only
            be stopped as a whole. If it is a process, no run has been canceled; if it is a queue, some may have been.
        SchedulerError: a scheduler rejected the request.
    """
    active_runs = [run for run in runs if run.state in ("running", "queued")]
    _check_peers_are_included(active_runs)
    scheduled_runs: dict[str, list[RunRecord]] = {}  # by backend
    unreachable_texts: list[str] = []
    local_runs: list[RunRecord] = []
    for run in active_runs:
        try:
            is_scheduled = bool(run.job_id) and load_scheduler(run.backend) is not None
            if is_scheduled and not _SCHEDULER_JOB_ID_PATTERN.fullmatch(run.job_id):
                raise ConfigError("a job id must be a number, or a number and a task such as 12_3")
        except ConfigError as error:
            unreachable_texts.append(f"{run.folder} ({run.state} as job {run.job_id}; {error})")
            continue
        if is_scheduled:
            scheduled_runs.setdefault(run.backend, []).append(run)
        else:
            local_runs.append(run)
    n_jobs = 0
    for backend, runs_of_backend in scheduled_runs.items():
        scheduler = load_scheduler(backend)
        assert scheduler is not None
        job_ids = list(dict.fromkeys(run.job_id for run in runs_of_backend))
        scheduler.cancel(job_ids)
        n_jobs += len(job_ids)
        for run in runs_of_backend:
            if run.state == "queued":
                record_cancellation(run.folder, f"job {run.job_id}, with llmrl-sweep cancel")
    signaled_pids: set[int] = set()
    folders = {run.folder for run in active_runs}
    for run in local_runs:
        pid = _find_running_pid(run) if run.state == "running" else None
        if pid is None:  # the run waits, or runs on another machine
            pid = _find_launcher_pid(run, folders)
        if pid is None:
            unreachable_texts.append(f"{run.folder} ({run.state} on {run.host})")
        elif pid not in signaled_pids:
            os.kill(pid, signal.SIGTERM)
            signaled_pids.add(pid)
    return n_jobs, len(signaled_pids), unreachable_texts


def _check_peers_are_included(active_runs: Sequence[RunRecord]) -> None:
    """Raise RunFolderError if the process or job of a run also computes active runs that are not in `active_runs`."""
    folders = {run.folder for run in active_runs}
    for run in active_runs:
        launch_record = read_launch_record(run.folder)
        peer_folders = [Path(folder) for folder in launch_record.other_run_folders] if launch_record is not None else []
        active_peers = [
            folder
            for folder in peer_folders
            if folder not in folders and read_run(folder).state in ("running", "queued")
        ]
        if active_peers:
            location = f"job {run.job_id}" if run.job_id else "a process"
            remainder = f" and {len(active_peers) - 1} more" if len(active_peers) > 1 else ""
            raise RunFolderError(
                f"{run.folder} is computed by {location} together with {active_peers[0]}{remainder}, which would stop, "
                f"too; cancel all of them: {os.path.commonpath([run.folder, *active_peers])}"
            )


def _find_running_pid(run: RunRecord) -> int | None:
    """Return the id of the local process that computes a run; None if it does not have the owner file open."""
    try:
        owner = ownership.read_owner(run.folder)
    except RunFolderError:
        return None
    if owner is None or not ownership.process_has_open_for_writing(owner.pid, run.folder / ownership.FILE_NAME):
        return None
    return owner.pid


def _find_launcher_pid(run: RunRecord, canceled_folders: set[Path]) -> int | None:
    """Return the process id of the local launcher of a waiting run; None if it is not on this machine.

    Raises:
        RunFolderError: the launcher also has runs that are not in `canceled_folders`.
    """
    launch_record = read_launch_record(run.folder)
    if launch_record is None or not ownership.process_has_open_for_writing(
        launch_record.pid, Path(launch_record.sweep) / LAUNCHER_ALIVE_NAME
    ):
        return None
    peer_folders = [
        folder
        for folder in find_runs(run.folder.parent.parent)
        if folder not in canceled_folders and _belongs_to_launch(folder, launch_record.sweep)
    ]
    if peer_folders:
        raise RunFolderError(
            f"{run.folder} waits in the queue of process {launch_record.pid}, which also has {peer_folders[0]} and "
            f"{len(peer_folders) - 1} more; a local queue stops as a whole: cancel {run.folder.parent.parent}"
        )
    return launch_record.pid


def _belongs_to_launch(folder: Path, sweep: str) -> bool:
    """Return whether a run waits in the queue of the launcher of `sweep`, or is computed by it."""
    try:
        launch_record, status = read_launch_record(folder), read_status(folder)
    except RunFolderError:
        return False
    if launch_record is None or launch_record.sweep != sweep:
        return False
    return status is None or status.attempt <= launch_record.attempt or status.state == "running"


DESCRIPTION_BY_REMOVABLE_KIND = {
    "backups": "content that reruns have moved aside (backup_<k>/)",
    "checkpoints": "checkpoints of finished runs, which can then no longer be evaluated or used by other runs",
    "launches": "output of jobs and files of backends (.sweeps/ in an output root), of launches that have ended",
    "unfinished": "folders of runs that are neither finished, running nor waiting, with checkpoints and paid replies",
}
"""Kinds of removable files and folders, with descriptions."""


def find_removable_paths(folder: Path, runs: Sequence[RunRecord], kinds: Sequence[str]) -> list[Path]:
    """Return the removable files and folders of `kinds`, including links, except those of active runs."""
    paths: list[Path] = []
    for run in (run for run in runs if run.state not in ("running", "queued")):
        if "unfinished" in kinds and run.state in RESUMABLE_STATES:
            paths.append(run.folder)
            continue
        if "backups" in kinds:
            paths += sorted(run.folder.glob("backup_*"))
        if "checkpoints" in kinds and run.state == "finished":
            paths += sorted(run.folder.glob("checkpoints"))
    if "launches" in kinds:
        records = [read_launch_record(run.folder) for run in runs if run.state in ("running", "queued")]
        active_sweep_folders = {Path(record.sweep) for record in records if record is not None}
        paths += [path for path in _find_launch_files(folder.absolute()) if path not in active_sweep_folders]
    return paths


def _find_launch_files(folder: Path) -> Iterator[Path]:
    """Yield the content of each folder `.sweeps` in `folder`, at any depth, sorted; no link is followed."""
    for parent, folders, _ in os.walk(folder):
        folders.sort()
        if ".sweeps" in folders:
            folders.remove(".sweeps")
            launch_folder = Path(parent) / ".sweeps"
            yield from [launch_folder] if launch_folder.is_symlink() else sorted(launch_folder.iterdir())


def compute_disk_usage(path: Path) -> int:
    """Return the size of a file or folder, bytes; targets of links are not counted."""
    if not stat.S_ISDIR(path.lstat().st_mode):
        return path.lstat().st_size
    return sum((Path(parent) / name).lstat().st_size for parent, _, names in os.walk(path) for name in names)


def remove_path(folder: Path, path: Path) -> None:
    """Remove a file or folder, and the folder of a group of runs if it becomes empty.

    Symbolic links are not followed, even if another process puts one in the place of a folder meanwhile
    (`open_folder`). Links inside a removed folder are removed, but not their targets.

    Args:
        folder: folder that the user has named.
        path: path inside `folder`, or `folder` itself.

    Raises:
        RunFolderError: the path is or contains a symbolic link, or cannot be removed.
    """
    root = folder.absolute()  # its own path may contain links, because the user has named it
    if path == root:
        root = root.parent
    names = path.relative_to(root).parts
    try:
        with open_folder(root, names[:-1]) as parent_fd:
            mode = os.lstat(names[-1], dir_fd=parent_fd).st_mode
            if stat.S_ISLNK(mode):
                raise RunFolderError(f"{path} is a symbolic link, which is not removed")
            if stat.S_ISDIR(mode):
                shutil.rmtree(names[-1], dir_fd=parent_fd)
            else:
                os.unlink(names[-1], dir_fd=parent_fd)
            has_empty_parent = parse_seed(path) is not None and len(names) > 1 and not os.listdir(parent_fd)  # noqa: PTH208
        if has_empty_parent:
            with open_folder(root, names[:-2]) as parent_fd:
                os.rmdir(names[-2], dir_fd=parent_fd)
    except OSError as error:
        raise RunFolderError(
            f"{path} is not removed: {error.strerror or error} (is there a link in the path?)"
        ) from error
