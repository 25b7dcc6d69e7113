"""Per-run values of studies as CSV files, and run folders that are restored from these files.

`<study>_runs.csv` contains a row for each run. `<study>_run_curves.csv` contains the rows of metrics that figures and
comparisons require; missing values are empty cells. The tables of a study can be computed from these files: a report of
the restored run folders has the same tables as a report of the original ones.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from llmrl.analysis.scores import DEFAULT_CURVE_METRICS, X_AXES, read_series
from llmrl.analysis.training_curves import find_frame_budget, is_training_metric
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
"""Keys of `summary.json` that are columns of `<study>_runs.csv`, as JSON."""
CURVE_PREFIXES = ("recommendation/", "confirmation/")
"""Prefixes of metrics that are stored in addition to the metric of the study."""
_RUN_COLUMNS = ("task", "group", "run", "seed", "env", "llm", "overrides", "shared", "result")


def write_runs(folder: Path, settings: StudySettings, runs: Path, curves: Path) -> None:
    """Write the per-run values of a study.

    Args:
        folder: folder with the finished runs.
        settings: settings of the study.
        runs, curves: paths of the two CSV files.
    """
    run_rows: list[dict[str, object]] = []
    curve_rows: list[dict[str, object]] = []
    for task in group_into_tasks(read_runs(folder), folder):
        names = shorten_group_names(task)
        finished = [run for group in task.groups for run in group.runs if run.state == "finished"]
        common = find_frame_budget([run.folder for run in finished], None, None)
        for group in task.groups:
            for run in group.runs:
                if run.state == "finished":
                    run_rows.append(_make_run_row(run, task.title, group.format_name(names[group.label]), settings))
                    rows = _make_curve_rows(run, settings, None if common is None else common.bin_width)
                    curve_rows += [{"run": _format_run_name(run), **row} for row in rows]
    _write_csv(runs, run_rows)
    if curve_rows:
        _write_csv(curves, curve_rows)


def restore_runs(runs: Path, curves: Path, folder: Path) -> None:
    """Create run folders with the values that `write_runs` stored.

    Args:
        runs, curves: paths of the two CSV files; `curves` does not exist for runs without curves.
        folder: folder of the study to create.
    """
    metrics: dict[str, list[dict[str, Any]]] = {}
    for curve_row in read_rows(curves) if curves.exists() else ():
        cells = {name: cell for name, cell in curve_row.items() if cell and name != "run"}
        row = {name: cell if name in (KIND_KEY, X_KEY) else json.loads(cell) for name, cell in cells.items()}
        metrics.setdefault(curve_row["run"], []).append(row)
    for run_row in read_rows(runs):
        run_folder = folder / run_row["run"]
        run_folder.mkdir(parents=True)
        (run_folder / CONFIG_NAME).write_text("{}\n")
        Status(
            state="finished",
            llm=run_row["llm"],
            env=run_row["env"],
            overrides=json.loads(run_row["overrides"]),
            shared=json.loads(run_row["shared"]),
            result=json.loads(run_row["result"]) if run_row["result"] else None,
        ).write(run_folder)
        summary = {key: json.loads(cell) for key, cell in run_row.items() if key not in _RUN_COLUMNS and cell}
        (run_folder / SUMMARY_NAME).write_text(json.dumps(summary))
        rows = metrics.get(run_row["run"], [])
        (run_folder / FILE_NAME).write_text("".join(json.dumps(row) + "\n" for row in rows))


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file by column name."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _format_run_name(run: RunRecord) -> str:
    return f"{run.group}/s{run.seed}"


def _make_run_row(run: RunRecord, task: str, group: str, settings: StudySettings) -> dict[str, object]:
    overrides = json.dumps([f"{key}={value}" for key, value in run.overrides.items()])
    run_cells = (
        task,
        group,
        _format_run_name(run),
        run.seed,
        run.env,
        run.llm,
        overrides,
        json.dumps(run.shared_factors),
        run.result,
    )
    summary = run.summary()
    summary_cells = {key: json.dumps(summary[key]) for key in SUMMARY_KEYS if key in summary}
    if settings.map is not None:
        keys = ("mechanism", "objective", "validated", "kinds")
        history = [{key: row[key] for key in keys if key in row} for row in summary["history"]]
        summary_cells["history"] = json.dumps(history)
    return {**dict(zip(_RUN_COLUMNS, run_cells, strict=True)), **summary_cells}


def _make_curve_rows(run: RunRecord, settings: StudySettings, width: int | None) -> list[dict[str, Any]]:
    """Return the rows of metrics that the study requires, without other metrics, times and empty values."""
    path = run.folder / FILE_NAME
    logged_rows = [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []
    logged_metrics = {name for row in logged_rows for name, value in row.items() if value is not None}
    metrics = [settings.metric] if settings.metric else list(DEFAULT_CURVE_METRICS)
    if settings.metric is None:  # figures show the first metric that was logged
        metrics = [name for name in metrics if name in logged_metrics or is_training_metric(run.folder, name)][:1]
    axis = X_AXES[settings.x_axis][0]
    rows = []
    for metric in metrics:
        if is_training_metric(run.folder, metric):  # binned training episodes, which are in a separate file
            for x, value in zip(*read_series(run.folder, metric, settings.x_axis, width), strict=True):
                rows.append({KIND_KEY: "training", X_KEY: axis, axis: float(x), metric: float(value)})
    for row in logged_rows:
        names = [name for name in row if name in metrics or name.startswith(CURVE_PREFIXES)]
        if any(row[name] is not None for name in names):
            columns = {KIND_KEY, X_KEY, axis, row.get(X_KEY), *names}
            rows.append({name: value for name, value in row.items() if name in columns and value is not None})
    return rows


def _write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows; the columns are the union of their keys in the order of first appearance."""
    columns = _list_columns(rows)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _list_columns(rows: Iterable[Mapping[str, object]]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row))
