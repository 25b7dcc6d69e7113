"""Tables of runs as pandas data frames; files that cannot be read are left out, with a warning in the log."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import CheckpointError, ConfigError, RunFolderError
from llmrl.core.plain_data import read_json_object
from llmrl.core.records import TOKEN_COUNT_FIELDS
from llmrl.llms.call_log import CALL_LOG_NAME as CALLS_FILE
from llmrl.llms.call_log import read_calls
from llmrl.results.principal_scores import ONLINE_PERFORMANCE, RECOMMENDATION, read_principal_scores
from llmrl.results.run_records import RunRecord
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.episode_files import EPISODES_NAME
from llmrl.run.files import read_json_lines
from llmrl.run.metrics import COUNTER_NAMES, TIME_PREFIX, read_metric_tables
from llmrl.run.metrics import FILE_NAME as METRICS_FILE
from llmrl.run.proposals import read_measured_proposals
from llmrl.run.training_episodes import read_training_episodes

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Schema = Mapping[str, str]
"""Mapping from column names to dtypes of pandas, in the order of the columns."""
RunColumns = Mapping[str, Any]
"""Values of the columns that identify a run: `run`, a unique name; `label`, the label of its group; `seed`."""
LabeledRuns = Sequence[tuple[RunRecord, RunColumns]]

_RUN_COLUMNS: Schema = {"run": "category", "label": "category", "seed": "int64"}
"""First columns of every table except `runs`, which has them in another order and as texts."""

RUNS_SCHEMA: Schema = {
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
METRICS_SCHEMA: Schema = {
    **_RUN_COLUMNS,
    "kind": "category",
    "axis": "category",
    "axis_value": "int64",
    "env_steps": "Int64",
    "elapsed_s": "float64",
    "metric": "category",
    "value": "float64",
}
PROPOSALS_SCHEMA: Schema = {
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
EPISODES_SCHEMA: Schema = {
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
CALLS_SCHEMA: Schema = {
    **_RUN_COLUMNS,
    "time": "datetime64[us, UTC]",
    "model": "category",
    "purpose": "category",
    "prompt": "category",
    "outcome": "category",
    "valid": "boolean",
    "parse_error": "str",
    "cached": "boolean",
    "attempts": "Int64",
    **dict.fromkeys(TOKEN_COUNT_FIELDS, "Int64"),
    "cost": "float64",
    "possible_cost": "float64",
    "latency": "float64",
    "finish": "category",
    "repeat": "Int64",
    "sample_seed": "Int64",
    "hash": "str",
    "reply": "str",
    "thoughts": "str",
    "error": "str",
}
_OBJECTIVE_PATTERN = re.compile(r"objective \(.*\)")
_COLUMN_NAMES = {"return per agent": "return", "base return per agent": "base_return"}


def import_pandas() -> Any:
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


def write_frame(frame: pd.DataFrame, path: Path, format: str) -> None:
    """Write a frame to a file and create its folder; `format` is `csv`, or `parquet` with Apache Arrow's types.

    Raises:
        ConfigError: the format is `parquet` and pyarrow is not installed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "csv":
        frame.to_csv(path, index=False)
        return
    try:
        frame.to_parquet(path, index=False)
    except ImportError as error:
        raise ConfigError(
            f"Parquet files need pyarrow, which cannot be imported ({error}): pip install 'llmrl[analysis]'"
        ) from error


def build_runs_frame(runs: LabeledRuns) -> pd.DataFrame:
    """Return a frame with one row for each run.

    Each override that differs between runs has a column; it is numeric if all its values are numbers. If its name is in
    `RUNS_SCHEMA`, "=" is appended to it.
    """
    pd = import_pandas()
    prerequisites = {folder for run, _ in runs for folder in run.prerequisites}
    rows = [
        {
            **run_columns,
            "name": run.name,
            "hash": run.config_hash,
            "state": run.state,
            "is_prerequisite": run.folder in prerequisites,
            "result": run.result,
            RECOMMENDATION: _read_principal_score(run, RECOMMENDATION),
            ONLINE_PERFORMANCE: _read_principal_score(run, ONLINE_PERFORMANCE),
            "environment": run.env,
            "model": run.llm,
            "attempts": run.attempt,
            "done": run.progress.done,
            "total": run.progress.total,
            "unit": run.progress.unit,
            "started": run.started or None,
            "updated": run.updated or None,
            "error": run.error,
            "folder": str(run.folder),
        }
        for run, run_columns in runs
    ]
    frame = _set_dtypes(pd.DataFrame(rows), RUNS_SCHEMA)
    for key in dict.fromkeys(key for run, _ in runs for key in run.overrides):
        texts = pd.Series([run.overrides.get(key) for run, _ in runs], dtype="str")
        if texts.nunique(dropna=False) > 1:
            numbers = pd.to_numeric(texts, errors="coerce").astype("float64")
            is_numeric = numbers.notna().equals(texts.notna())
            frame[key if key not in RUNS_SCHEMA else f"{key}="] = numbers if is_numeric else texts
    return frame


