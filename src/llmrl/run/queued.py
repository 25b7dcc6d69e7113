"""`queued.json`, the record of the latest launcher that accepted a run, written before any process works on the run.

It distinguishes waiting runs from runs that were never launched, and gives the file with the job's output. Only the
launcher writes it. The run writes `status.json`, so neither can overwrite the other's record.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import parse_record, read_json_object
from llmrl.run.files import write_json
from llmrl.run.status import PrerequisiteRecord

log = logging.getLogger(__name__)

FILE_NAME = "queued.json"
LAUNCHER_ALIVE_NAME = "launcher.alive"
"""File in the folder of a launch, which the launching process keeps open and touches until it ends."""

_OPTIONAL_FIELD_DEFAULTS: dict[str, list[Any]] = {"other_run_folders": [], "after": []}
"""Fields that are written only if they are not empty. Most runs have a process of their own and no prerequisites."""


@dataclass(frozen=True)
class LaunchRecord:
    """The record of a launch: the process that launched a run, and the backend that executes it.

    Attributes:
        backend: dotted name of the backend's class (`llmrl.sweeps.backends`).
        attempt: number of previous attempts; the run has started once its status has a higher number.
        job_id: scheduler's id of the job, `123`, or `123_4` in an array; empty if the backend has no scheduler.
        machine, pid, process_start: launching process, as in `Owner`; without a scheduler, waiting runs end with it.
        host: host name of the launching machine.
        sweep: folder of the launch.
        log: file for the output of the job.
        cluster, user: cluster and user of the scheduler's queue; empty without a scheduler.
        submitted: time of the launch, Unix seconds.
        code: digest of the package's code at that time (`compute_code_digest`).
        overrides: Hydra overrides of this run.
        error: reason why the scheduler refused the job; empty if it accepted it.
        canceled: who or what canceled the run before it started; empty if it was not canceled.
        other_run_folders: folders of the other runs that the same process computes.
        after: runs of this launch that must be finished before it starts.
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
    canceled: str = ""
    other_run_folders: list[str] = field(default_factory=list)
    after: list[PrerequisiteRecord] = field(default_factory=list)

    def write(self, folder: Path) -> None:
        """Replace the record in the run folder `folder`, atomically."""
        content = {key: value for key, value in asdict(self).items() if value or key not in _OPTIONAL_FIELD_DEFAULTS}
        write_json(folder / FILE_NAME, content)


def read_launch_record(folder: Path) -> LaunchRecord | None:
    """Return the record in the run folder `folder`; None if no launcher has accepted the run.

    Raises:
        RunFolderError: the file is not a valid record.
    """
    path = folder / FILE_NAME
    try:
        return parse_record(LaunchRecord, {**_OPTIONAL_FIELD_DEFAULTS, **read_json_object(path)})
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(f"{path} cannot be read ({error}); delete that file") from error


def record_cancellation(folder: Path, reason: str) -> None:
    """Record that a waiting run was canceled; `reason` states by whom or what.

    If the run starts nevertheless, its attempt number is higher and the record no longer counts. If the record cannot
    be written, a warning is logged.
    """
    try:
        launch_record = read_launch_record(folder)
        if launch_record is not None:
            replace(launch_record, canceled=reason).write(folder)
    except RunFolderError as error:
        log.warning("%s: the run is canceled, but this could not be recorded: %s", folder, error)


def warn_of_changed_code(folder: Path, attempt: int, code_digest: str) -> None:
    """Log a warning if the code of `attempt`, by its `code_digest`, differs from the code at the time of the launch."""
    try:
        launch_record = read_launch_record(folder)
    except RunFolderError as error:
        log.warning("%s", error)
        return
    if launch_record is not None and launch_record.attempt == attempt - 1 and launch_record.code != code_digest:
        log.warning(
            "the code has changed between submission (digest %s) and start (%s): this run uses the present code",
            launch_record.code,
            code_digest,
        )
