"""Tables of runs as pandas frames: one column dictionary a run, put together with the same columns whatever was found.

Files are read by the modules that write them; what is here only arranges what they return. A file that cannot be read
costs its rows: a warning names it, and the other runs are still there.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.analysis.principal_scores import ONLINE, RECOMMENDATION, principal_scores
from llmrl.analysis.runs import RunRecord
from llmrl.core.errors import CheckpointError, ConfigError, RunFolderError
from llmrl.core.plain_data import read_object
from llmrl.core.records import REPLY_COUNTS
from llmrl.llms.call_log import FILE_NAME as CALLS
from llmrl.llms.call_log import read_calls
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.episode_files import EPISODES
from llmrl.run.files import read_lines
from llmrl.run.metrics import COUNTERS, TIME, metric_tables
from llmrl.run.metrics import FILE_NAME as METRICS
from llmrl.run.proposals import read_proposed
from llmrl.run.training_episodes import read_training_episodes

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

Columns = Mapping[str, Any]
"""Name -> one value for all rows, or a sequence with one a row."""
Schema = Mapping[str, str]
"""Name -> dtype of pandas, in order."""

_OF_RUN: Schema = {"run": "category", "label": "category", "seed": "int64"}
"""The first columns of every table about something inside a run; they are columns of `RUNS`, too."""

RUNS: Schema = {
    "run": "str",
    "name": "str",
    "label": "str",
    "seed": "int64",
    "hash": "str",
    "state": "str",
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
    **_OF_RUN,
    "kind": "category",
    "axis": "category",
    "place": "int64",
    "env_steps": "Int64",
    "elapsed_s": "float64",
    "metric": "category",
    "value": "float64",
}
PROPOSALS: Schema = {
    **_OF_RUN,
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
    **_OF_RUN,
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
    **_OF_RUN,
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
PARAMETER = "parameter."
"""Of the columns of `proposals` that hold the numbers that were proposed."""
TRAINING, FINAL = "training", "final"
"""Sources of episodes inside a run; those of an evaluation are named after its folder."""
_OBJECTIVE = re.compile(r"objective \(.*\)")
_RENAMED = {"return per agent": "return", "base return per agent": "base_return"}


@dataclass(frozen=True)
class NamedRun:
    """A run with what tables call it: `run`, which tells it from all others, and the `label` of its group."""

    record: RunRecord
    run: str
    label: str

    @property
    def columns(self) -> dict[str, Any]:
        return {"run": self.run, "label": self.label, "seed": self.record.seed}


def pandas() -> Any:
    """The module.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise ConfigError(
            f"tables of runs are pandas frames, and pandas cannot be imported ({error}): pip install 'llmrl[analysis]'"
        ) from error
    return pandas


def _score(run: RunRecord, key: str) -> float:
    found = principal_scores([run], key) if run.state == "finished" else None
    return math.nan if found is None else float(found[0])


def runs_frame(runs: Sequence[NamedRun]) -> pd.DataFrame:
    """One row a run; an override that not all of them share is a column of its own, a number where all are."""
    rows = [
        {
            "run": each.run,
            "name": each.record.name,
            "label": each.label,
            "seed": each.record.seed,
            "hash": each.record.digest,
            "state": each.record.state,
            "result": math.nan if each.record.result is None else each.record.result,
            RECOMMENDATION: _score(each.record, RECOMMENDATION),
            ONLINE: _score(each.record, ONLINE),
            "environment": each.record.env,
            "model": each.record.llm,
            "attempts": each.record.attempt,
            "done": each.record.progress.done,
            "total": math.nan if each.record.progress.total is None else each.record.progress.total,
            "unit": each.record.progress.unit,
            "started": _time(each.record.started),
            "updated": _time(each.record.updated),
            "error": each.record.error,
            "folder": str(each.record.folder),
        }
        for each in runs
    ]
    frame = _frame([{name: [row[name] for row in rows] for name in RUNS}] if rows else [], RUNS)
    overrides = [each.record.overrides for each in runs]
    keys = dict.fromkeys(key for each in overrides for key in each)
    for key in keys:
        values = [each.get(key) for each in overrides]
        if len(set(values)) > 1:
            frame[key if key not in RUNS else f"{key}="] = _numbers_if_all_are(values)
    return frame


def metrics_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """One row a number of `metrics.jsonl`; numbers that were not finite are left out, and so is the clock but for
    `elapsed_s`."""
    return _frame([chunk for each in runs for chunk in _read(each, METRICS, _metrics)], METRICS_LONG)