def _read_principal_score(run: RunRecord, key: str) -> float:
    scores = read_principal_scores([run], key) if run.state == "finished" else None
    return math.nan if scores is None else float(scores[0])


def read_table(name: str, runs: LabeledRuns) -> pd.DataFrame:
    """Return the table `name` of `_TABLES` for all runs: the columns of its schema, then further numeric columns."""
    schema, readers = _TABLES[name]
    pd = import_pandas()
    frames = [_set_dtypes(pd.DataFrame(), schema)]
    for run, run_columns in runs:
        for source, reader in readers.items():
            try:
                run_frames = [frame.assign(**run_columns) for frame in reader(run.folder) if len(frame)]
                frames += [_set_dtypes(frame, schema) for frame in run_frames]
            except (RunFolderError, CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                log.warning("%s: %s cannot be read and is left out: %s", run.folder, source, error)
    frame = pd.concat(frames, ignore_index=True)
    for column in (column for column, dtype in schema.items() if dtype == "category"):
        # An explicit dtype, because the categories of an empty column would not be texts.
        frame[column] = pd.Categorical(frame[column], pd.Index(frame[column].dropna().unique(), dtype="str"))
    return frame


def _set_dtypes(frame: pd.DataFrame, schema: Schema) -> pd.DataFrame:
    """Return a frame with the columns and dtypes of `schema`, then further columns as float64.

    Categories remain texts, because a concatenation of frames would convert different categories to objects.
    """
    dtypes = {**schema, **dict.fromkeys((name for name in frame if name not in schema), "float64")}
    frame = frame.reindex(columns=list(dtypes))
    return import_pandas().DataFrame({name: _convert_column(frame[name], dtype) for name, dtype in dtypes.items()})


def _convert_column(column: pd.Series, dtype: str) -> pd.Series:
    """Return a column with a dtype; values that cannot be converted become missing, and missing texts empty."""
    pd = import_pandas()
    if dtype in ("str", "category"):
        texts = column.astype(object).map(str, na_action="ignore").astype("str")
        return texts if dtype == "category" else texts.fillna("")
    if dtype == "boolean":
        return column.astype(object).map(lambda x: x if isinstance(x, bool) else None).astype(dtype)
    numbers = pd.to_numeric(column, errors="coerce")
    if dtype.startswith("datetime"):
        return pd.to_datetime(numbers.astype("float64"), unit="s", utc=True).astype(dtype)
    return (numbers.round() if dtype == "Int64" else numbers).astype(dtype)


def _read_metrics(folder: Path) -> list[pd.DataFrame]:
    path, id_columns = folder / METRICS_FILE, ["kind", "axis", "axis_value", "env_steps", "elapsed_s"]
    frames = []
    for table in read_metric_tables(path).values() if path.is_file() else ():
        wide = import_pandas().DataFrame(table.columns).rename(columns={f"{TIME_PREFIX}elapsed_s": "elapsed_s"})
        metrics = [name for name in table.columns if name not in COUNTER_NAMES and not name.startswith(TIME_PREFIX)]
        wide = wide.assign(kind=table.kind, axis=table.x, axis_value=wide[table.x]).reindex(
            columns=[*id_columns, *metrics]
        )
        long = wide.melt(id_columns, metrics, var_name="metric", value_name="value")
        frames.append(long[np.isfinite(long["value"])])
    return frames


def _read_proposals(folder: Path) -> list[pd.DataFrame]:
    rows = [
        {
            "step": proposal.step,
            "candidate": proposal.candidate,
            "context": proposal.context,
            "objective": proposal.objective,
            "standard_error": proposal.standard_error,
            "episodes": len(proposal.values),
            "fallback": proposal.fallback,
            "reasoning": proposal.reasoning,
            **{f"parameter.{name}": value for name, value in proposal.parameters.items()},
        }
        for proposal in read_measured_proposals(folder)
    ]
    return [import_pandas().DataFrame(rows)]


def _read_training_episodes(folder: Path) -> list[pd.DataFrame]:
    episodes = read_training_episodes(folder)
    if episodes is None:
        return []
    id_values = {name: episodes.indices[name] for name in ("start", "game")}
    frame = import_pandas().DataFrame({**id_values, **episodes.metrics}).assign(source="training", policy="student")
    return [frame.assign(episode=frame.index)]


def _read_final_episodes(folder: Path) -> list[pd.DataFrame]:
    if rows := read_json_lines(folder / EPISODES_NAME):
        numeric_columns = dict.fromkeys(
            name for row in rows for name, x in row.items() if isinstance(x, int | float) and not isinstance(x, bool)
        )
        numeric_rows = [{name: row.get(name) for name in numeric_columns} for row in rows]
        return [import_pandas().DataFrame(numeric_rows).assign(source="final")]
    try:
        content = read_json_object(folder / RESULTS_NAME)
    except FileNotFoundError:
        return []
    return [_to_episodes_frame(content["per_episode"]).assign(source="final")]


def _read_evaluations(folder: Path) -> list[pd.DataFrame]:
    frames = []
    for path in sorted(folder.glob(f"evaluation*/{RESULTS_NAME}")):
        content = read_json_object(path)
        for mechanism in content.get("mechanisms", [content]):
            for player in mechanism["players"]:
                labels = {"source": path.parent.name, "policy": player["policy"], "mode": player["mode"]}
                frames.append(_to_episodes_frame(player["per_episode"]).assign(**labels, mechanism=mechanism["name"]))
    return frames


def _to_episodes_frame(per_episode: Mapping[str, Sequence[float | None]]) -> pd.DataFrame:
    """Return a frame of values per episode, given by name, with the column names of `EPISODES_SCHEMA`."""
    columns = {_COLUMN_NAMES.get(key, _OBJECTIVE_PATTERN.sub("objective", key)): x for key, x in per_episode.items()}
    frame = import_pandas().DataFrame(columns)
    return frame.assign(episode=frame.index)


def _read_calls(folder: Path) -> list[pd.DataFrame]:
    path = folder / CALLS_FILE
    rows = []
    for call in read_calls(path) if path.is_file() else ():
        is_lost, is_cached = bool(call.get("unsettled")), bool(call.get("cached"))
        derived_columns = {
            "time": call.get("time") or None,
            # `failed`: the provider returned no reply; `lost`: it is unknown whether the call was charged.
            "outcome": "lost" if is_lost else "failed" if "error" in call else "reply",
            "attempts": call.get("attempt", call.get("attempts")),
            "cost": 0.0 if is_cached else call.get("cost"),
            "possible_cost": (call.get("reserved") or {}).get("cost"),
            "error": call["lost"] if is_lost else call.get("error"),
        }
        rows.append({name: call.get(name) for name in CALLS_SCHEMA if name not in _RUN_COLUMNS} | derived_columns)
    return [import_pandas().DataFrame(rows)]


_TABLES: Mapping[str, tuple[Schema, Mapping[str, Callable[[Path], list[pd.DataFrame]]]]] = {
    "metrics": (METRICS_SCHEMA, {METRICS_FILE: _read_metrics}),
    "proposals": (PROPOSALS_SCHEMA, {"its proposals": _read_proposals}),
    "episodes": (
        EPISODES_SCHEMA,
        {
            "its training episodes": _read_training_episodes,
            "its final episodes": _read_final_episodes,
            "an evaluation": _read_evaluations,
        },
    ),
    "llm_calls": (CALLS_SCHEMA, {CALLS_FILE: _read_calls}),
}
"""Schema and readers of each table except `runs`. A reader returns the frames of a run folder; its key, which describes
what it reads, is part of warnings."""
