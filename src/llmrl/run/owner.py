"""One process per run folder, without file locks (which shared file systems of clusters do not all honour).

The process that works on a folder keeps a file `owner.json` in it, made with O_CREAT | O_EXCL, and touches it
every half minute. A process that finds one made by somebody else decides whether that owner is still there:

- same machine: by whether that very process still exists, so that a killed run can be resumed at once;
- same scheduler job, started again (requeued): the earlier start is gone by construction;
- otherwise: by the age of the last touch, measured with the file system's clock.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path

from llmrl.core.disk import remove
from llmrl.core.errors import RunFolderError, RunInUse
from llmrl.core.fields import read_object, record_of
from llmrl.run.folder import unwritable
from llmrl.run.heartbeat import STALE_AFTER_S, Heartbeat

log = logging.getLogger(__name__)

FILE_NAME = "owner.json"
JOB_ID = "LLMRL_JOB_ID"
"""Tells a process the id of its scheduler's job, where that is not SLURM."""
_EMPTY_GRACE_S = 2.0
"""An owner file is empty for an instant between its creation and its writing; longer means its writer died there."""

_released = threading.Condition()


@dataclass(frozen=True)
class Owner:
    """Who works on a run folder. `machine` tells apart hosts, boots and containers: pids compare only inside one."""

    host: str
    machine: str
    pid: int
    process_start: str
    attempt: int
    job_id: str
    restarts: int
    token: str

    @staticmethod
    def this_process(attempt: int) -> Owner:
        pid = os.getpid()
        return Owner(
            host=socket.gethostname(),
            machine=this_machine(),
            pid=pid,
            process_start=process_start(pid) or "",
            attempt=attempt,
            job_id=job_id(),
            restarts=int(os.environ.get("SLURM_RESTART_COUNT", "0")),
            token=uuid.uuid4().hex,
        )

    def __str__(self) -> str:
        job = f", job {self.job_id}" if self.job_id else ""
        return f"process {self.pid} on {self.host}{job}"


class Ownership:
    """Holds a run folder for this process from construction until `release`.

    Args:
        folder: the run folder.
        attempt: of the run.
        stale_after_s: seconds after its last sign of life at which an owner on another machine counts as gone.
        anew: the run is to start anew, so an owner file that cannot be read is moved aside.

    Raises:
        RunInUse: another live process holds the folder.
        RunFolderError: it cannot be written, or its owner file cannot be read.
    """

    def __init__(
        self, folder: Path, attempt: int = 1, stale_after_s: float = STALE_AFTER_S, anew: bool = False
    ) -> None:
        self.folder, self._anew = folder, anew
        self.owner = Owner.this_process(attempt)
        self._path = folder / FILE_NAME
        self._stale_after_s = stale_after_s
        self._acquire()
        self._heartbeat = Heartbeat(self._path, still=lambda: self.held)

    @property
    def held(self) -> bool:
        """Whether the folder is still ours (another machine may have taken it over after a long suspension)."""
        try:
            current = read_owner(self.folder)
        except RunFolderError as error:
            log.error("%s", error)
            return False
        return current is not None and current.token == self.owner.token

    def release(self) -> None:
        """Let go of the folder; does nothing in a forked child or if the folder has been taken over."""
        self._heartbeat.stop()
        if os.getpid() == self.owner.pid and self.held:
            self._path.unlink(missing_ok=True)
            # Not for ever: at a last resort the thread that has the lock may be stuck.
            if _released.acquire(timeout=1.0):
                _released.notify_all()
                _released.release()

    def _acquire(self) -> None:
        for _ in range(100):
            try:
                descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                self._clear_stale()
                continue
            except OSError as error:
                raise unwritable(self.folder, error) from error
            try:
                with os.fdopen(descriptor, "w") as file:
                    json.dump(asdict(self.owner), file)
            except OSError as error:
                remove(self._path)  # an empty one would be in the way of the next process
                raise unwritable(self.folder, error) from error
            return
        raise RunFolderError(f"{self.folder} is being claimed by several processes at once; start this one again")

    def _clear_stale(self) -> None:
        """Remove an owner file whose process is gone; wait if that is not certain yet; raise if it is in use."""
        try:
            current = read_owner(self.folder)
        except RunFolderError:
            self._move_unreadable()
            return
        if current is None:
            age = _age(self._path)
            if age is None:
                return
            if age < _EMPTY_GRACE_S:
                time.sleep(0.05)
                return
        elif is_alive(current, self._path, self._stale_after_s):
            raise RunInUse(
                f"{self.folder} is in use by {current}. Wait for it or stop it. If that machine died, the folder is "
                f"free {self._stale_after_s / 60:g} minutes after its last sign of life (or delete {self._path.name})."
            )
        # Rename before removing: of several processes that found the same stale file only one moves it. One that
        # was overtaken has moved a fresh file, notices, and puts it back.
        aside = self._path.with_name(f".{FILE_NAME}.{self.owner.token}.tmp")
        try:
            self._path.rename(aside)
        except FileNotFoundError:
            return
        try:
            moved = _parse(aside)
        except RunFolderError:
            moved = None
        if moved is not None and (current is None or moved.token != current.token) and not self._path.exists():
            aside.rename(self._path)
            return
        aside.unlink(missing_ok=True)
        log.info("took over %s from %s, which is gone", self.folder, current or "a process that died while starting")

    def _move_unreadable(self) -> None:
        """Move an owner file that cannot be read aside, if the run is to start anew; else raise what is wrong with it,
        unless somebody may be writing it this instant."""
        age = _age(self._path)
        if age is None or age < _EMPTY_GRACE_S:
            time.sleep(0.05)
            return
        if not self._anew:
            read_owner(self.folder)  # raises, or has been written meanwhile
            return
        try:
            self._path.rename(self.folder / f"unreadable-{self.owner.token}-{FILE_NAME}")
        except OSError as error:
            raise unwritable(self.folder, error) from error
        log.warning("%s did not tell who works on the folder, and is moved aside", self._path)


