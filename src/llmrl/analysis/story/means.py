"""Means over the runs of a group, as the tables of a story write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.analysis.replication import units_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import standard_error, unit_means
from llmrl.analysis.table_format import NOTHING, NumberFormat

Estimate = tuple[float, float]
"""A mean and its standard error, NaN where the runs cannot tell it."""
UNKNOWN: Estimate = (float("nan"), float("nan"))


def over_runs(values: Sequence[float], runs: Sequence[RunRecord]) -> Estimate:
    """Return the mean of `values` [n_runs] over top-level units and its standard error; `UNKNOWN` without values."""
    known = [(value, run) for value, run in zip(values, runs, strict=True) if np.isfinite(value)]
    if not known:
        return UNKNOWN
    scores = np.array([value for value, _ in known])
    units = units_of([run for _, run in known])
    return float(unit_means(scores, units).mean()), float(standard_error(scores, units))


def form_of(estimates: Sequence[Estimate]) -> NumberFormat:
    """Return how the numbers of a column are written: no finer than their errors tell."""
    numbers = np.array(estimates, dtype=float).reshape(-1, 2)
    values, errors = (column[np.isfinite(column)] for column in numbers.T)
    return NumberFormat(values, errors)


def written(estimate: Estimate, form: NumberFormat) -> str:
    """Return `12.3 ± 0.4`; without the error where it is not known."""
    value, error = estimate
    if not np.isfinite(value):
        return NOTHING
    return form(value) + (f" ± {form(error)}" if np.isfinite(error) else "")


def bars(estimates: Sequence[Estimate]) -> list[tuple[float, float] | None]:
    """Return where a bar from zero to each mean of a column begins and ends, in [0, 1] of the column's range."""
    known = [value for value, _ in estimates if np.isfinite(value)]
    low, high = min([0.0, *known]), max([0.0, *known])
    if high == low:
        return [None] * len(estimates)
    ends = [sorted(((0.0 - low) / (high - low), (value - low) / (high - low))) for value, _ in estimates]
    return [(end[0], end[1]) if np.isfinite(value) else None for end, (value, _) in zip(ends, estimates, strict=True)]
