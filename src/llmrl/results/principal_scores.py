"""The two scores of a run with a principal.

The recommendation is the mechanism that a principal's rule selects after its last measurement; its evaluation on fresh
seeds is the run's result and ranks groups. Online performance is the mean objective of the last fifth of the proposals.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.results.run_records import RunRecord

RECOMMENDATION, ONLINE = "recommendation", "online_performance"
"""Keys of the scores in `summary.json`, each the mean over contexts."""
RECOMMENDATION_ERROR = "recommendation_standard_error"
"""Key of the standard error of the recommendation."""
ANYTIME = "recommendation/objective"
"""Metric of the recommendation from the first measurements of a run, over the counter `measurements`."""
MEASUREMENTS = "measurements"
"""Counter of these metrics."""
SCORES_NOTE = (
    "The recommendation, the mechanism that a principal selects after its last measurement, is evaluated on fresh "
    "seeds; it is the result and ranks the groups. Online performance is the mean objective of the last fifth of the "
    "proposals, so exploration lowers it."
)


def principal_scores(runs: Sequence[RunRecord], key: str) -> np.ndarray | None:
    """Return one of the two scores of each run, [n_runs]; None without runs, or if a run does not have it.

    Args:
        runs: finished runs.
        key: `RECOMMENDATION` or `ONLINE`.
    """
    scores = []
    for run in runs:
        value = run.short_summary.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        scores.append(float(value))
    return np.array(scores) if scores else None


def score_notes(recommendation: Mapping[str, float], online: Mapping[str, float]) -> list[str]:
    """Return the sentences that explain the two scores, and name the best group of each if they differ.

    Args:
        recommendation: mean recommendation by display name of the group; empty if it is not shown.
        online: mean online performance by display name; empty if it is not shown.

    >>> score_notes({"gp": 3.0, "ucb": 2.0}, {"gp": 1.0, "ucb": 2.0})[1]
    'gp has the highest recommendation, ucb the highest online performance.'
    """
    if not recommendation or not online:
        return []
    best, online_best = max(recommendation, key=recommendation.__getitem__), max(online, key=online.__getitem__)
    if best == online_best:
        return [SCORES_NOTE]
    return [SCORES_NOTE, f"{best} has the highest recommendation, {online_best} the highest online performance."]
