"""What played episodes say: a line for each, the numbers over all of them, and the file that reports read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.analysis.intervals import describe
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import Objective
from llmrl.rollout.episode_summaries import judged, measures
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.files import write_json

SUCCESS = "success"
"""Metric of an episode that is 1 or 0."""
SPENT = ("replies", "invalid", "failed", "prompt_tokens", "completion_tokens", "cost")
"""What a player that asks a language model notes of each decision; a sum of them is unknown as soon as one is."""


def episode_row(episode: Episode, objective: Objective, spending_cost: float) -> dict[str, Any]:
    """An episode as plain numbers, by name: return and base_return (mean over agents), length, the environment's
    metrics, objective; where there are several agents returns, each agent's own, and every measure of welfare as
    `welfare/...`."""
    found = measures([episode], objective)
    society: dict[str, Any] = {}
    if len(episode.returns) > 1:
        society = {"returns": episode.returns.tolist(), **{f"welfare/{name}": float(x[0]) for name, x in found.items()}}
    return {
        "return": float(episode.returns.mean()),
        "base_return": float(episode.base_returns.mean()),
        "length": episode.length,
        **episode.summaries,
        "objective": float(judged(found, objective, spending_cost)[0]),
        **society,
    }


def evaluation_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over episodes, as `evaluation/<name>` and `welfare/<name>`; what some episodes do not know is left out."""
    means = {}
    for name, values in _known(columns(rows)).items():
        means[name if name.startswith("welfare/") else f"evaluation/{name}"] = float(values.mean())
    return means


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The numbers that all rows have, each [n_episodes]; NaN in episodes of which a metric says nothing."""
    names = [name for name, value in rows[0].items() if _number(value) and name not in _NO_RESULTS] if rows else []
    return {
        name: np.array([row[name] for row in rows], dtype=np.float64)
        for name in names
        if all(_number(row.get(name)) for row in rows)
    }


def _known(measured: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Without NaN, and without what is NaN in all episodes."""
    known = {name: values[~np.isnan(values)] for name, values in measured.items()}
    return {name: values for name, values in known.items() if len(values)}


_NO_RESULTS = ("episode", "seed", "game")


def write_results(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    learned: bool,
    about: Mapping[str, Any],
    carried: Sequence[str] = (),
) -> None:
    """Write `results.json`: mean, standard error and 95% interval of everything measured, and the episodes' values.

    Args:
        folder: the run folder.
        rows: one an episode.
        learned: whether the run's episodes share something that was learned and might have come out otherwise: an agent
            trained in this run or loaded with its weights. Those of one run are alike then, and reports take the run,
            not the episode, for the unit of a standard error.
        about: further entries, e.g. the model's label.
        carried: what went from episode to episode (lessons, how the last one ended). Episodes depend on one another
            then: they have no standard error and no interval, and the run is the unit of reports here, too.
    """
    measured = columns(rows)
    content = {
        **about,
        "episodes": len(rows),
        "learned": learned,
        "carried": list(carried),
        "table": {
            name: describe(values, independent=not carried, is_share=name == SUCCESS)
            for name, values in _known(measured).items()
        },
        "per_episode": {name: values.tolist() for name, values in measured.items()},
    }
    write_json(folder / RESULTS_NAME, content)


def add_spent(total: dict[str, Any], note: Mapping[str, Any]) -> None:
    """Add what a note says was spent to the sums of an episode."""
    for name in SPENT:
        if name in note:
            before, more = total.get(name, 0), note[name]
            total[name] = None if before is None or more is None else before + more


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
