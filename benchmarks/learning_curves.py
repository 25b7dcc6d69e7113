"""Learning curves of several implementations, as text, CSV and figure.

A curve contains the mean return of training episodes in equal parts of training. Used by
`benchmarks/continuous_ppo.py` and `benchmarks/team_ppo.py`.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.run.training_episodes import read_training_episodes
from llmrl.statistics.estimators import standard_error_of_mean

PARTS = 10
Episodes = tuple[np.ndarray, np.ndarray]
"""Environment steps at the ends of episodes, and returns of episodes, each [n]."""
Rows = list[dict[str, Any]]


def measure_curve(
    task: str, implementation: str, train: Callable[[int], Episodes], steps: int, seeds: Sequence[int], digits: int = 1
) -> Rows:
    """Train with each seed, and print and return the rows of the curve.

    Args:
        task: name of the task.
        implementation: name of the implementation.
        train: function of the seed that returns the episodes of training.
        steps: number of environment steps of training.
        seeds: seeds.
        digits: number of printed decimals.
    """
    start, curves = time.perf_counter(), []
    for seed in seeds:
        curves.append(_bin_returns(train(seed), steps))
        _print_line(f"  {task}, {implementation}, seed {seed}: {curves[-1][-1]:.{digits}f} in the last tenth")
    return _print_curve(
        task, implementation, np.array(curves), steps, (time.perf_counter() - start) / len(seeds), digits
    )


def read_episodes(folder: Path, games: int) -> Episodes:
    """Read the training episodes of a run of llmrl.

    Args:
        folder: run folder.
        games: number of parallel games.
    """
    table = read_training_episodes(folder)
    assert table is not None
    return (table.indices["start"] + table.indices["length"]) * games, table.metrics["return"]


def save_curves(rows: Rows, folder: Path) -> None:
    """Write `curves.csv` and `curves.png`."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "curves.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    _draw_curves(rows, folder / "curves.png")


def _bin_returns(episodes: Episodes, steps: int) -> np.ndarray:
    """Return the mean return of the episodes that end in each part of training, [PARTS]; NaN if there are none."""
    end_steps, returns = episodes
    part = np.minimum(end_steps * PARTS // steps, PARTS - 1)
    return np.array([returns[part == i].mean() if (part == i).any() else np.nan for i in range(PARTS)])


def _print_curve(task: str, implementation: str, curves: np.ndarray, steps: int, seconds: float, digits: int) -> Rows:
    """Print a curve, and return it as rows of means over seeds and 95 % confidence intervals (Student's t)."""
    from scipy import stats

    n = len(curves)
    rows: Rows = []
    for i in range(PARTS):
        error = standard_error_of_mean(curves[:, i]) or 0.0
        half_width = float(stats.t.ppf(0.975, n - 1)) * error if n > 1 else float("nan")
        mean = float(curves[:, i].mean())
        env_steps = round((i + 1) / PARTS * steps)
        rows.append(
            {
                "task": task,
                "who": implementation,
                "env_steps": env_steps,
                "return": mean,
                "low": mean - half_width,
                "high": mean + half_width,
            }
        )
    line = " ".join(f"{row['return']:8.{digits}f}" for row in rows)
    low, high = rows[-1]["low"], rows[-1]["high"]
    _print_line(
        f"{task:<26}{implementation:<48}{line}   [{low:.{digits}f}, {high:.{digits}f}]  {seconds:.0f} s per run"
    )
    return rows


def _draw_curves(rows: Rows, path: Path) -> None:
    """Draw the curves with a panel for each task."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, axes = plt.subplots(1, len(tasks), figsize=(4.2 * len(tasks), 3.2), squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for i, implementation in enumerate(dict.fromkeys(row["who"] for row in rows if row["task"] == task)):
            implementation_rows = [row for row in rows if row["task"] == task and row["who"] == implementation]
            env_steps = [row["env_steps"] for row in implementation_rows]
            axis.plot(
                env_steps,
                [row["return"] for row in implementation_rows],
                label=implementation.replace(", ", ",\n"),
                color=f"C{i}",
            )
            axis.fill_between(
                env_steps,
                [row["low"] for row in implementation_rows],
                [row["high"] for row in implementation_rows],
                alpha=0.2,
                color=f"C{i}",
                linewidth=0,
            )
        axis.set_title(task)
        axis.set_xlabel("environment steps")
        axis.set_ylabel("return of an episode")
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def _print_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
