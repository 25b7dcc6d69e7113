"""Tables of runs as pandas data frames. All frames of one kind have the same first columns.

This module arranges the columns that `run_columns` reads from files. If a file cannot be read, a warning names it, its
rows are left out, and the other runs remain.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.api.run_columns import (
    Columns,
    read_call_columns,
    read_evaluation_columns,
    read_final_columns,
    read_metric_columns,
    read_proposal_columns,
    read_training_columns,
    to_time,
)
from llmrl.core.errors import CheckpointError, ConfigError, RunFolderError
from llmrl.llms.call_log import FILE_NAME as CALLS
from llmrl.results.principal_scores import ONLINE, RECOMMENDATION, principal_scores
from llmrl.results.run_records import RunRecord
from llmrl.run.metrics import FILE_NAME as METRICS

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Schema = Mapping[str, str]
"""Name -> dtype of pandas, in order."""

_RUN_COLUMNS: Schema = {"run": "category", "label": "category", "seed": "int64"}
"""First columns of every table but `RUNS`, which has them, too."""

RUNS: Schema = {
    "run": "str",
    "name": "str",
    "label": "str",
    "seed": "int64",
    "hash": "str",
    "state": "str",
    "is_prerequisite": "bool",
    "result": "float64",
    "recommendation": "float64",
    "online_performance": "float64",
    "environment": "str",
    "model": "str",
    "attempts": "int64",
    "done": "float64",
    "total": "float64",
    "unit": "str",
    "started": "datetime64[us, UTC]",
    "updated": "datetime64[us, UTC]",
    "error": "str",
    "folder": "str",
}
METRICS_LONG: Schema = {
    **_RUN_COLUMNS,
    "kind": "category",
    "axis": "category",
    "place": "int64",
    "env_steps": "Int64",
    "elapsed_s": "float64",
    "metric": "category",
    "value": "float64",
}
PROPOSALS: Schema = {
    **_RUN_COLUMNS,
    "step": "int64",
    "candidate": "int64",
    "context": "str",
    "objective": "float64",
    "standard_error": "float64",
    "episodes": "int64",
    "fallback": "boolean",
    "reasoning": "str",
}
EPISODES_WIDE: Schema = {
    **_RUN_COLUMNS,
    "source": "category",
    "policy": "category",
    "mode": "category",
    "mechanism": "category",
    "episode": "int64",
    "start": "Int64",
    "return": "float64",
    "base_return": "float64",
    "length": "float64",
    "objective": "float64",
}
LLM_CALLS: Schema = {
    **_RUN_COLUMNS,
    "time": "datetime64[us, UTC]",
    "model": "category",
    "purpose": "category",
    "prompt": "category",
    "outcome": "category",
    "valid": "boolean",
    "fault": "str",
    "cached": "boolean",
    "attempts": "Int64",
    "prompt_tokens": "Int64",
    "completion_tokens": "Int64",
    "cached_tokens": "Int64",
    "cache_write_tokens": "Int64",
    "reasoning_tokens": "Int64",
    "cost": "float64",
    "possible_cost": "float64",
    "latency": "float64",
    "finish": "category",
    "repeat": "Int64",
    "stream": "Int64",
    "hash": "str",
    "reply": "str",
    "thoughts": "str",
    "error": "str",
}


@dataclass(frozen=True)
class NamedRun:
    """A run with its names in tables.

    Attributes:
        record: record of the run.
        run: unique name.
        label: label of its group.
    """

    record: RunRecord
    run: str
    label: str

    @property
    def columns(self) -> dict[str, Any]:
        return {"run": self.run, "label": self.label, "seed": self.record.seed}


def pandas() -> Any:
    """Return the module `pandas`.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f"tables of runs need pandas, which cannot be imported ({error}): pip install 'llmrl[analysis]'"
        ) from error
    return pandas


def _score(run: RunRecord, key: str) -> float:
    scores = principal_scores([run], key) if run.state == "finished" else None
    return math.nan if scores is None else float(scores[0])


