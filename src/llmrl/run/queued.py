"""`queued.json`: the latest time a launcher took a run on, before any process works on it.

It tells runs that wait apart from runs nobody has asked for, and where to look for what a job printed. The launcher
writes it, the run itself never does, so the two cannot overwrite each other's news.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from llmrl.core.errors import RunFolderError
from llmrl.core.fields import read_object, record_of
from llmrl.run.files import write_json
from llmrl.run.heartbeat import is_fresh
from llmrl.run.owner import process_exists, this_machine

log = logging.getLogger(__name__)

FILE_NAME = "queued.json"
ALIVE_NAME = "launcher.alive"
"""File in a launch's folder that its process touches as long as it lives."""

_OF_ROWS = {"beside": [], "deaths": 0}
"""Fields that only runs have which share a process, and their values for all others."""


@dataclass(frozen=True)
class Queued:
    """Who took a run on.

    Attributes:
        backend: dotted name of the class that computes it (`llmrl.sweeps.backends`).
        attempt: attempts the run had had by then; it has started once its status tells of a later one.
        job_id: the scheduler's, `123` or `123_4` in an array; empty where a backend has no scheduler.
        machine, pid, process_start: the launching process; without a scheduler, the queue ends with it.
        host: its name.
        sweep: folder of the launch.
        log: file that gets what the job prints.
        cluster, user: whose queue the scheduler is asked for; empty where there is none.
        submitted: Unix time, seconds.
        code: digest of the package's code at that time (`run.provenance.code_digest`).
        overrides: what was typed for this run, as Hydra overrides.
        error: why the scheduler would not have it; empty if it has.
        cancelled: who or what cancelled it before it began; empty if nobody has.
        beside: folders of the other runs that its process computes; what ends the process ends them all.
        deaths: times that its process died in this launch, after which it was taken on again.
    """

    backend: str
    attempt: int
    job_id: str
    machine: str
    pid: int
    process_start: str
    host: str
    sweep: str
    log: str
    cluster: str
    user: str
    submitted: float
    code: str
    overrides: list[str]
    error: str = ""
    cancelled: str = ""
    beside: list[str] = field(default_factory=list)
    deaths: int = 0

    def write(self, folder: Path) -> None:
        """Replace the record in `folder`."""
        content = asdict(self)
        write_json(folder / FILE_NAME, {key: x for key, x in content.items() if x or key not in _OF_ROWS})

    def launcher_lives(self) -> bool:
        """Whether the launching process is there still; of another machine's, whether it has been heard of lately."""
        if self.machine == this_machine():
            return process_exists(self.machine, self.pid, self.process_start)
        return is_fresh(Path(self.sweep) / ALIVE_NAME)


def read_queued(folder: Path) -> Queued | None:
    """The record in `folder`; None if no launcher has taken the run on.

    Raises:
        RunFolderError: the file is not such a record.
    """
    path = folder / FILE_NAME
    try:
        return record_of(Queued, {**_OF_ROWS, **read_object(path)})
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(f"{path} cannot be read ({error}); delete that file") from error


def cancelled_by(folder: Path, who: str) -> None:
    """Write down that the user cancelled a run, which nobody has begun since it was taken on. One that begins all the
    same has a later attempt, and this counts no more; one that cannot be written down stays as it is.
    """
    try:
        queued = read_queued(folder)
        if queued is not None:
            replace(queued, cancelled=who).write(folder)
    except RunFolderError as error:
        log.warning("%s: it is cancelled, and that could not be written down: %s", folder, error)


def warn_of_changed_code(folder: Path, attempt: int, digest: str) -> None:
    """Say so if the code of `attempt`, by its digest, is not the code that a launcher took the run on with."""
    try:
        submission = read_queued(folder)
    except RunFolderError as error:
        log.warning("%s", error)
        return
    if submission is not None and submission.attempt == attempt - 1 and submission.code != digest:
        log.warning(
            "the code has changed between submission (digest %s) and start (%s): this run is computed by the code "
            "as it is now",
            submission.code,
            digest,
        )
