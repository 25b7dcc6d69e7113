"""The two scores of a run with a principal, and reference lines for comparison, from `summary.json`.

The recommendation is the mechanism that a principal's rule selects after its last measurement; its objective on fresh
seeds is the run's result and ranks groups. Online performance is the mean objective of the last fifth of the proposals.
Reference lines are objectives that do not depend on the principal, such as the objective without a mechanism.
"""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.results.groups import FinishedGroups
from llmrl.results.run_records import RunRecord
from llmrl.run.status import SUMMARY_NAME
from llmrl.statistics.estimators import standard_error

RECOMMENDATION, ONLINE_PERFORMANCE = "recommendation", "online_performance"
"""Keys of the scores in `summary.json`, which are means over contexts."""
RECOMMENDATION_ERROR = "recommendation_standard_error"
"""Key of the standard error of the recommendation."""
ANYTIME_METRIC = "recommendation/objective"
"""Metric with the objective of the recommendation after the measurements so far."""
MEASUREMENTS_COUNTER = "measurements"
"""Counter that is the x coordinate of `ANYTIME_METRIC`."""
SCORES_NOTE = (
    "The recommendation, the mechanism that a principal selects after its last measurement, is evaluated on fresh "
    "seeds; it is the result and ranks the groups. Online performance is the mean objective of the last fifth of the "
    "proposals, so exploration lowers it."
)


def read_principal_scores(runs: Sequence[RunRecord], key: str) -> np.ndarray | None:
    """Return one of the two scores of each run, [n_runs]; None without runs, or if a run has no such score.

    Args:
        runs: finished runs.
        key: `RECOMMENDATION` or `ONLINE_PERFORMANCE`.
    """
    scores = []
    for run in runs:
        value = run.compact_summary.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            return None
        scores.append(float(value))
    return np.array(scores) if scores else None


def explain_scores(recommendation: Mapping[str, float], online: Mapping[str, float]) -> list[str]:
    """Return sentences that explain the two scores, and the groups with the highest scores if they differ.

    Args:
        recommendation: mean objective of the recommendation by display name of the group; empty if it is not shown.
        online: mean online performance by display name of the group; empty if it is not shown.

    >>> explain_scores({"gp": 3.0, "ucb": 2.0}, {"gp": 1.0, "ucb": 2.0})[1]
    'gp has the highest recommendation, ucb the highest online performance.'
    """
    if not recommendation or not online:
        return []
    best_group = max(recommendation, key=recommendation.__getitem__)
    best_online_group = max(online, key=online.__getitem__)
    if best_group == best_online_group:
        return [SCORES_NOTE]
    sentence = f"{best_group} has the highest recommendation, {best_online_group} the highest online performance."
    return [SCORES_NOTE, sentence]


log = logging.getLogger(__name__)

Levels = tuple[tuple[float, float], ...]
"""Value and standard error of each of `REFERENCE_TITLES`."""
OBJECTIVE_METRIC = "principal/objective"
"""Metric with the objective of proposals, with which reference lines are plotted."""

REFERENCE_TITLES = {
    "untrained": "untrained agents",
    "no_mechanism": "no mechanism",
    "scan_best": "best of the coarse scan",
}
"""Display names of reference lines by their keys in `references` of a summary."""


@dataclass(frozen=True)
class ReferenceLine:
    """An objective that was measured before the principal's first proposal.

    Attributes:
        key: kind of the line, a key of `REFERENCE_TITLES`.
        label: display name, with the names of its groups if other groups of the task have other values.
        value, standard_error: mean over contexts, and its standard error, NaN if unknown.
    """

    key: str
    label: str
    value: float
    standard_error: float


def read_reference_lines(groups: FinishedGroups) -> tuple[tuple[ReferenceLine, ...], tuple[str, ...]]:
    """Return the reference lines of a task, and the warnings of its runs.

    There is one set of lines for each distinct set of values. A warning states that the objective did not depend on the
    mechanism in the coarse scan.

    Args:
        groups: each group with its finished runs.
    """
    # Dicts with values None are used as ordered sets.
    labels_by_levels: defaultdict[Levels, dict[str, None]] = defaultdict(dict)
    labels_by_warning: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for group, runs in groups:
        distinct_levels: dict[Levels, None] = {}
        for run in runs:
            references = run.compact_summary.get("references")
            if references is None:
                continue
            try:
                levels = tuple(_average_contexts(references["contexts"], key) for key in REFERENCE_TITLES)
                warning = str(references["warning"] or "")
            except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                log.warning("%s: its reference lines cannot be read (%r)", run.folder / SUMMARY_NAME, error)
                continue
            distinct_levels[levels] = None
            if warning:
                labels_by_warning[warning][group.display_name] = None
        if distinct_levels:
            labels_by_levels[_average_levels(list(distinct_levels))][group.display_name] = None
    lines = [
        ReferenceLine(key, f"{name} ({'; '.join(labels)})" if len(labels_by_levels) > 1 else name, value, error)
        for levels, labels in labels_by_levels.items()
        for (key, name), (value, error) in zip(REFERENCE_TITLES.items(), levels, strict=True)
        if not math.isnan(value)
    ]
    warnings = []
    for warning, labels in labels_by_warning.items():
        labels_text = "" if len(labels) == len(groups) else f" ({'; '.join(labels)})"
        warnings.append(f"Warning{labels_text}: {warning}.")
    return tuple(lines), tuple(warnings)


def _average_levels(distinct_levels: Sequence[Levels]) -> Levels:
    """Return the levels of a group from the distinct levels of its runs, one for each pre-training run.

    If there are several, the result contains their means with the standard errors of the means.
    """
    if len(distinct_levels) == 1:
        return distinct_levels[0]
    values = np.array(sorted(distinct_levels))[:, :, 0]
    return tuple(
        (float(mean), float(error)) for mean, error in zip(values.mean(axis=0), standard_error(values.T), strict=True)
    )


def _average_contexts(contexts: Sequence[Mapping[str, Any]], key: str) -> tuple[float, float]:
    """Return the mean over contexts of the reference line `key`, and its standard error.

    The error is NaN if the error of one context is unknown; both are NaN if the line was not measured.
    """
    if any(context[key] is None for context in contexts):
        return math.nan, math.nan
    values = [context[key]["value"] for context in contexts]
    errors = [
        math.nan if context[key]["standard_error"] is None else context[key]["standard_error"] for context in contexts
    ]
    return math.fsum(values) / len(values), math.hypot(*errors) / len(errors)