def runs_frame(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """Return a frame with one row for each run.

    Overrides that differ between runs have their own columns, numeric if all their values are numbers.
    """
    prerequisites = {folder for run in runs for folder in run.record.prerequisites}
    rows = [
        {
            "run": run.run,
            "name": run.record.name,
            "label": run.label,
            "seed": run.record.seed,
            "hash": run.record.digest,
            "state": run.record.state,
            "is_prerequisite": run.record.folder in prerequisites,
            "result": math.nan if run.record.result is None else run.record.result,
            RECOMMENDATION: _score(run.record, RECOMMENDATION),
            ONLINE: _score(run.record, ONLINE),
            "environment": run.record.env,
            "model": run.record.llm,
            "attempts": run.record.attempt,
            "done": run.record.progress.done,
            "total": math.nan if run.record.progress.total is None else run.record.progress.total,
            "unit": run.record.progress.unit,
            "started": to_time(run.record.started),
            "updated": to_time(run.record.updated),
            "error": run.record.error,
            "folder": str(run.record.folder),
        }
        for run in runs
    ]
    frame = _frame([{name: [row[name] for row in rows] for name in RUNS}] if rows else [], RUNS)
    overrides = [run.record.overrides for run in runs]
    keys = dict.fromkeys(key for run_overrides in overrides for key in run_overrides)
    for key in keys:
        values = [run_overrides.get(key) for run_overrides in overrides]
        if len(set(values)) > 1:
            frame[key if key not in RUNS else f"{key}="] = _convert_overrides(values)
    return frame


def metrics_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """Return a frame with one row for each finite number of `metrics.jsonl`.

    Metrics of time are left out, except `elapsed_s`.
    """
    return _frame([chunk for run in runs for chunk in _read_chunks(run, METRICS, read_metric_columns)], METRICS_LONG)


def proposals_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """Return a frame with one row for each proposal of a principal.

    Mechanisms and policy parameters have columns `parameter.<name>`.
    """
    return _frame(
        [chunk for run in runs for chunk in _read_chunks(run, "its proposals", read_proposal_columns)], PROPOSALS
    )


def episodes_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """Return a frame with one row for each recorded episode.

    Episodes were played during training (`training`), at the end of a run or by players that do not learn (`final`), or
    in an evaluation (the name of its folder).
    """
    readers: tuple[tuple[str, Callable[[Path], list[Columns]]], ...] = (
        ("its training episodes", read_training_columns),
        ("its final episodes", read_final_columns),
        ("an evaluation", read_evaluation_columns),
    )
    chunks = [chunk for run in runs for subject, reader in readers for chunk in _read_chunks(run, subject, reader)]
    return _frame(chunks, EPISODES_WIDE)


def calls_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """Return a frame with one row for each call to a chat model."""
    return _frame([chunk for run in runs for chunk in _read_chunks(run, CALLS, read_call_columns)], LLM_CALLS)


def _read_chunks(run: NamedRun, subject: str, reader: Callable[[Path], list[Columns]]) -> list[Columns]:
    """Return the columns that `reader` finds in a run, with those that identify the run; nothing if it is damaged."""
    try:
        chunks = reader(run.record.folder)
    except (RunFolderError, CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: %s cannot be read and is left out: %s", run.record.folder, subject, error)
        return []
    return [{**run.columns, **chunk} for chunk in chunks]


def _frame(chunks: Sequence[Columns], schema: Schema) -> pd.DataFrame:
    """Return a frame with the rows of all chunks: the columns of `schema` first, then other, numeric ones."""
    pd = pandas()
    extra_columns = [name for name in dict.fromkeys(name for chunk in chunks for name in chunk) if name not in schema]
    lengths = [_length(chunk) for chunk in chunks]
    columns = {}
    for name, dtype in {**schema, **dict.fromkeys(extra_columns, "float64")}.items():
        parts = [_part(chunk.get(name), n, dtype) for chunk, n in zip(chunks, lengths, strict=True)]
        if dtype == "category":
            columns[name] = pd.api.types.union_categoricals([_part(None, 0, dtype), *parts])
        else:
            column = np.concatenate(parts) if parts else np.zeros(0)
            columns[name] = _convert(column, dtype)
    return pd.DataFrame(columns)


def _length(chunk: Columns) -> int:
    """Return the number of rows of a chunk, from the first column that has one value per row."""
    for values in chunk.values():
        if isinstance(values, tuple):
            return len(values[1])
        if not isinstance(values, str | int | float | None):
            return len(values)
    return 1


def _part(values: Any, n: int, dtype: str) -> Any:
    """Return one column of one chunk, [n]: categories as in pandas, others as NumPy arrays."""
    pd = pandas()
    if dtype == "category":
        if isinstance(values, tuple):
            names, codes = values
            return pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype="str"))
        if isinstance(values, str | None):
            names = [] if values is None else [values]
            codes = np.full(n, len(names) - 1)
            return pd.Categorical.from_codes(codes, categories=pd.Index(names, dtype="str"))
        texts = ["" if value is None else str(value) for value in values]
        return pd.Categorical(texts, categories=pd.Index(dict.fromkeys(texts), dtype="str"))
    if dtype in ("str", "boolean") or dtype.startswith("datetime"):
        cells = [values] * n if isinstance(values, str | float | None) else list(values)
        array = np.empty(n, dtype=object)
        array[:] = cells
        return array
    empty = math.nan if values is None else values
    return np.full(n, empty) if isinstance(empty, int | float) else np.asarray(empty)


def _convert(column: np.ndarray, dtype: str) -> Any:
    pd = pandas()
    if dtype == "str":
        return pd.array(["" if x is None else str(x) for x in column], dtype="str")
    if dtype.startswith("datetime"):
        return pd.to_datetime(pd.Series(column, dtype="float64"), unit="s", utc=True).astype(dtype)
    if dtype == "boolean":
        return pd.array([x if isinstance(x, bool) else None for x in column], dtype="boolean")
    if dtype == "Int64":
        numbers = np.asarray(column, dtype=np.float64)
        return pd.array([None if math.isnan(x) else round(x) for x in numbers.tolist()], dtype="Int64")
    return column.astype(dtype)


def _convert_overrides(values: Sequence[str | None]) -> Any:
    """Return overrides as numbers if all given values are numbers, otherwise as text; missing ones are NA."""
    pd = pandas()
    try:
        return pd.array([math.nan if x is None else float(x) for x in values], dtype="float64")
    except ValueError:
        return pd.array([None if x is None else x for x in values], dtype="str")
