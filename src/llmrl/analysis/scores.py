"""Scores of runs and curves of metrics, from run folders."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis import training_curves
from llmrl.core.errors import ConfigError, RunFolderError
from llmrl.core.folder_files import read_bytes
from llmrl.results.run_records import RunRecord
from llmrl.run.metrics import COUNTER_NAMES, FILE_NAME, KIND_KEY, TIME_PREFIX, list_metric_names_of_row
from llmrl.run.training_episodes import read_training_metric_names

X_AXES = {
    "env_steps": ("env_steps", "environment steps"),
    "proposals": ("proposals", "proposals tried"),
    "measurements": ("measurements", "measurements"),
    "updates": ("updates", "updates"),
    "samples": ("samples", "samples shown"),
    "seconds": (f"{TIME_PREFIX}elapsed_s", "seconds of the run"),
}
"""x axes of curves by option value: key in `metrics.jsonl`, and display name."""
DEFAULT_CURVE_METRICS = ("principal/objective", "search/return", "train/return")
"""Metrics that the loops maximize; by default the first one that the runs of a task have logged is drawn."""

Series = tuple[np.ndarray, np.ndarray]
"""Increasing x coordinates [n_points], and the finite values of a metric at these [n_points]."""


@dataclass(frozen=True)
class ScoreRule:
    """The definition of the score of a finished run.

    Args:
        metric: name of a metric in `metrics.jsonl`, or `train/<name>` for a metric of training episodes; empty: the
            run's result in `status.json`.
        tail_fraction: share in (0, 1] of the metric's last logged values that is averaged; 0: only the last value. For
            metrics of training episodes: share of the last frames of the budget; 0: all frames (sample efficiency).
        budget: number of first training frames that count, > 0; None: all frames that the run's episodes cover.

    Raises:
        ConfigError: `tail_fraction` is not 0 without a metric, or is outside [0, 1].
    """

    metric: str = ""
    tail_fraction: float = 0.0
    budget: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.tail_fraction <= 1:
            raise ConfigError(f"--tail-fraction={self.tail_fraction} must be in (0, 1], such as 0.1 for the last tenth")
        if self.tail_fraction and not self.metric:
            raise ConfigError("--tail-fraction needs a metric, whose last values are averaged; add --metric <name>")

    def __str__(self) -> str:
        if not self.metric:
            return "the run's result (status.json)"
        training_text = f", of training episodes over the {self._frames_text}"
        if self.tail_fraction:
            tail_text = f"mean of the last {self.tail_fraction:.0%} of the logged values of {self.metric}"
            return tail_text + training_text * self.metric.startswith(training_curves.TRAIN_PREFIX)
        if self.metric.startswith(training_curves.TRAIN_PREFIX):
            return f"mean of {self.metric} over the {self._frames_text} (sample efficiency)"
        return f"last logged value of {self.metric}"

    @property
    def _frames_text(self) -> str:
        if self.budget is None:
            return "frames of training that all runs of a task cover"
        return f"first {self.budget:,} frames of training"

    def score(self, run: RunRecord) -> float | str:
        """Return the score of a finished run, or a text with the reason why it has none."""
        if not self.metric:
            is_finite = run.result is not None and math.isfinite(run.result)
            return float(run.result) if run.result is not None and is_finite else "finished without a result"
        try:
            if training_curves.is_training_metric(run.folder, self.metric):
                return self._compute_training_score(run.folder)
            rows = _read_rows(run.folder, self.metric)
        except RunFolderError as error:
            return str(error)
        if not rows:
            return f"did not log {self.metric}"
        tail = [row[self.metric] for row in rows[-max(1, math.ceil(self.tail_fraction * len(rows))) :]]
        return f"{self.metric} ends in NaN or infinity" if None in tail else float(np.mean(tail))

    def _compute_training_score(self, folder: Path) -> float | str:
        training = training_curves.read_training_history(folder)
        if training is None or not training.n_covered_frames:
            return f"its training is too short, or interrupted too often, for {self.metric}"
        end = training.n_covered_frames if self.budget is None else self.budget
        start = round(end * (1 - self.tail_fraction)) if self.tail_fraction else 0
        return training_curves.compute_mean(
            training, self.metric.removeprefix(training_curves.TRAIN_PREFIX), start, end
        )


def read_series(folder: Path, metric: str, x_axis: str = "env_steps", bin_width: int | None = None) -> Series:
    """Return the finite values of a run's metric with their x coordinates.

    Values without an x coordinate are omitted. Of several values with the same x coordinate, the last one is returned.

    Args:
        folder: run folder.
        metric: name of the metric.
        x_axis: key of `X_AXES`.
        bin_width: width of the bins in which metrics of training episodes are averaged, frames; None: 1/50 of all
            frames.

    Raises:
        RunFolderError: a line is damaged, rows of several kinds have the metric, or `x_axis` is not `env_steps` for a
            metric of training episodes.
    """
    if training_curves.is_training_metric(folder, metric):
        if x_axis != "env_steps":
            raise RunFolderError(f"{metric} is recorded over environment steps only, not over {X_AXES[x_axis][1]}")
        training = training_curves.read_training_history(folder)
        if training is None:
            return np.array([]), np.array([])
        width = bin_width or max(1, training.n_frames // training_curves.N_BINS)
        return training_curves.compute_binned_curve(training, metric.removeprefix(training_curves.TRAIN_PREFIX), width)
    x_key = X_AXES[x_axis][0]
    rows = _read_rows(folder, metric)
    if len(kinds := {row.get(KIND_KEY) for row in rows}) > 1:
        raise RunFolderError(
            f"{folder / FILE_NAME} has {metric} in rows of several kinds: {', '.join(map(str, kinds))}"
        )
    values_by_x = {
        float(row[x_key]): float(row[metric]) for row in rows if row[metric] is not None and row.get(x_key) is not None
    }
    x = np.array(sorted(values_by_x))
    return x, np.array([values_by_x[key] for key in x])


def list_metric_names(runs: Iterable[RunRecord]) -> list[str]:
    """Return the sorted names of all metrics that the runs have logged, without times and counters.

    Damaged lines are skipped.
    """
    names: set[str] = set()
    for run in runs:
        names.update(training_curves.TRAIN_PREFIX + name for name in read_training_metric_names(run.folder))
        for line in _read_lines(run.folder):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                continue
            names.update(list_metric_names_of_row(row) if isinstance(row, dict) else ())
    return sorted(name for name in names if not name.startswith(TIME_PREFIX))


def _read_rows(folder: Path, metric: str) -> list[dict[str, Any]]:
    """Return the rows that contain a metric; its value is None if it was not finite. Other lines are not parsed."""
    key_bytes = json.dumps(metric).encode() + b":"
    rows = []
    for number, line in enumerate(_read_lines(folder), start=1):
        if key_bytes in line:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise RunFolderError(f"{folder / FILE_NAME}, line {number} is damaged") from error
            is_valid = isinstance(row, dict) and isinstance(row.get(metric), int | float | None)
            if not is_valid or not all(isinstance(row.get(x_key, 0), int | float) for x_key in COUNTER_NAMES):
                raise RunFolderError(
                    f"{folder / FILE_NAME}, line {number} is damaged: {metric} or a counter is not a number"
                )
            rows.append(row)
    return [row for row in rows if metric in row]


def _read_lines(folder: Path) -> list[bytes]:
    """Return the complete lines of `metrics.jsonl`; the last line may still be incomplete."""
    try:
        lines = read_bytes(folder / FILE_NAME).splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [line for line in lines if line.endswith(b"\n")]
