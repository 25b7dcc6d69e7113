"""Options of an attempt at a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """Treatment of earlier attempts at a run, and the interval of its checkpoints.

    Attributes:
        resume: whether to resume an unfinished run from its newest checkpoint instead of starting it anew.
        rerun: whether to start anew even if the run is finished or cannot be resumed. Old content is moved aside.
        checkpoint_every_s: seconds between saves at safe points; 0: save at every safe point.
        digest: hash of the config, if the caller has computed it; None: it is computed when the run is opened.
    """

    resume: bool = True
    rerun: bool = False
    checkpoint_every_s: float = 60.0
    digest: str | None = None
