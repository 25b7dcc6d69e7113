"""`status.json`, the state of a run, which users, sweeps and resumes read. Each change replaces the file atomically."""

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
FORMAT = 2
"""Version of the run folder's layout; raised when an older llmrl could misread a newer folder."""
StatusState = Literal["running", "finished", "failed", "stopped", "preempted", "budget_exhausted"]


@dataclass
class RunProgress:
    """The progress of a run: `done` of `total` in `unit`s; speed and time left are None until known.

    Attributes:
        value: last objective or return (`ProgressBar.show_result`); None until known.
        proposed: last proposal of a principal, in words; empty if there are no proposals.
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
        """The last value and its proposal in a few words; empty until known."""
        if self.value is None:
            return ""
        return f"objective {self.value:.4g} with {self.proposed}" if self.proposed else f"return {self.value:.4g}"


@dataclass(frozen=True)
class RunStage:
    """The stage of a run that waits for a run that it needs.

    Attributes:
        name: kind of work, e.g. `pre-training`.
        run: name of the needed run, e.g. `preset:regimes/cleanup_pretrain, seed 0`.
        index, of: number of the stage, from 1, and of stages, the last of which is the run itself.
        fraction: share of the needed run that is done, 0 to 1; None until known.
        eta_s: seconds left of the stage; None until known.
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
        what: kind of work, e.g. `pre-training`.
        name: name of the run, as in plans.
        folder: run folder.
    """

    what: str
    name: str
    folder: str


@dataclass
class Status:
    """The content of `status.json`.

    Attributes:
        state: state of the run. It is still `running` after a `kill -9`; `owner.json` shows whether the process exists.
            `budget_exhausted`: stopped before a call to a language model that could have cost more than allowed.
        attempt: 1 for the first start, one more for each resume or rerun.
        host, pid, job_id: where the latest attempt runs or ran; `get_job_id` is empty outside a scheduler.
        llm: label of the run's language model; empty without one.
        progress: progress of the run.
        stage: stage while the run waits for a run that it needs; None while it is computed itself.
        prerequisites: runs that it needs, in order.
        env: name of the environment; empty until it is built.
        overrides: Hydra overrides as typed.
        shared: factors that the run shares with others, by level (`llmrl.run.shared_factors`).
        result: scalar result of a finished run.
        error: reason why the run failed or stopped, in one line.
        started, updated: start of the latest attempt and time of this content, Unix seconds.
        format: version of the layout (`FORMAT`).
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
    format: int = FORMAT

    def write(self, folder: Path, durable: bool = True) -> None:
        """Replace the status file of `folder`; `durable` as in `atomic_write`.

        Raises:
            RunFolderError: the file cannot be written.
        """
        self.updated = time.time()
        write_json(folder / FILE_NAME, asdict(self), durable)


def read_latest_status(folder: Path, anew: bool) -> Status | None:
    """Return the status of the latest attempt in `folder`; None if there is none.

    None also if it cannot be read and the run starts `anew`.

    Raises:
        RunFolderError: the status cannot be read, and the run is not to begin anew.
    """
    try:
        return read_status(folder)
    except RunFolderError as error:
        if not anew:
            raise
        log.warning("%s", error)
        return None


def read_status(folder: Path) -> Status | None:
    """Return the status of the run in `folder`; None if it has not been started.

    Raises:
        RunFolderError: the file is not a valid status, is of a newer llmrl, or says `finished` of an unfinished run.
    """
    path = folder / FILE_NAME
    try:
        content = read_json_object(path)
        if parse_value(content.get("format", FORMAT), int, "format") > FORMAT:
            raise RunFolderError(
                f"{folder} was written by a newer llmrl (layout {content['format']}, this one knows {FORMAT}); "
                "use that version for it, or another output_root"
            )
        status = parse_record(Status, {"stage": None, "prerequisites": [], **content})
        summary = folder / SUMMARY_NAME
        if status.state == "finished" and (summary.is_symlink() or not summary.is_file()):
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
        The fraction that is done, 0 to 1, and the seconds left, None if unknown; and, while that run waits for a run
        that it needs itself, the name of its stage, which fraction and seconds then refer to.
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
