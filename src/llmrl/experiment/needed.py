"""Runs that a run needs before it can begin: ordinary ones, computed when they are first needed, and shared."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import RunInUse

if TYPE_CHECKING:
    from llmrl.run.run import Run

log = logging.getLogger(__name__)

_POLL_S = 2.0


@dataclass(frozen=True)
class NeededRun:
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
    def of(cls, what: str, name: str, config: Mapping[str, Any], overrides: Sequence[str], env_steps: int) -> NeededRun:
        """Make one of a config without digests.

        Raises:
            ConfigError: a file that the config names is not there.
        """
        from llmrl.experiment.applications import application_of

        return cls(what, name, application_of(config).with_digests(dict(config)), list(overrides), env_steps)

    @property
    def folder(self) -> Path:
        """Where the run is, or would be."""
        from llmrl.run.folder import config_hash, find_folder

        root = Path(self.config["output_root"])
        digest = config_hash(self.config)
        return find_folder(root, self.config["name"], digest, self.overrides, self.config["seed"])

    @property
    def finished(self) -> bool:
        from llmrl.run.status import read_status

        status = read_status(self.folder)
        return status is not None and status.state == "finished"

    @property
    def told(self) -> str:
        """What a plan says of it."""
        if self.finished:
            return f"{self.name}, finished: {self.folder}"
        steps = f"{self.env_steps:,} environment steps"
        return f"{self.name}, to be computed first, {steps}, and then kept in {self.folder}"


Compute = Callable[[Mapping[str, Any], Sequence[str]], object]
"""Computes the run of a resolved config, with the overrides that its folder is named after."""


def ensure(needed: Sequence[NeededRun], run: Run, compute: Compute) -> None:
    """Compute the runs that are not finished, one after the other, or wait for the process that does; `run` is the one
    that needs them.

    Raises:
        Stopped: a signal asked to stop meanwhile.
        LlmrlError: as that run.
    """
    from llmrl.run.run import Stopped

    for each in needed:
        waiting = False
        while not each.finished:
            try:
                if not waiting:
                    log.info("%s first: %s", each.what, each.name)
                compute(each.config, each.overrides)
            except RunInUse as error:
                if not waiting:
                    log.info("waiting for the %s that another process computes: %s", each.what, error)
                waiting = True
                time.sleep(_POLL_S)
            if run.stop.signal is not None:
                raise Stopped(run.folder, run.stop.signal)
