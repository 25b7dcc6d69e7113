"""What an evaluation measures in the episodes that were played: numbers of each, tables, and a file of rows."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.statistics import describe
from llmrl.core.objectives import Objective
from llmrl.core.rollouts import Episode
from llmrl.core.spaces import EnvSpec
from llmrl.loops.welfare import episode_welfare, measures, summarize, summarize_welfare

Columns = Mapping[str, np.ndarray]
"""Name -> its value in each episode, [n_episodes]; NaN in those of which a metric says nothing."""


def objective_column(objective: Objective) -> str:
    """What the column of the objective is called."""
    return f"objective ({objective.name})"


def columns(episodes: Sequence[Episode], spec: EnvSpec, objective: Objective, spending_cost: float) -> Columns:
    """All that is told of some episodes: objective, returns, length, welfare, the metrics of the environment."""
    base = np.array([episode.base_returns for episode in episodes])
    return {
        objective_column(objective): episode_welfare(episodes, objective, spending_cost),
        "return per agent": np.array([e.returns.mean() for e in episodes]),
        "base return per agent": base.mean(1),
        "length": np.array([float(e.length) for e in episodes]),
        # What one agent earns is all that there is to say of its welfare.
        **({f"welfare/{name}": x for name, x in measures(episodes, objective).items()} if spec.n_agents > 1 else {}),
        **{name: np.array([e.summaries[name] for e in episodes]) for name in spec.metrics},
    }


def table(measured: Columns, seed: int, independent: bool) -> dict[str, dict[str, float | None]]:
    """A row (`describe`) for each column that says anything of any episode."""
    known = {name: x[~np.isnan(x)] for name, x in measured.items()}
    return {name: describe(x, seed=seed, independent=independent) for name, x in known.items() if len(x)}


def scalars(episodes: Sequence[Episode], measured: Columns, objective: Objective) -> dict[str, float]:
    """Means under the tags of the evaluations during training, where these would have their next point."""
    told = {**summarize(episodes, "evaluation"), **summarize_welfare(episodes, objective)}
    return told | {"evaluation/objective": float(measured[objective_column(objective)].mean())}


def plain(measured: Columns) -> dict[str, list[float]]:
    """As lists, for a file."""
    return {name: values.tolist() for name, values in measured.items()}


def write_episodes(file: Path, heads: Sequence[str], played: Mapping[tuple[str, ...], Columns]) -> None:
    """Write a row for each episode: who played it, by the entries of a key under `heads`, its number, its columns."""
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer: Any = csv.writer(stream, lineterminator="\n")
        writer.writerow([*heads, "episode", *next(iter(played.values()))])
        for who, measured in played.items():
            for k, values in enumerate(zip(*measured.values(), strict=True)):
                writer.writerow([*who, k, *(f"{value:.6g}" for value in values)])