def proposals_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """One row a proposal of a principal: a mechanism, or a policy's parameters, in columns `parameter.<name>`."""
    return _frame([chunk for each in runs for chunk in _read(each, "its proposals", _proposals)], PROPOSALS)


def episodes_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """One row an episode that was written down: played while agents learned (`training`), at the end of a run or by
    players that do not learn (`final`), or in an evaluation (the name of its folder)."""
    readers: tuple[tuple[str, Callable[[Path], list[Columns]]], ...] = (
        ("its training episodes", _training),
        ("its final episodes", _final),
        ("an evaluation", _evaluations),
    )
    chunks = [chunk for each in runs for what, reader in readers for chunk in _read(each, what, reader)]
    return _frame(chunks, EPISODES_WIDE)


def calls_frame(runs: Iterable[NamedRun]) -> pd.DataFrame:
    """One row a call to a chat model."""
    return _frame([chunk for each in runs for chunk in _read(each, CALLS, _calls)], LLM_CALLS)


def _read(each: NamedRun, what: str, reader: Callable[[Path], list[Columns]]) -> list[Columns]:
    """What `reader` finds in a run, with the columns that say whose it is; nothing where it is damaged."""
    try:
        found = reader(each.record.folder)
    except (RunFolderError, CheckpointError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s: %s cannot be read and is left out: %s", each.record.folder, what, error)
        return []
    return [{**each.columns, **chunk} for chunk in found]


def _metrics(folder: Path) -> list[Columns]:
    path = folder / METRICS
    if not path.is_file():
        return []
    chunks: list[Columns] = []
    for table in metric_tables(path).values():
        columns = table.columns
        unknown = np.full(len(columns[table.x]), math.nan)
        names = [name for name in columns if name not in COUNTERS and not name.startswith(TIME)]
        values = np.stack([columns[name] for name in names], axis=1) if names else np.zeros((len(unknown), 0))
        row, column = np.nonzero(np.isfinite(values))
        chunks.append(
            {
                "kind": table.kind,
                "axis": table.x,
                "place": columns[table.x][row].astype(np.int64),
                "env_steps": columns.get("env_steps", unknown)[row],
                "elapsed_s": columns.get(TIME + "elapsed_s", unknown)[row],
                "metric": (names, column),
                "value": values[row, column],
            }
        )
    return chunks


def _proposals(folder: Path) -> list[Columns]:
    found = read_proposed(folder)
    names = list(dict.fromkeys(name for each in found for name in each.parameters))
    if not found:
        return []
    return [
        {
            "step": [each.step for each in found],
            "candidate": [each.candidate for each in found],
            "context": [each.context for each in found],
            "objective": [each.objective for each in found],
            "standard_error": [each.standard_error for each in found],
            "episodes": [len(each.values) for each in found],
            "fallback": [each.fallback for each in found],
            "reasoning": [each.reasoning for each in found],
            **{PARAMETER + name: [each.parameters.get(name, math.nan) for each in found] for name in names},
        }
    ]


def _training(folder: Path) -> list[Columns]:
    recorded = read_training_episodes(folder)
    if recorded is None or not len(recorded.metrics["length"]):
        return []
    count = np.arange(len(recorded.metrics["length"]))
    places = {"start": recorded.places["start"], "game": recorded.places["game"].astype(np.float64)}
    return [{"source": TRAINING, "policy": "student", "episode": count, **places, **recorded.metrics}]


def _final(folder: Path) -> list[Columns]:
    rows = read_lines(folder / EPISODES)
    if not rows:
        try:
            content = read_object(folder / RESULTS_NAME)
        except FileNotFoundError:
            return []
        return [_measured(content["per_episode"]) | {"source": FINAL}]
    names = dict.fromkeys(name for row in rows for name, x in row.items() if _is_number(x))
    columns = {name: [_float(row.get(name)) for row in rows] for name in names if name != "episode"}
    return [{"source": FINAL, "episode": [int(row["episode"]) for row in rows], **columns}]


def _evaluations(folder: Path) -> list[Columns]:
    chunks: list[Columns] = []
    for path in sorted(folder.glob(f"evaluation*/{RESULTS_NAME}")):
        content = read_object(path)
        for mechanism in content.get("mechanisms", [content]):
            for player in mechanism["players"]:
                about = {"source": path.parent.name, "policy": player["policy"], "mode": player["mode"]}
                chunks.append(_measured(player["per_episode"]) | about | {"mechanism": mechanism["name"]})
    return chunks


def _measured(per_episode: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Columns of what was measured, under the names that all sources share."""
    named = {_RENAMED.get(name, _OBJECTIVE.sub("objective", name)): values for name, values in per_episode.items()}
    columns: dict[str, Any] = {name: [_float(x) for x in values] for name, values in named.items()}
    return {"episode": np.arange(max(map(len, columns.values()), default=0)), **columns}


def _calls(folder: Path) -> list[Columns]:
    path = folder / CALLS
    calls = list(read_calls(path)) if path.is_file() else []
    if not calls:
        return []
    plain = ("model", "purpose", "prompt", "fault", "finish", "hash", "reply", "thoughts", "error", "valid", "latency")
    counts = ("attempts", *REPLY_COUNTS, "repeat", "stream")
    columns: dict[str, Any] = {name: [call.get(name) for call in calls] for name in plain}
    columns |= {name: [_float(call.get(name)) for call in calls] for name in counts}
    lost = [call["lost"] if call.get("unsettled") else call.get("error") for call in calls]
    return [
        {
            **columns,
            "time": [_time(call.get("time", 0.0)) for call in calls],
            "outcome": [_outcome(call) for call in calls],
            "cached": [call.get("cached") for call in calls],
            "attempts": [_float(call.get("attempt", call.get("attempts"))) for call in calls],
            "latency": [_float(call.get("latency")) for call in calls],
            "cost": [_cost(call) for call in calls],
            "possible_cost": [_float((call.get("reserved") or {}).get("cost")) for call in calls],
            "error": ["" if text is None else str(text) for text in lost],
        }
    ]


def _outcome(call: Mapping[str, Any]) -> str:
    """`reply`, `failed` (nothing was generated, or the provider said so), or `lost`: nobody knows what it came to."""
    return "lost" if call.get("unsettled") else "failed" if "error" in call else "reply"


def _cost(call: Mapping[str, Any]) -> float:
    """US dollars that are settled: 0 of a reply from the cache, NaN where nobody knows."""
    return 0.0 if call.get("cached") else _float(call.get("cost"))


def _frame(chunks: Sequence[Columns], schema: Schema) -> pd.DataFrame:
    """The rows of all chunks: the columns of `schema` first, then the others, which are numbers."""
    pd = pandas()
    others = [name for name in dict.fromkeys(name for chunk in chunks for name in chunk) if name not in schema]
    lengths = [_length(chunk) for chunk in chunks]
    columns = {}
    for name, dtype in {**schema, **dict.fromkeys(others, "float64")}.items():
        parts = [_part(chunk.get(name), n, dtype) for chunk, n in zip(chunks, lengths, strict=True)]
        if dtype == "category":
            columns[name] = pd.api.types.union_categoricals([_part(None, 0, dtype), *parts])
        else:
            whole = np.concatenate(parts) if parts else np.zeros(0)
            columns[name] = _typed(whole, dtype)
    return pd.DataFrame(columns)


def _length(chunk: Columns) -> int:
    """Rows of a chunk: at least one of its columns says."""
    for values in chunk.values():
        if isinstance(values, tuple):
            return len(values[1])
        if not isinstance(values, str | int | float | None):
            return len(values)
    return 1


def _part(values: Any, n: int, dtype: str) -> Any:
    """One column of one chunk, [n]: categories as pandas has them, others as NumPy arrays."""
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
        given = [values] * n if isinstance(values, str | float | None) else list(values)
        whole = np.empty(n, dtype=object)
        whole[:] = given
        return whole
    empty = math.nan if values is None else values
    return np.full(n, empty) if isinstance(empty, int | float) else np.asarray(empty)


def _typed(whole: np.ndarray, dtype: str) -> Any:
    pd = pandas()
    if dtype == "str":
        return pd.array(["" if x is None else str(x) for x in whole], dtype="str")
    if dtype.startswith("datetime"):
        return pd.to_datetime(pd.Series(whole, dtype="float64"), unit="s", utc=True).astype(dtype)
    if dtype == "boolean":
        return pd.array([x if isinstance(x, bool) else None for x in whole], dtype="boolean")
    if dtype == "Int64":
        numbers = np.asarray(whole, dtype=np.float64)
        return pd.array([None if math.isnan(x) else round(x) for x in numbers.tolist()], dtype="Int64")
    return whole.astype(dtype)


def _numbers_if_all_are(values: Sequence[str | None]) -> Any:
    """Overrides as numbers where each that was typed is one; a run without the override has none."""
    pd = pandas()
    try:
        return pd.array([math.nan if x is None else float(x) for x in values], dtype="float64")
    except ValueError:
        return pd.array([None if x is None else x for x in values], dtype="str")


def _time(seconds: float) -> float:
    """Unix time; NaN where there is none."""
    return seconds or math.nan


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float(value: object) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
