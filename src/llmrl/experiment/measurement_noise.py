"""Estimate of the noise of a measurement in the plan of a design run, and of better settings at the same cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.core.protocols import GradientProposer
from llmrl.experiment.prerequisites import PrerequisiteRun
from llmrl.experiment.reference_line_runs import measured_references
from llmrl.loops.design import DesignLoop
from llmrl.loops.reference_measurements import References

MAX_ERROR = 0.1
"""Standard error, as a share of the objective's range, above which fewer vectors with more societies are preferred."""


def plan_rows(config: Mapping[str, Any], loop: object, runs: Sequence[PrerequisiteRun]) -> list[tuple[str, str]]:
    """Return the rows of a plan about the standard error of a proposal's objective; none if it cannot be estimated.

    Args:
        config: resolved config of the run.
        loop: loop of the run.
        runs: runs that measure its reference lines.
    """
    if not isinstance(loop, DesignLoop) or not loop.updates_per_round:
        return []
    settings, references = loop.settings, measured_references(runs)
    error, source = relative_error(references, settings.replicates), "from the reference lines"
    if error is None:
        source = f"from earlier measurements of regime={config['regime_name']}"
        error = None if (noise := config.get("regime_noise")) is None else noise / settings.replicates**0.5
    if error is None:
        return []
    rows = [("  standard error", f"about {100 * error:.2g} % of the objective's range a proposal, {source}")]
    if error > MAX_ERROR and not isinstance(loop.principal, GradientProposer):
        candidates, replicates = repeated(error, settings.candidates, settings.replicates)
        if candidates < settings.candidates:
            remaining = 100 * error * (settings.replicates / replicates) ** 0.5
            advice = f"design.candidates={candidates} design.replicates={replicates}"
            rows.append(("", f"{advice}: about {remaining:.2g} % at the same cost, with fewer proposals"))
    return rows


def relative_error(references: References | None, replicates: int) -> float | None:
    """Return the standard error of a measurement over `replicates` societies, as a share of the objective's range.

    The range is that of the coarse scan, averaged over contexts. None: the reference lines do not say.
    """
    error = None if references is None else references.measurement_error(replicates)
    if references is None or error is None:
        return None
    span = float(np.mean([references.range(situation.context) for situation in references.situations]))
    return error / span if span else None


def repeated(error: float, candidates: int, replicates: int) -> tuple[int, int]:
    """Return the numbers of candidates and of societies of each, with the same product, for a small standard error.

    It is the highest number of candidates with a standard error of at most `MAX_ERROR`, or one candidate.

    Args:
        error: standard error with `replicates` societies, as a share of the objective's range.
        candidates: number of candidates of a step.
        replicates: number of societies of a candidate.

    >>> repeated(0.2, 8, 1)
    (2, 4)
    """
    societies = candidates * replicates
    for n in range(candidates, 1, -1):
        if societies % n == 0 and error * (replicates * n / societies) ** 0.5 <= MAX_ERROR:
            return n, societies // n
    return 1, societies
