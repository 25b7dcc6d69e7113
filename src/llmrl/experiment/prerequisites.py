"""Prerequisite runs: runs that must be finished before another run can start. Several runs can share one."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmrl.config.permissions import check_permissions
from llmrl.core.errors import CallNotMade, LlmrlError, PrerequisiteFailed, RunFolderError, RunInUse
from llmrl.core.threads import make_daemon_thread
from llmrl.experiment.run_lookup import is_finished
from llmrl.results.run_records import RESUMABLE_STATES, read_run
from llmrl.run.artifacts import CONFIG_NAME, read_config
from llmrl.run.config_hash import config_hash
from llmrl.run.folder import find_run_folder, parse_seed
from llmrl.run.ownership import is_in_use
from llmrl.run.progress_bar import format_clock
from llmrl.run.queued import read_launch_record
from llmrl.run.run import Run
from llmrl.run.signals import Stopped
from llmrl.run.status import PrerequisiteRecord, RunStage, read_progress, read_status

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
"""Seconds between two checks whether another process still computes a prerequisite run."""
STAGE_UPDATE_SECONDS = 2.0
"""Seconds between two updates of a stage in `status.json`."""


@dataclass(frozen=True)
class PrerequisiteRun:
    """A run that another run needs.

    Attributes:
        purpose: purpose of the run, e.g. `pre-training`.
        name: description of the run in plans, e.g. its reference and seed.
        config: resolved config as plain data, with digests.
        overrides: overrides that determine the label of its folder.
        env_steps: environment steps of the run, summed over games.
    """

    purpose: str
    name: str
    config: dict[str, Any]
    overrides: list[str]
    env_steps: int

    @classmethod
    def from_folder(cls, purpose: str, name: str, folder: Path, trusted: Sequence[str]) -> PrerequisiteRun:
        """Create a prerequisite from an existing run folder; for errors see `read_config_and_overrides`."""
        config, overrides = read_config_and_overrides(folder, trusted)
        return cls(purpose, name, config, overrides, config.get("learn", {}).get("env_steps", 0))

    @property
    def folder(self) -> Path:
        """The run folder, whether or not it exists."""
        root, digest = Path(self.config["output_root"]), config_hash(self.config)
        return find_run_folder(root, self.config["name"], digest, self.overrides, self.config["seed"])

    @property
    def finished(self) -> bool:
        return is_finished(self.folder)

    @property
    def error_label(self) -> str:
        """Description of the run for error messages."""
        return f"{self.purpose}, {self.name}, which this run needs ({self.folder}),"

    @property
    def plan_text(self) -> str:
        """Description of the run for plans."""
        if self.finished:
            return f"{self.name}, finished: {self.folder}"
        steps = f"{self.env_steps:,} environment steps"
        return f"{self.name}, to be computed first, {steps}, and stored in {self.folder}"


def read_config_and_overrides(folder: Path, trusted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the config with which the run in `folder` can be resumed, and its overrides as typed.

    Raises:
        ConfigError: the config names code that is not `trusted`.
        RunFolderError: there is no readable config, or a record of the run cannot be read.
    """
    config = read_config(folder, trusted)
    check_permissions(config, str(folder / CONFIG_NAME))
    # The folder may have been moved or copied, so its present path determines these options.
    config |= {"output_root": str(folder.parents[2]), "name": folder.parents[1].name, "seed": parse_seed(folder) or 0}
    records = (read_status(folder), read_launch_record(folder))
    overrides = next((list(record.overrides) for record in records if record is not None and record.overrides), [])
    return config | {"rerun": False, "resume": True}, overrides


ComputeRun = Callable[[Mapping[str, Any], Sequence[str]], object]
"""Function that computes the run of a resolved config; the overrides determine the label of its folder."""


def ensure_finished(
    prerequisites: Sequence[PrerequisiteRun],
    run: Run,
    compute: ComputeRun,
    suspend: Callable[[], AbstractContextManager[None]] = nullcontext,
    n_stages_before: int = 0,
    n_stages_after: int = 1,
) -> int:
    """Compute the unfinished prerequisite runs in order; wait for those that another process or run computes.

    A prerequisite that ended without a result after a launcher accepted `run` is not computed again.

    Args:
        prerequisites: runs that `run` needs, in order.
        run: run that needs them.
        compute: function that computes a prerequisite run.
        suspend: function that returns a context manager for the time in which `run` waits.
        n_stages_before: number of stages of `run` before the first prerequisite.
        n_stages_after: number of stages of `run` after the last prerequisite, including the run itself.

    Returns:
        The number of stages that are now finished: `n_stages_before`, plus one for each prerequisite that was
        unfinished.

    Raises:
        Stopped: a signal has requested a stop.
        PrerequisiteFailed: a prerequisite ended without a result; the message gives the reason.
    """
    unfinished = [prerequisite for prerequisite in prerequisites if not prerequisite.finished]
    run.status.prerequisites += [
        PrerequisiteRecord(prerequisite.purpose, prerequisite.name, str(prerequisite.folder))
        for prerequisite in prerequisites
    ]
    n_stages = n_stages_before + len(unfinished) + n_stages_after
    for index, prerequisite in enumerate(unfinished, start=n_stages_before + 1):
        stage = RunStage(prerequisite.purpose, prerequisite.name, index, n_stages)
        with _track_stage(run, stage, prerequisite.folder, prerequisite.env_steps):
            _ensure_one_finished(prerequisite, run, compute, suspend)
    return n_stages_before + len(unfinished)


