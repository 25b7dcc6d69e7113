"""Per-run values of studies as CSV files, and run folders made from these for a report to read.

`<study>_runs.csv` has one row for each run. `<study>_run_curves.csv` has the rows of their metrics that figures and
comparisons need; a column without a value is an empty cell. Together they hold all that the tables of a study are
computed from, so `restore_runs` and a report give the same tables as the original run folders.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.scores import DEFAULT_CURVES, X_AXES, read_series
from llmrl.analysis.training_curves import find_common_frames, is_training_metric
from llmrl.results.groups import group_into_tasks
from llmrl.results.run_records import RunRecord, read_runs
from llmrl.results.study_settings import StudySettings, shorten_group_names
from llmrl.run.artifacts import CONFIG_NAME
from llmrl.run.metrics import FILE_NAME, KIND_KEY, X_KEY
from llmrl.run.status import SUMMARY_NAME, Status

SUMMARY_KEYS = (
    "recommendation",
    "recommendation_standard_error",
    "online_performance",
    "recommendations",
    "references",
)
"""Keys of `summary.json` that the file of runs has as columns, as JSON."""
CURVE_PREFIXES = ("recommendation/", "confirmation/")
"""Beginnings of the names of metrics that are stored besides the metric of the study."""
_IDENTITY = ("task", "group", "run", "seed", "env", "llm", "overrides", "shared", "result")


def write_runs(folder: Path, settings: StudySettings, runs: Path, curves: Path) -> None:
    """Write the per-run values of a study.

    Args:
        folder: folder with the finished runs.
        settings: settings of the study.
        runs, curves: paths of the two CSV files.
    """
    lines: list[dict[str, object]] = []
    points: list[dict[str, object]] = []
    for task in group_into_tasks(read_runs(folder), folder):
        names = shorten_group_names(task)
        finished = [run for group in task.groups for run in group.runs if run.state == "finished"]
        common = find_common_frames([run.folder for run in finished], None, None)
        for group in task.groups:
            for run in group.runs:
                if run.state == "finished":
                    lines.append(_line(run, task.title, group.format_name(names[group.label]), settings))
                    rows = _curve_rows(run, settings, None if common is None else common.bin_width)
                    points += [{"run": _name(run), **row} for row in rows]
    _write(runs, lines)
    if points:
        _write(curves, points)


def restore_runs(runs: Path, curves: Path, folder: Path) -> None:
    """Write run folders that have the values of `write_runs`.

    Args:
        runs, curves: paths of the two CSV files; the second one does not exist for runs without curves.
        folder: folder of the study to create.
    """
    metrics: dict[str, list[dict[str, Any]]] = {}
    for point in read_rows(curves) if curves.exists() else ():
        cells = {name: cell for name, cell in point.items() if cell and name != "run"}
        row = {name: cell if name in (KIND_KEY, X_KEY) else json.loads(cell) for name, cell in cells.items()}
        metrics.setdefault(point["run"], []).append(row)
    for line in read_rows(runs):
        place = folder / line["run"]
        place.mkdir(parents=True)
        (place / CONFIG_NAME).write_text("{}\n")
        Status(
            state="finished",
            llm=line["llm"],
            env=line["env"],
            overrides=json.loads(line["overrides"]),
            shared=json.loads(line["shared"]),
            result=json.loads(line["result"]) if line["result"] else None,
        ).write(place)
        summary = {key: json.loads(cell) for key, cell in line.items() if key not in _IDENTITY and cell}
        (place / SUMMARY_NAME).write_text(json.dumps(summary))
        rows = metrics.get(line["run"], [])
        (place / FILE_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column name."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _name(run: RunRecord) -> str:
    return f"{run.group}/s{run.seed}"


def _line(run: RunRecord, task: str, group: str, settings: StudySettings) -> dict[str, object]:
    overrides = json.dumps([f"{key}={value}" for key, value in run.overrides.items()])
    identity = (
        task,
        group,
        _name(run),
        run.seed,
        run.env,
        run.llm,
        overrides,
        json.dumps(run.shared_factors),
        run.result,
    )
    summary = run.summary()
    kept = {key: json.dumps(summary[key]) for key in SUMMARY_KEYS if key in summary}
    if settings.map is not None:
        keys = ("mechanism", "objective", "validated", "kinds")
        history = [{key: row[key] for key in keys if key in row} for row in summary["history"]]
        kept["history"] = json.dumps(history)
    return {**dict(zip(_IDENTITY, identity, strict=True)), **kept}


def _curve_rows(run: RunRecord, settings: StudySettings, width: int | None) -> list[dict[str, Any]]:
    """Return the rows of a run's metrics that the study needs, without other metrics, times and empty values."""
    path = run.folder / FILE_NAME
    content = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    logged = {name for row in content for name, value in row.items() if value is not None}
    metrics = [settings.metric] if settings.metric else list(DEFAULT_CURVES)
    if settings.metric is None:  # only the first one that was logged is drawn
        metrics = [name for name in metrics if name in logged or is_training_metric(run.folder, name)][:1]
    axis = X_AXES[settings.x_axis][0]
    rows = []
    for metric in metrics:
        if is_training_metric(run.folder, metric):  # binned episodes of training, which have a file of their own
            for place, value in zip(*read_series(run.folder, metric, settings.x_axis, width), strict=True):
                rows.append({KIND_KEY: "training", X_KEY: axis, axis: float(place), metric: float(value)})
    for row in content:
        names = [name for name in row if name in metrics or name.startswith(CURVE_PREFIXES)]
        if any(row[name] is not None for name in names):
            kept = {KIND_KEY, X_KEY, axis, row.get(X_KEY), *names}
            rows.append({name: value for name, value in row.items() if name in kept and value is not None})
    return rows


def _write(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows whose columns are the union of their keys, in the order of first appearance."""
    columns = _union(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _union(rows: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))
