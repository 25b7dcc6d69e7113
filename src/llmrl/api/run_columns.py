"""Columns of the tables of runs, as the files of one run hold them."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

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

Columns = Mapping[str, Any]
"""Name -> one value for all rows, or a sequence with one value per row."""

PARAMETER = "parameter."
"""Prefix of the columns of `proposals` that hold the proposed numbers."""
TRAINING, FINAL = "training", "final"
"""Sources of episodes inside a run; those of an evaluation are named after its folder."""
_OBJECTIVE = re.compile(r"objective \(.*\)")
_COLUMN_NAMES = {"return per agent": "return", "base return per agent": "base_return"}


def read_metric_columns(folder: Path) -> list[Columns]:
    """Return the finite numbers of `metrics.jsonl`, a chunk for each kind of line."""
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


def read_proposal_columns(folder: Path) -> list[Columns]:
    """Return the proposals of the principal, with a column for each parameter."""
    proposals = read_proposed(folder)
    names = list(dict.fromkeys(name for proposal in proposals for name in proposal.parameters))
    if not proposals:
        return []
    return [
        {
            "step": [proposal.step for proposal in proposals],
            "candidate": [proposal.candidate for proposal in proposals],
            "context": [proposal.context for proposal in proposals],
            "objective": [proposal.objective for proposal in proposals],
            "standard_error": [proposal.standard_error for proposal in proposals],
            "episodes": [len(proposal.values) for proposal in proposals],
            "fallback": [proposal.fallback for proposal in proposals],
            "reasoning": [proposal.reasoning for proposal in proposals],
            **{PARAMETER + name: [proposal.parameters.get(name, math.nan) for proposal in proposals] for name in names},
        }
    ]


def read_training_columns(folder: Path) -> list[Columns]:
    """Return the training episodes of the run."""
    episodes = read_training_episodes(folder)
    if episodes is None or not len(episodes.metrics["length"]):
        return []
    count = np.arange(len(episodes.metrics["length"]))
    places = {"start": episodes.places["start"], "game": episodes.places["game"].astype(np.float64)}
    return [{"source": TRAINING, "policy": "student", "episode": count, **places, **episodes.metrics}]


def read_final_columns(folder: Path) -> list[Columns]:
    """Return the final episodes of the run."""
    rows = read_lines(folder / EPISODES)
    if not rows:
        try:
            content = read_object(folder / RESULTS_NAME)
        except FileNotFoundError:
            return []
        return [_build_metric_columns(content["per_episode"]) | {"source": FINAL}]
    names = dict.fromkeys(name for row in rows for name, x in row.items() if is_number(x))
    columns = {name: [to_float(row.get(name)) for row in rows] for name in names if name != "episode"}
    return [{"source": FINAL, "episode": [int(row["episode"]) for row in rows], **columns}]


def read_evaluation_columns(folder: Path) -> list[Columns]:
    """Return the episodes of all evaluations of the run, a chunk for each player."""
    chunks: list[Columns] = []
    for path in sorted(folder.glob(f"evaluation*/{RESULTS_NAME}")):
        content = read_object(path)
        for mechanism in content.get("mechanisms", [content]):
            for player in mechanism["players"]:
                labels = {"source": path.parent.name, "policy": player["policy"], "mode": player["mode"]}
                chunks.append(_build_metric_columns(player["per_episode"]) | labels | {"mechanism": mechanism["name"]})
    return chunks


def _build_metric_columns(per_episode: Mapping[str, Sequence[float | None]]) -> dict[str, Any]:
    """Return columns of measurements, under the names that all sources share."""
    metrics = {
        _COLUMN_NAMES.get(name, _OBJECTIVE.sub("objective", name)): values for name, values in per_episode.items()
    }
    columns: dict[str, Any] = {name: [to_float(x) for x in values] for name, values in metrics.items()}
    return {"episode": np.arange(max(map(len, columns.values()), default=0)), **columns}


def read_call_columns(folder: Path) -> list[Columns]:
    """Return the calls to chat models."""
    path = folder / CALLS
    calls = list(read_calls(path)) if path.is_file() else []
    if not calls:
        return []
    plain = ("model", "purpose", "prompt", "fault", "finish", "hash", "reply", "thoughts", "error", "valid", "latency")
    counts = ("attempts", *REPLY_COUNTS, "repeat", "stream")
    columns: dict[str, Any] = {name: [call.get(name) for call in calls] for name in plain}
    columns |= {name: [to_float(call.get(name)) for call in calls] for name in counts}
    errors = [call["lost"] if call.get("unsettled") else call.get("error") for call in calls]
    return [
        {
            **columns,
            "time": [to_time(call.get("time", 0.0)) for call in calls],
            "outcome": [_outcome(call) for call in calls],
            "cached": [call.get("cached") for call in calls],
            "attempts": [to_float(call.get("attempt", call.get("attempts"))) for call in calls],
            "latency": [to_float(call.get("latency")) for call in calls],
            "cost": [_cost(call) for call in calls],
            "possible_cost": [to_float((call.get("reserved") or {}).get("cost")) for call in calls],
            "error": ["" if text is None else str(text) for text in errors],
        }
    ]


def _outcome(call: Mapping[str, Any]) -> str:
    """Return the outcome of a call: `reply`, `failed` (the provider generated nothing), or `lost` (unknown)."""
    return "lost" if call.get("unsettled") else "failed" if "error" in call else "reply"


def _cost(call: Mapping[str, Any]) -> float:
    """Return the known cost in US dollars: 0 for a reply from the cache, NaN if it is unknown."""
    return 0.0 if call.get("cached") else to_float(call.get("cost"))


def is_number(value: object) -> bool:
    """Return whether a value is a number, and not a Boolean."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def to_float(value: object) -> float:
    """Return a number as a float; NaN for any other value."""
    return float(value) if isinstance(value, int | float) else math.nan


def to_time(seconds: float) -> float:
    """Return a Unix time; NaN if it is missing."""
    return seconds or math.nan