def _ensure_one_finished(
    prerequisite: PrerequisiteRun, run: Run, compute: ComputeRun, suspend: Callable[[], AbstractContextManager[None]]
) -> None:
    """Compute one prerequisite, or wait for the process or run that computes it; see `ensure_finished`."""
    launch_time, launch_folder = _read_launch_time_and_folder(run)
    is_waiting = False
    while not prerequisite.finished:
        if (failure := _describe_failure(prerequisite, launch_time, launch_folder)) is not None:
            raise PrerequisiteFailed(f"{prerequisite.error_label} {failure}")
        try:
            compute(prerequisite.config, prerequisite.overrides)
        except RunInUse as error:
            if not is_waiting:
                log.info("%s (%s): another run computes it: %s", prerequisite.purpose, prerequisite.name, error)
                launch_time = min(launch_time, time.time())
            is_waiting = True
            with suspend():
                # Without `suspend`, the other rows of this process would wait for this run, too.
                while run.stop_flag.signal is None and is_in_use(prerequisite.folder):
                    time.sleep(_POLL_SECONDS)
        except CallNotMade:
            raise
        except LlmrlError as error:
            raise PrerequisiteFailed(f"{prerequisite.error_label} failed: {error}") from error
        if run.stop_flag.signal is not None:
            raise Stopped(run.folder, run.stop_flag.signal)


def _read_launch_time_and_folder(run: Run) -> tuple[float, str]:
    """Return the Unix time at which a launcher accepted this attempt of `run`, and the sweep folder of the launch.

    Infinity and an empty text if the attempt was started without a launcher.
    """
    launch_record = read_launch_record(run.folder)
    if launch_record is None or run.status.attempt != launch_record.attempt + 1:
        return math.inf, ""
    return launch_record.submitted, launch_record.sweep


def _describe_failure(prerequisite: PrerequisiteRun, launch_time: float, launch_folder: str) -> str | None:
    """Return how the run ended without a result after `launch_time` or in the same launch; None if it did not."""
    if not prerequisite.folder.is_dir():
        return None
    record, launch_record = read_run(prerequisite.folder), read_launch_record(prerequisite.folder)
    launches_match = launch_record is not None and launch_record.sweep == launch_folder
    if record.state not in RESUMABLE_STATES or not (launches_match or record.updated >= launch_time):
        return None
    return f"is {record.state}" + (f": {record.error}" if record.error else "")


@contextmanager
def _track_stage(run: Run, stage: RunStage, folder: Path, env_steps: int) -> Iterator[None]:
    """Return a context manager that reports the progress of a prerequisite run in the `status.json` of `run`.

    It also logs when the stage starts and when it is finished.

    Args:
        run: run that waits for the prerequisite.
        stage: stage of `run` at its beginning, without progress.
        folder: run folder of the prerequisite, which need not exist yet.
        env_steps: environment steps of the prerequisite.
    """
    log.info("%s: started, %s environment steps", stage, f"{env_steps:,}")
    start_time = time.monotonic()
    stop_event = threading.Event()
    reporter = make_daemon_thread("llmrl-stage", _copy_progress, run, stage, folder, stop_event)
    reporter.start()
    try:
        yield
    finally:
        stop_event.set()
        reporter.join()
        run.status.stage = None
    log.info("%s: finished after %s", stage, format_clock(time.monotonic() - start_time))


def _copy_progress(run: Run, stage: RunStage, folder: Path, stop_event: threading.Event) -> None:
    """Copy the progress in `folder` to the status of `run` until `stop_event` is set."""
    last_stage: RunStage | None = None
    while True:
        fraction, eta_s, inner_stage = read_progress(folder)
        name = stage.name if inner_stage is None else f"{stage.name}: {inner_stage}"
        updated_stage = replace(stage, name=name, fraction=fraction, eta_s=eta_s)
        if updated_stage != last_stage:
            run.status.stage = last_stage = updated_stage
            try:
                if run.processes.is_main:
                    run.status.write(run.folder)
            except RunFolderError as error:
                log.debug("the stage of %s was not written: %s", run.folder, error)
        if stop_event.wait(STAGE_UPDATE_SECONDS):
            return
