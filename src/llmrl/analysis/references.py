"""Reference lines of the runs of a task: what a principal has to beat, as `summary.json` tells it."""

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
from llmrl.run.content import SUMMARY_NAME

log = logging.getLogger(__name__)

Levels = tuple[tuple[float, float], ...]
"""Value and standard error of each of `LINES`."""
OBJECTIVE = "principal/objective"
"""The metric that reference lines are about, as the result of a run with a principal is."""

LINES = {
    "untrained": "untrained agents",
    "no_mechanism": "no mechanism",
    "scan_best": "best of the coarse scan",
}
"""What a summary's `references` has of each context, and what it is called."""


@dataclass(frozen=True)
class ReferenceLine:
    """A level of the objective that was measured before the runs.

    Attributes:
        line: which one, a key of `LINES`.
        label: what it is called; with the groups it belongs to where others of the task have another one.
        value, standard_error: mean over contexts; the error is NaN where it cannot be told.
    """

    line: str
    label: str
    value: float
    standard_error: float


def references_of(
    groups: Sequence[tuple[Group, Sequence[RunRecord]]],
) -> tuple[tuple[ReferenceLine, ...], tuple[str, ...]]:
    """Return the reference lines of a task, one set for all of its groups or several, and the warnings of runs whose
    objective does not respond.

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
    ]
    said = []
    for text, labels in warned.items():
        whose = "" if len(labels) == len(groups) else f" ({'; '.join(labels)})"
        said.append(f"Warning{whose}: {text}.")
    return tuple(lines), tuple(said)


def _over_pretrainings(levels: Sequence[Levels]) -> Levels:
    """The lines of a group: where its runs begin with several pre-training runs, which have lines of their own, their
    means and the standard errors of these."""
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
    """Mean of a line over contexts, and its standard error: NaN where one of them has none."""
    values = [own[line]["value"] for own in contexts]
    errors = [math.nan if own[line]["standard_error"] is None else own[line]["standard_error"] for own in contexts]
    return math.fsum(values) / len(values), math.hypot(*errors) / len(errors)
