"""Metrics of the runs of a group, their means, and the text of these in tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.core.metric_kinds import Kind
from llmrl.results.replication import units_of
from llmrl.results.run_records import RunRecord
from llmrl.results.table_format import NOTHING, NumberFormat
from llmrl.run.metrics import FILE_NAME, read_metrics
from llmrl.statistics.estimators import standard_error, unit_means

Estimate = tuple[float, float]
"""A mean and its standard error; NaN if they are unknown."""
UNKNOWN: Estimate = (float("nan"), float("nan"))


def read_rows(folder: Path, kind: Kind | None = None) -> list[dict[str, Any]]:
    """Return a run's rows of metrics, of one `kind` or all; empty if the file is missing or damaged.

    The tables of scores report damaged files.
    """
    path = folder / FILE_NAME
    try:
        return read_metrics(path, kind) if path.is_file() else []
    except RunFolderError:
        return []


def has_text(folder: Path, text: str) -> bool:
    """Return whether a run's file of metrics contains a text."""
    try:
        return text.encode() in read_bytes(folder / FILE_NAME)
    except OSError:
        return False


def mean_over_runs(values: Sequence[float], runs: Sequence[RunRecord]) -> Estimate:
    """Return the mean of `values` [n_runs] over top-level units with its standard error; `UNKNOWN` without any."""
    finite = [(value, run) for value, run in zip(values, runs, strict=True) if np.isfinite(value)]
    if not finite:
        return UNKNOWN
    scores = np.array([value for value, _ in finite])
    units = units_of([run for _, run in finite])
    return float(unit_means(scores, units).mean()), float(standard_error(scores, units))


def number_form(estimates: Sequence[Estimate]) -> NumberFormat:
    """Return the format of the numbers of a column, with no more decimals than their errors justify."""
    numbers = np.array(estimates, dtype=float).reshape(-1, 2)
    values, errors = (column[np.isfinite(column)] for column in numbers.T)
    return NumberFormat(values, errors)


def estimate_text(estimate: Estimate, form: NumberFormat) -> str:
    """Return a mean with its standard error as text, `12.3 ± 0.4`; without the error if it is unknown."""
    value, error = estimate
    if not np.isfinite(value):
        return NOTHING
    return form(value) + (f" ± {form(error)}" if np.isfinite(error) else "")
