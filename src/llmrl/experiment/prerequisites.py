"""Runs that a run needs before it can begin: ordinary ones, computed when they are first needed, and shared."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import LlmrlError, NotAsked, PrerequisiteFailed, RunInUse
from llmrl.experiment.stages import stage_of_run
from llmrl.run.status import PrerequisiteRecord, RunStage

if TYPE_CHECKING:
    from llmrl.run.run import Run

log = logging.getLogger(__name__)

_POLL_S = 2.0


@dataclass(frozen=True)
class PrerequisiteRun:
    """A run that another one needs.

    Attributes:
        what: it is, in words: `pre-training`.
        name: that a plan knows it by.
        config: resolved, plain containers, with digests.
        overrides: that its folder is named after.
        env_steps: environment steps that it takes, summed over games.
    """

    what: str
    name: str
    config: dict[str, Any]
    overrides: list[str]
    env_steps: int

    @classmethod
    def existing(cls, what: str, name: str, folder: Path, trusted: Sequence[str]) -> PrerequisiteRun:
        """Make one of a run that has a folder.

        Raises:
            ConfigError: its config names code that is not `trusted`.
            RunFolderError: it has no config that can be read.
        """
        from llmrl.config.trust_options import check_known
        from llmrl.run.artifacts import CONFIG_NAME, read_config
        from llmrl.run.folder_names import seed_of
        from llmrl.run.status import read_status

        config = read_config(folder, trusted)
        check_known(config, str(folder / CONFIG_NAME))
        # Where the folder is now, which may be a copy; and what was begun is to be gone on with.
        config |= {"output_root": str(folder.parents[2]), "name": folder.parents[1].name, "seed": seed_of(folder) or 0}
        config |= {"rerun": False, "resume": True}
        status = read_status(folder)
        overrides = [] if status is None else status.overrides
        return cls(what, name, config, overrides, config.get("learn", {}).get("env_steps", 0))

    @property
    def folder(self) -> Path:
        """Where the run is, or would be."""
        from llmrl.run.config_hash import config_hash
        from llmrl.run.folder import find_folder

        root = Path(self.config["output_root"])
        digest = config_hash(self.config)
        return find_folder(root, self.config["name"], digest, self.overrides, self.config["seed"])

    @property
    def finished(self) -> bool:
        from llmrl.run.status import read_status

        status = read_status(self.folder)
        return status is not None and status.state == "finished"

    @property
    def title(self) -> str:
        """Kind of work and name."""
        return f"{self.what} ({self.name})"

    @property
    def told_of(self) -> str:
        """What an error calls it."""
        return f"{self.what}, {self.name}, which this run needs ({self.folder}),"

    @property
    def told(self) -> str:
        """What a plan says of it."""
        if self.finished:
            return f"{self.name}, finished: {self.folder}"
        steps = f"{self.env_steps:,} environment steps"
        return f"{self.name}, to be computed first, {steps}, and then kept in {self.folder}"


Compute = Callable[[Mapping[str, Any], Sequence[str]], object]
"""Computes the run of a resolved config, with the overrides that its folder is named after."""


def ensure(
    needed: Sequence[PrerequisiteRun],
    run: Run,
    compute: Compute,
    away: Callable[[], AbstractContextManager[None]] = nullcontext,
    passed: int = 0,
    ahead: int = 1,
) -> int:
    """Compute the runs that are not finished, one after the other, or wait for who does: another process, or another
    run of this one. One that has ended without a result since a launcher took `run` on is not tried again.

    Args:
        needed: in their order.
        run: that needs them.
        compute: computes one.
        away: around a span in which `run` waits.
        passed: number of stages of `run` before these.
        ahead: number of stages of `run` after these, the run itself included.

    Returns:
        The number of stages that are over: `passed`, and one for each run that was not finished.

    Raises:
        Stopped: a signal asked to stop meanwhile.
        PrerequisiteFailed: one of them ended without a result, with its reason.
    """
    missing = [each for each in needed if not each.finished]
    run.status.prerequisites += [PrerequisiteRecord(each.what, each.name, str(each.folder)) for each in needed]
    of = passed + len(missing) + ahead
    for index, each in enumerate(missing, start=passed + 1):
        stage = RunStage(each.what, each.name, index, of)
        with stage_of_run(run, stage, each.folder, each.env_steps):
            _ensure_one(each, run, compute, away)
    return passed + len(missing)


def _ensure_one(
    each: PrerequisiteRun, run: Run, compute: Compute, away: Callable[[], AbstractContextManager[None]]
) -> None:
    """Compute one run, or wait for another process or run that does; arguments and errors are those of `ensure`."""
    from llmrl.run.ownership import in_use, wait_for_release
    from llmrl.run.signals import Stopped

    since, launch = _taken_on(run)
    waiting = False
    while not each.finished:
        if (reason := _ended(each, since, launch)) is not None:
            raise PrerequisiteFailed(f"{each.told_of} {reason}")
        try:
            compute(each.config, each.overrides)
        except RunInUse as error:
            if not waiting:
                log.info("%s: another run computes it: %s", each.title, error)
                since = min(since, time.time())
            waiting = True
            with away():
                # Away until it can go on, for others wait while a row that was away is back to look.
                while run.stop.signal is None and in_use(each.folder):
                    wait_for_release(_POLL_S)
        except NotAsked:
            raise
        except LlmrlError as error:
            raise PrerequisiteFailed(f"{each.told_of} failed: {error}") from error
        if run.stop.signal is not None:
            raise Stopped(run.folder, run.stop.signal)


def _taken_on(run: Run) -> tuple[float, str]:
    """When a launcher took `run` on for this attempt, Unix time, and the folder of the launch; infinite and empty where
    it was started by itself."""
    from llmrl.run.queued import read_queued

    queued = read_queued(run.folder)
    if queued is None or run.status.attempt != queued.attempt + 1:
        return math.inf, ""
    return queued.submitted, queued.sweep


def _ended(needed: PrerequisiteRun, since: float, launch: str) -> str | None:
    """How the run ended if it did so without a result, and after `since` or in the same launch; None if it did not."""
    from llmrl.analysis.runs import UNFINISHED, read_run
    from llmrl.run.queued import read_queued

    if not needed.folder.is_dir():
        return None
    record, queued = read_run(needed.folder), read_queued(needed.folder)
    together = queued is not None and queued.sweep == launch
    if record.state not in UNFINISHED or not (together or record.updated >= since):
        return None
    return f"is {record.state}" + (f": {record.error}" if record.error else "")
