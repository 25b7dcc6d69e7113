"""Ownership of run folders: one process for each, without file locks, which not all cluster file systems support.

The process that works on a folder keeps a file `owner.json` in it, created with O_CREAT | O_EXCL, and touches it
every half minute. A process that finds the file of another owner decides whether that owner is alive:

- On the same machine, the owner is alive if its process exists, so a killed run can be resumed at once.
- If the scheduler has requeued the owner's job, and this process belongs to the later start, the owner is dead.
- Otherwise, the owner is alive if its last touch, by the clock of the file system, is recent (`STALE_AFTER_S`).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from llmrl.core.atomic_files import remove_file_ignoring_errors
from llmrl.core.errors import RunFolderError, RunInUse
from llmrl.core.plain_data import parse_record, read_json_object
from llmrl.core.threads import make_daemon_thread
from llmrl.run.folder import make_write_error

log = logging.getLogger(__name__)

FILE_NAME = "owner.json"
JOB_ID_VARIABLE = "LLMRL_JOB_ID"
"""Environment variable with the id of a process's scheduler job, for schedulers other than SLURM."""
HEARTBEAT_S = 30.0
"""Seconds between two touches."""
STALE_AFTER_S = 300.0
"""Age in seconds from which an untouched file means that its process is dead."""
_EMPTY_FILE_GRACE_S = 2.0
"""Seconds after which an empty owner file counts as left by a process that died between creating and writing it."""


class Heartbeat:
    """A thread that touches `path` from construction until `close`, while `is_owner()` is true."""

    def __init__(self, path: Path, is_owner: Callable[[], bool] = lambda: True) -> None:
        self._path, self._is_owner = path, is_owner
        self._stopped = threading.Event()
        # In a thread of its own, so that a long step of the main thread does not make the process look dead.
        make_daemon_thread("llmrl-heartbeat", self._touch_until_closed).start()

    def close(self) -> None:
        """Stop touching the file."""
        self._stopped.set()

    def _touch_until_closed(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S):
            try:
                if self._is_owner():
                    os.utime(self._path)
            except OSError as error:
                log.warning("could not touch %s: %s", self._path, error)


@dataclass(frozen=True)
class Owner:
    """The process that works on a run folder.

    Attributes:
        host: host name.
        machine: identifier of host, boot and container (`get_machine_id`), within which `pid` is unique.
        process_start: start time of the process (`get_process_start`), because a later process may have the same id.
        attempt: number of the run's attempt, from 1.
        job_id: id of the scheduler job (`get_job_id`); empty without one.
        restarts: number of times that SLURM has requeued the job.
        token: random identifier of this ownership.
    """

    host: str
    machine: str
    pid: int
    process_start: str
    attempt: int
    job_id: str
    restarts: int
    token: str

    @staticmethod
    def for_this_process(attempt: int) -> Owner:
        pid = os.getpid()
        return Owner(
            host=socket.gethostname(),
            machine=get_machine_id(),
            pid=pid,
            process_start=get_process_start(pid) or "",
            attempt=attempt,
            job_id=get_job_id(),
            restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            token=uuid.uuid4().hex,
        )

    def __str__(self) -> str:
        job_text = f", job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job_text}"


class Ownership:
    """Ownership of a run folder by this process, from construction until `release`.

    Args:
        folder: run folder.
        attempt: number of the run's attempt.

    Raises:
        RunInUse: another live process owns the folder.
        RunFolderError: the folder cannot be written, or its owner file cannot be read.
    """

    def __init__(self, folder: Path, attempt: int = 1) -> None:
        self.folder = folder
        self.owner = Owner.for_this_process(attempt)
        self._path = folder / FILE_NAME
        self._acquire()
        self._heartbeat = Heartbeat(self._path, is_owner=lambda: self.is_held)

    @property
    def is_held(self) -> bool:
        """True while this process owns the folder; after a long suspension, another machine may have taken it over."""
        try:
            owner = read_owner(self.folder)
        except RunFolderError as error:
            log.error("%s", error)
            return False
        return owner is not None and owner.token == self.owner.token

    def release(self) -> None:
        """Release the folder; in a forked child, or if the folder has been taken over, the owner file is kept."""
        self._heartbeat.close()
        self._file.close()
        if os.getpid() == self.owner.pid and self.is_held:
            self._path.unlink(missing_ok=True)

    def _acquire(self) -> None:
        for _ in range(100):
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._remove_stale_owner_file()
                continue
            except OSError as error:
                raise make_write_error(self.folder, error) from error
            self._file = os.fdopen(descriptor, "w")  # open until release, see `process_has_open_for_writing`
            try:
                json.dump(asdict(self.owner), self._file)
                self._file.flush()
            except OSError as error:
                with suppress(OSError):
                    self._file.close()
                remove_file_ignoring_errors(self._path)  # an empty owner file would block the next process
                raise make_write_error(self.folder, error) from error
            return
        raise RunFolderError(f"several processes try to own {self.folder} at the same time; repeat this command")

    def _remove_stale_owner_file(self) -> None:
        """Remove the owner file of a dead process; wait briefly if that is uncertain; raise if the folder is in use."""
        try:
            owner = read_owner(self.folder)
        except RunFolderError:
            if self._wait_if_incomplete():
                return
            raise
        if owner is None and self._wait_if_incomplete():
            return
        if owner is not None and is_owner_alive(owner, self._path):
            raise RunInUse(
                f"{self.folder} is in use by {owner}; wait for that process or stop it. If its machine has crashed, "
                f"the folder is free {STALE_AFTER_S / 60:g} minutes after the crash (or delete {self._path.name})."
            )
        # Rename before removing: of several processes that found the same stale file, only one can rename it. If that
        # process has renamed the file of a new owner instead, it reads this from the token and restores the file.
        temporary_path = self._path.with_name(f".{FILE_NAME}.{self.owner.token}.tmp")
        try:
            self._path.rename(temporary_path)
        except FileNotFoundError:
            return
        try:
            renamed_owner = read_owner(self.folder, temporary_path.name)
        except RunFolderError:
            renamed_owner = None
        is_new_owner = renamed_owner is not None and (owner is None or renamed_owner.token != owner.token)
        if is_new_owner and not self._path.exists():
            temporary_path.rename(self._path)
            return
        temporary_path.unlink(missing_ok=True)
        log.info("took over %s from %s, which is gone", self.folder, owner or "a process that died while starting")

    def _wait_if_incomplete(self) -> bool:
        """Return whether the owner file is missing or may not be completely written yet; if so, wait briefly."""
        age = _measure_touch_age(self._path)
        if age is not None and age >= _EMPTY_FILE_GRACE_S:
            return False
        time.sleep(0.05)
        return True


