"""`status.json`, the state of a run, for users, sweeps and later attempts. Each change replaces the file atomically."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from llmrl.core.errors import RunFolderError
from llmrl.core.plain_data import parse_record, parse_value, read_json_object
from llmrl.run.files import write_json
from llmrl.run.ownership import get_job_id

log = logging.getLogger(__name__)

FILE_NAME = "status.json"
SUMMARY_NAME = "summary.json"
"""File with the findings of a finished run, written before its status."""
LAYOUT_VERSION = 2
"""Version of the run folder's layout; raised when an older llmrl could misread a newer folder."""
StatusState = Literal["running", "finished", "failed", "stopped", "preempted", "budget_exhausted"]


@dataclass
class RunProgress:
    """The progress of a run. Attributes that are not known yet are None.

    Attributes:
        done, total: number of finished units, and of all units.
        unit: name of the units, e.g. `steps`.
        steps_per_second: finished units per second.
        eta_s: estimated seconds until the end.
        value: last objective or return (`ProgressBar.show_result`).
        proposed: text of the principal's last proposal; empty without one.
    """

    done: float = 0
    total: float | None = None
    unit: str = ""
    steps_per_second: float | None = None
    eta_s: float | None = None
    value: float | None = None
    proposed: str = ""

    @property
    def result_text(self) -> str:
        """Text with the last value and its proposal; empty if no value is known."""
        if self.value is None:
            return ""
        return f"objective {self.value:.4g} with {self.proposed}" if self.proposed else f"return {self.value:.4g}"


@dataclass(frozen=True)
class RunStage:
    """The stage of a run that waits for a prerequisite, another run that it needs.

    Attributes:
        name: kind of work, e.g. `pre-training`.
        run: name of the prerequisite, e.g. `preset:regimes/cleanup_pretrain, seed 0`.
        index, of: number of this stage, from 1, and total number of stages. The last stage is the run itself.
        fraction: finished fraction of the prerequisite, 0 to 1; None if not known yet.
        eta_s: estimated seconds until the stage ends; None if not known yet.
    """

    name: str
    run: str
    index: int
    of: int
    fraction: float | None = None
    eta_s: float | None = None

    def __str__(self) -> str:
        run = "" if self.name.endswith(self.run) else f" ({self.run})"
        return f"stage {self.index}/{self.of} {self.name}{run}"


@dataclass(frozen=True)
class PrerequisiteRecord:
    """A run that another run needs.

    Attributes:
        what: purpose of the run, e.g. `pre-training`.
        name: name of the run, e.g. `preset:regimes/cleanup_pretrain, seed 0`.
        folder: run folder.
    """

    what: str
    name: str
    folder: str


@dataclass
class Status:
    """The content of `status.json`.

    Attributes:
        state: state of the run. It remains `running` after a `kill -9`; `owner.json` shows whether the process exists.
            `budget_exhausted`: stopped before a call to a language model that could have cost more than allowed.
        attempt: 1 for the first start, one more for each resume or rerun.
        host, pid, job_id: host, process id and scheduler job of the latest attempt; `job_id` may be empty.
        llm: label of the run's language model; empty without one.
        progress: progress of the run.
        stage: stage while the run waits for a prerequisite; None while the run itself is computed.
        prerequisites: other runs that the run needs, in order of computation.
        env: name of the environment; empty until it is built.
        overrides: Hydra overrides of the command.
        shared: random factors that other runs share, by level (`llmrl.run.shared_factors`).
        result: scalar result of a finished run.
        error: reason why the run failed or stopped, in one line.
        started, updated: start of the latest attempt and time of this content, Unix seconds.
        format: version of the layout (`LAYOUT_VERSION`).
    """

    state: StatusState = "running"
    attempt: int = 1
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)
    job_id: str = field(default_factory=get_job_id)
    llm: str = ""
    env: str = ""
    overrides: list[str] = field(default_factory=list)
    shared: dict[str, list[str]] = field(default_factory=dict)
    progress: RunProgress = field(default_factory=RunProgress)
    stage: RunStage | None = None
    prerequisites: list[PrerequisiteRecord] = field(default_factory=list)
    result: float | None = None
    error: str = ""
    started: float = field(default_factory=time.time)
    updated: float = field(default_factory=time.time)
    format: int = LAYOUT_VERSION

    def write(self, folder: Path, durable: bool = True) -> None:
        """Replace the status file of `folder`; `durable` as in `atomic_write`.

        Raises:
            RunFolderError: the file cannot be written.
        """
        self.updated = time.time()
        write_json(folder / FILE_NAME, asdict(self), durable)


def read_latest_status(folder: Path, is_rerun: bool) -> Status | None:
    """Return the status of the latest attempt in `folder`; None if there is none, or if it cannot be read for a rerun.

    Raises:
        RunFolderError: the status cannot be read, and the run is not a rerun.
    """
    try:
        return read_status(folder)
    except RunFolderError as error:
        if not is_rerun:
            raise
        log.warning("%s", error)
        return None


def read_status(folder: Path) -> Status | None:
    """Return the status of the run in `folder`; None if it has not been started.

    Raises:
        RunFolderError: the file is not a valid status, is of a newer llmrl, or has the state `finished` although there
            is no `summary.json`.
    """
    path = folder / FILE_NAME
    try:
        content = read_json_object(path)
        if parse_value(content.get("format", LAYOUT_VERSION), int, "format") > LAYOUT_VERSION:
            raise RunFolderError(
                f"{folder} was written by a newer llmrl (layout {content['format']}, this one knows {LAYOUT_VERSION}); "
                "use that version for it, or another output_root"
            )
        status = parse_record(Status, {"stage": None, "prerequisites": [], **content})
        summary_path = folder / SUMMARY_NAME
        if status.state == "finished" and (summary_path.is_symlink() or not summary_path.is_file()):
            raise ValueError(f"its state is finished, but there is no {SUMMARY_NAME}, which every finished run has")
        return status
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise RunFolderError(
            f"{path} cannot be read ({error}). Delete that file and repeat the command, which resumes the run, or "
            "start the run anew with rerun=true, which moves the old content aside"
        ) from error


def read_progress(folder: Path) -> tuple[float | None, float | None, str | None]:
    """Return the progress of the run in `folder`.

    Returns:
        The finished fraction, 0 to 1; the estimated seconds until the end; and the name of the stage. While the run
        waits for a prerequisite, all three describe this stage. Otherwise the name is None. Unknown numbers are None.
    """
    try:
        status = read_status(folder)
    except RunFolderError:
        return None, None, None
    if status is None:
        return None, None, None
    if status.state == "running" and status.stage is not None:
        return status.stage.fraction, status.stage.eta_s, status.stage.name
    progress = status.progress
    fraction = min(progress.done / progress.total, 1.0) if progress.total else None
    return fraction, progress.eta_s if status.state == "running" else None, None
