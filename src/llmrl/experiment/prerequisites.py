"""Runs that a run needs before it can start: ordinary runs, computed when they are first needed, and shared."""

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
from llmrl.core.threads import daemon_thread
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
STAGE_UPDATE_SECONDS = 2.0
"""Seconds between two updates of a stage in `status.json`."""


@dataclass(frozen=True)
class PrerequisiteRun:
    """A run that another run needs.

    Attributes:
        purpose: purpose of the run, e.g. `pre-training`.
        name: name of the run in plans.
        config: resolved config as plain data, with digests.
        overrides: overrides that its folder is named after.
        env_steps: environment steps of the run, summed over games.
    """

    purpose: str
    name: str
    config: dict[str, Any]
    overrides: list[str]
    env_steps: int

    @classmethod
    def existing(cls, purpose: str, name: str, folder: Path, trusted: Sequence[str]) -> PrerequisiteRun:
        """Create a prerequisite from a run that has a folder; errors as `saved_experiment`."""
        config, overrides = saved_experiment(folder, trusted)
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


def saved_experiment(folder: Path, trusted: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the config with which the run in `folder` is resumed, and its overrides as typed.

    Raises:
        ConfigError: the config names code that is not `trusted`.
        RunFolderError: there is no readable config, or a record of the run cannot be read.
    """
    config = read_config(folder, trusted)
    check_permissions(config, str(folder / CONFIG_NAME))
    # The folder may be a copy in another place.
    config |= {"output_root": str(folder.parents[2]), "name": folder.parents[1].name, "seed": parse_seed(folder) or 0}
    records = (read_status(folder), read_launch_record(folder))
    overrides = next((list(record.overrides) for record in records if record is not None and record.overrides), [])
    return config | {"rerun": False, "resume": True}, overrides


ComputeRun = Callable[[Mapping[str, Any], Sequence[str]], object]
"""Function that computes the run of a resolved config, with the overrides that its folder is named after."""


def ensure_finished(
    prerequisites: Sequence[PrerequisiteRun],
    run: Run,
    compute: ComputeRun,
    suspend: Callable[[], AbstractContextManager[None]] = nullcontext,
    n_stages_before: int = 0,
    n_stages_after: int = 1,
) -> int:
    """Compute the runs that are not finished, in order, or wait for another process or run that computes one.

    A run that has ended without a result since a launcher accepted `run` is not tried again.

    Args:
        prerequisites: runs that are needed, in order.
        run: run that needs them.
        compute: function that computes a run.
        suspend: function that returns a context manager for the time in which `run` waits.
        n_stages_before: number of stages of `run` before these.
        n_stages_after: number of stages of `run` after these, including the run itself.

    Returns:
        The number of finished stages: `n_stages_before`, and one for each run that was not finished.

    Raises:
        Stopped: a signal has requested a stop.
        PrerequisiteFailed: one of the runs ended without a result; the message gives the reason.
    """
    missing = [prerequisite for prerequisite in prerequisites if not prerequisite.finished]
    run.status.prerequisites += [
        PrerequisiteRecord(prerequisite.purpose, prerequisite.name, str(prerequisite.folder))
        for prerequisite in prerequisites
    ]
    n_stages = n_stages_before + len(missing) + n_stages_after
    for index, prerequisite in enumerate(missing, start=n_stages_before + 1):
        stage = RunStage(prerequisite.purpose, prerequisite.name, index, n_stages)
        with _track_stage(run, stage, prerequisite.folder, prerequisite.env_steps):
            _ensure_run(prerequisite, run, compute, suspend)
    return n_stages_before + len(missing)


def _ensure_run(
    prerequisite: PrerequisiteRun, run: Run, compute: ComputeRun, suspend: Callable[[], AbstractContextManager[None]]
) -> None:
    """Compute one run, or wait for another process or run that does; arguments and errors as for `ensure_finished`."""
    launch_time, launch_folder = _launch_time_and_folder(run)
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
                # Suspended until the run is free, because other rows wait while this one is active.
                while run.stop.signal is None and is_in_use(prerequisite.folder):
                    time.sleep(_POLL_SECONDS)
        except CallNotMade:
            raise
        except LlmrlError as error:
            raise PrerequisiteFailed(f"{prerequisite.error_label} failed: {error}") from error
        if run.stop.signal is not None:
            raise Stopped(run.folder, run.stop.signal)


def _launch_time_and_folder(run: Run) -> tuple[float, str]:
    """Return when a launcher accepted `run` for this attempt, Unix time, and the folder of the launch.

    Infinity and an empty text if the run was started without a launcher.
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
    """Return a context in which a run that another run needs is computed, by this process or another one.

    The stage's first and last moments are logged. Meanwhile the progress in `folder` is copied to the `status.json` of
    `run`.

    Args:
        run: run that waits.
        stage: stage at its beginning.
        folder: run folder of the needed run, which need not exist yet.
        env_steps: environment steps of the needed run.
    """
    log.info("%s: started, %s environment steps", stage, f"{env_steps:,}")
    start_time = time.monotonic()
    stop_event = threading.Event()
    reporter = daemon_thread("llmrl-stage", _copy_progress, run, stage, folder, stop_event)
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
        current = replace(stage, name=name, fraction=fraction, eta_s=eta_s)
        if current != last_stage:
            run.status.stage = last_stage = current
            try:
                if run.processes.is_main:
                    run.status.write(run.folder)
            except RunFolderError as error:
                log.debug("the stage of %s was not written: %s", run.folder, error)
        if stop_event.wait(STAGE_UPDATE_SECONDS):
            return