def is_in_use(folder: Path) -> bool:
    """Return whether a live process owns `folder`.

    Raises:
        RunFolderError: the owner file is not a valid record.
    """
    owner = read_owner(folder)
    return owner is not None and is_owner_alive(owner, folder / FILE_NAME)


def release_ended_job(folder: Path, ended_job_id: str) -> None:
    """Remove the owner file of a run folder if its owner belongs to a scheduler job of which all processes have ended.

    Another job can then take the run over at once.

    Raises:
        RunFolderError: the owner file is not a valid record.
    """
    owner = read_owner(folder)
    if owner is not None and owner.job_id == ended_job_id:
        (folder / FILE_NAME).unlink(missing_ok=True)


def read_owner(folder: Path, file_name: str = FILE_NAME) -> Owner | None:
    """Return the owner of `folder`, dead or alive; None without one, or if the owner file is still empty.

    Raises:
        RunFolderError: the owner file is not a valid record.
    """
    path = folder / file_name
    try:
        if path.is_file() and path.stat().st_size == 0:
            return None
        return parse_record(Owner, read_json_object(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(
            f"{path} is not a valid record of the process that uses this folder ({error}). If no process uses it, "
            "delete that file and repeat the command"
        ) from error


def is_owner_alive(owner: Owner, path: Path) -> bool:
    """Return whether the process `owner`, read from the owner file `path`, is alive, by the rules of this module."""
    if owner.machine == get_machine_id():
        return get_process_start(owner.pid) == owner.process_start
    if (
        owner.job_id
        and owner.job_id == get_job_id()
        and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > owner.restarts
    ):
        return False
    age = _measure_touch_age(path)
    return age is not None and age < STALE_AFTER_S


def process_seems_alive(machine: str, pid: int, process_start: str, touched_file: Path) -> bool:
    """Return whether a process is alive, without writing a file as `is_owner_alive` does to read its clock.

    Args:
        machine, pid, process_start: attributes `machine`, `pid` and `process_start` of its `Owner`.
        touched_file: file that the process touches (`Heartbeat`). On another machine, the process is alive if the
            file was touched in the last `STALE_AFTER_S` seconds, by this machine's clock.
    """
    if machine == get_machine_id():
        return get_process_start(pid) == process_start
    try:
        return time.time() - touched_file.stat().st_mtime < STALE_AFTER_S
    except OSError:
        return False


def process_has_open_for_writing(pid: int, path: Path) -> bool:
    """Return whether process `pid` has the file `path` open for writing. An owner has its owner file open.

    Unlike the content of that file, this cannot be forged by the user who wrote the folder. The result is False for
    processes of other users and machines, and on systems without `/proc`.
    """
    try:
        file_stat = path.lstat()
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed since the folder was listed
                if descriptor.lstat().st_mode & stat.S_IWUSR and os.path.samestat(descriptor.stat(), file_stat):
                    return True
    except OSError:
        return False
    return False


def get_job_id() -> str:
    """Return the id of this process's scheduler job, `123`, or `123_4` in a SLURM job array; empty without one.

    Backends of other schedulers set it in `LLMRL_JOB_ID`.
    """
    if job_id := os.environ.get(JOB_ID_VARIABLE):
        return job_id
    array_job_id, task_id = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array_job_id}_{task_id}" if array_job_id and task_id else os.environ.get("SLURM_JOB_ID", "")


def get_machine_id() -> str:
    """Return an identifier of this host, boot and container, within which process ids are unique."""
    parts = [socket.gethostname()]
    boot_id_path = Path("/proc/sys/kernel/random/boot_id")
    if boot_id_path.exists():
        parts += [boot_id_path.read_text().strip(), Path("/proc/self/ns/pid").readlink().name]
    return " ".join(parts)


def get_process_start(pid: int) -> str | None:
    """Return the start time of process `pid`, in clock ticks since boot (empty outside Linux); None if it is gone."""
    if not Path("/proc/self/stat").exists():  # other systems than Linux show only whether the process exists
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        stat_fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if stat_fields[0] in "ZX" else stat_fields[19]  # a zombie has ended


def _measure_touch_age(path: Path) -> float | None:
    """Return the seconds since `path` was touched, by the clock of its file system; None if it does not exist."""
    clock_file = path.with_name(f".clock.{uuid.uuid4().hex}.tmp")
    try:
        clock_file.touch()
        return clock_file.stat().st_mtime - path.lstat().st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        raise make_write_error(path.parent, error) from error
    finally:
        clock_file.unlink(missing_ok=True)
