"""Reference lines of the runs of a task: the levels that a principal has to beat, from `summary.json`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from llmrl.analysis.groups import Group
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import standard_error
from llmrl.run.status import SUMMARY_NAME

log = logging.getLogger(__name__)

Levels = tuple[tuple[float, float], ...]
"""Value and standard error of each of `LINES`."""
OBJECTIVE = "principal/objective"
"""Metric of the reference lines, and of the result of a run with a principal."""

LINES = {
    "untrained": "untrained agents",
    "no_mechanism": "no mechanism",
    "scan_best": "best of the coarse scan",
}
"""Lines of each context in a summary's `references`, and their display names."""


@dataclass(frozen=True)
class ReferenceLine:
    """A level of the objective that was measured before the runs.

    Attributes:
        line: kind of the line, a key of `LINES`.
        label: display name, with the groups it belongs to if other groups of the task have another level.
        value, standard_error: mean over contexts, and its standard error, NaN if unknown.
    """

    line: str
    label: str
    value: float
    standard_error: float


def references_of(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
) -> tuple[tuple[ReferenceLine, ...], tuple[str, ...]]:
    """Return the reference lines of a task, one set or several for different groups, and the warnings of its runs (an
    objective that does not respond to the mechanism).

    Args:
        groups: each group with its finished runs.
    """
    levels: dict[Levels, list[str]] = {}
    warned: dict[str, list[str]] = {}
    for group, runs in groups:
        own: dict[Levels, None] = {}
        for run in runs:
            found = run.summary().get("references")
            if found is None:
                continue
            try:
                level = tuple(_over_contexts(found["contexts"], line) for line in LINES)
                warning = str(found["warning"] or "")
            except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
                log.warning("%s: its reference lines cannot be read (%r)", run.folder / SUMMARY_NAME, error)
                continue
            own[level] = None
            if warning:
                _into(warned, warning, group.shown)
        if own:
            _into(levels, _over_pretrainings(list(own)), group.shown)
    lines = [
        ReferenceLine(line, f"{name} ({'; '.join(labels)})" if len(levels) > 1 else name, *level)
        for told, labels in levels.items()
        for (line, name), level in zip(LINES.items(), told, strict=True)
        if not math.isnan(level[0])
    ]
    said = []
    for text, labels in warned.items():
        whose = "" if len(labels) == len(groups) else f" ({'; '.join(labels)})"
        said.append(f"Warning{whose}: {text}.")
    return tuple(lines), tuple(said)


def _over_pretrainings(levels: Sequence[Levels]) -> Levels:
    """Return the lines of a group. If its runs start from several pre-training runs, these have their own lines, and
    the result is their means with the standard errors of the means."""
    if len(levels) == 1:
        return levels[0]
    values = np.array(sorted(levels))[:, :, 0]
    return tuple(
        (float(mean), float(error)) for mean, error in zip(values.mean(axis=0), standard_error(values.T), strict=True)
    )


def _into(found: dict[Any, list[str]], key: Any, label: str) -> None:
    labels = found.setdefault(key, [])
    if label not in labels:
        labels.append(label)


def _over_contexts(contexts: Sequence[Mapping[str, Any]], line: str) -> tuple[float, float]:
    """Return the mean of a line over contexts, and its standard error: NaN if that of one context is unknown; both are
    NaN if the line was not measured."""
    if any(own[line] is None for own in contexts):
        return math.nan, math.nan
    values = [own[line]["value"] for own in contexts]
    errors = [math.nan if own[line]["standard_error"] is None else own[line]["standard_error"] for own in contexts]
    return math.fsum(values) / len(values), math.hypot(*errors) / len(errors)