def wait_for_release(at_most_s: float) -> None:
    """Wait until this process lets go of some folder, or so long: another process may let go of one meanwhile."""
    with _released:
        _released.wait(at_most_s)


def in_use(folder: Path) -> bool:
    """Whether a live process holds `folder`.

    Raises:
        RunFolderError: as `read_owner`.
    """
    owner = read_owner(folder)
    return owner is not None and is_alive(owner, folder / FILE_NAME)


def read_owner(folder: Path) -> Owner | None:
    """The process that holds `folder`, dead or alive; None if there is none (or it is just writing its name).

    Raises:
        RunFolderError: the owner file does not say who that is.
    """
    return _parse(folder / FILE_NAME)


def is_alive(owner: Owner, path: Path, stale_after_s: float = STALE_AFTER_S) -> bool:
    """Whether `owner`, read from the owner file `path`, still works on the folder."""
    if owner.machine == this_machine():
        return process_start(owner.pid) == owner.process_start
    if owner.job_id and owner.job_id == job_id() and int(os.environ.get("SLURM_RESTART_COUNT", "0")) > owner.restarts:
        return False
    age = _age(path)
    return age is not None and age < stale_after_s


def process_exists(machine: str, pid: int, start: str) -> bool:
    """Whether that very process is running here; false for one of another machine, which cannot be known."""
    return machine == this_machine() and process_start(pid) == start


def job_id() -> str:
    """The id of the scheduler's job this process belongs to (`123`, or `123_4` in a job array of SLURM's), or an empty
    string. Other schedulers' backends say it in `LLMRL_JOB_ID`."""
    if own := os.environ.get(JOB_ID):
        return own
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else os.environ.get("SLURM_JOB_ID", "")


def _parse(path: Path) -> Owner | None:
    try:
        if path.is_file() and path.stat().st_size == 0:
            return None
        return record_of(Owner, read_object(path))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(
            f"{path} does not tell who works on this folder ({error}). If nobody does, delete that file and repeat the "
            "command, or start the run anew with rerun=true, which moves the old content aside"
        ) from error


def this_machine() -> str:
    """What tells this host, boot and container apart from others: process ids compare only inside one."""
    parts = [socket.gethostname()]
    boot = Path("/proc/sys/kernel/random/boot_id")
    if boot.exists():
        parts += [boot.read_text().strip(), Path("/proc/self/ns/pid").readlink().name]
    return " ".join(parts)


def process_start(pid: int) -> str | None:
    """When process `pid` started (in a unit that only tells it from a later one of the same id); None if it is gone."""
    if not Path("/proc/self/stat").exists():  # not Linux: existence is all that can be known
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except PermissionError:
            pass
        return ""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in "ZX" else fields[19]  # a zombie has ended; its parent just has not noticed


def _age(path: Path) -> float | None:
    """Seconds since `path` was touched by the clock of its file system, which may differ from this machine's."""
    probe = path.with_name(f".clock.{uuid.uuid4().hex}.tmp")
    try:
        probe.touch()
        now = probe.stat().st_mtime
        return now - path.lstat().st_mtime
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unwritable(path.parent, error) from error
    finally:
        probe.unlink(missing_ok=True)
