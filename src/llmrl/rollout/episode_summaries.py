"""Summaries of episodes: welfare and the objective of a principal, a line per episode, and the file of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import MEASURES, Objective, SocietyEpisodes
from llmrl.run.artifacts import RESULTS_NAME
from llmrl.run.files import write_json
from llmrl.statistics.intervals import describe

SUCCESS = "success"
"""Metric of an episode that is 1 or 0."""
COST_KEYS = ("replies", "invalid", "failed", "prompt_tokens", "completion_tokens", "cost")
"""Costs in the notes of a player that uses a language model. A sum is None as soon as one of its terms is."""


def compute_welfare(episodes: Sequence[Episode], objective: Objective | None = None) -> dict[str, np.ndarray]:
    """Return the welfare of each episode of a society by measure, each [n_episodes] float64.

    The measures are all of `core.welfare_measures.MEASURES` that the episodes allow, and `objective`.

    Raises:
        ConfigError: a custom objective is not one number per episode, or cannot be computed from these episodes.
    """
    metric_names = list(episodes[0].summaries) if episodes else []
    collected = SocietyEpisodes(
        base=np.array([episode.base_returns for episode in episodes], dtype=np.float64),
        returns=np.array([episode.returns for episode in episodes], dtype=np.float64),
        gains=np.array([episode.gains for episode in episodes]),
        gain_times=np.array([episode.gain_times for episode in episodes]),
        metrics={name: np.array([e.summaries[name] for e in episodes]) for name in metric_names},
    )
    welfare = {measure.name: measure.of(collected) for measure in MEASURES}
    if objective is not None and objective.name not in welfare:
        welfare[objective.name] = _custom_welfare(objective, collected)
    return {name: values for name, values in welfare.items() if values is not None}


def _custom_welfare(objective: Objective, collected: SocietyEpisodes) -> np.ndarray:
    welfare = objective.of(collected)
    if welfare is None:
        raise ConfigError(
            f"design.objective={objective.name} cannot be computed from the episodes of this environment; "
            "choose another objective"
        )
    values = np.asarray(welfare, dtype=np.float64)
    if values.shape != collected.base.shape[:1]:
        raise ConfigError(
            f"the function of design.objective={objective.name} returned an array of shape {values.shape}; it must "
            f"return one number per episode, shape ({len(collected.base)},)"
        )
    return values


def compute_objective(episodes: Sequence[Episode], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """Return a principal's objective in each episode, [n_episodes]: a measure - `spending_cost` * spending."""
    return objective_from_welfare(compute_welfare(episodes, objective), objective, spending_cost)


def objective_from_welfare(
    welfare: Mapping[str, np.ndarray], objective: Objective, spending_cost: float = 0.0
) -> np.ndarray:
    """Return `compute_objective` for computed `compute_welfare`.

    Raises:
        ConfigError: the objective of an episode is not a finite number.
    """
    scores: np.ndarray = welfare[objective.name]
    if spending_cost:
        with np.errstate(over="ignore", invalid="ignore"):  # scores that are not finite raise below
            scores = scores - spending_cost * welfare["spending"]
    if not np.isfinite(scores).all():
        raise ConfigError(
            f"the objective of an episode is {scores[~np.isfinite(scores)][0]} but must be a finite number; check "
            f"design.objective={objective.name}, design.spending_cost={spending_cost:g} and the rewards"
        )
    return scores


def summarize(episodes: Sequence[Episode], prefix: str) -> dict[str, float]:
    """Return means over episodes of returns, length and environment metrics as `prefix/name`; {} without episodes.

    Episodes in which a metric is NaN (undefined) are left out of its mean.
    """
    if not episodes:
        return {}
    metrics = {
        f"{prefix}/return": float(np.mean([e.returns.mean() for e in episodes])),
        f"{prefix}/base_return": float(np.mean([e.base_returns.mean() for e in episodes])),
        f"{prefix}/length": float(np.mean([e.length for e in episodes])),
    }
    for name in episodes[0].summaries:
        finite_values = [e.summaries[name] for e in episodes if not np.isnan(e.summaries[name])]
        if finite_values:
            metrics[f"{prefix}/{name}"] = float(np.mean(finite_values))
    return metrics


def summarize_welfare(episodes: Sequence[Episode], objective: Objective | None = None) -> dict[str, float]:
    """Return means over episodes of every welfare measure and of `objective` as `welfare/name`; {} without episodes."""
    if not episodes:
        return {}
    return {f"welfare/{name}": float(values.mean()) for name, values in compute_welfare(episodes, objective).items()}


def summarize_evaluation(episodes: Sequence[Episode], objective: Objective, spending_cost: float) -> dict[str, float]:
    """Return means over the episodes of an evaluation: `evaluation/...`, with the objective, and `welfare/...`."""
    return {
        **summarize(episodes, "evaluation"),
        **summarize_welfare(episodes, objective),
        "evaluation/objective": float(compute_objective(episodes, objective, spending_cost).mean()),
    }


def make_episode_row(episode: Episode, objective: Objective, spending_cost: float) -> dict[str, Any]:
    """Return an episode as plain numbers by name.

    The names are return and base_return (mean over agents), length, the environment's metrics and objective. With
    several agents there are also returns (one per agent) and every measure of welfare as `welfare/...`.
    """
    welfare = compute_welfare([episode], objective)
    society_fields: dict[str, Any] = {}
    if len(episode.returns) > 1:
        society_fields = {
            "returns": episode.returns.tolist(),
            **{f"welfare/{name}": float(x[0]) for name, x in welfare.items()},
        }
    return {
        "return": float(episode.returns.mean()),
        "base_return": float(episode.base_returns.mean()),
        "length": episode.length,
        **episode.summaries,
        "objective": float(objective_from_welfare(welfare, objective, spending_cost)[0]),
        **society_fields,
    }


def average_episode_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return means over episodes as `evaluation/<name>` and `welfare/<name>`.

    Episodes in which a metric is NaN are left out.
    """
    return {
        name if name.startswith("welfare/") else f"evaluation/{name}": float(values.mean())
        for name, values in _without_nan(to_columns(rows)).items()
    }


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the numbers that all `rows` contain, each [n_episodes]; NaN where a metric is undefined."""
    return {
        name: np.array([row[name] for row in rows], dtype=np.float64)
        for name in (rows[0] if rows else ())
        if name not in _IDENTIFIER_KEYS
        and all(isinstance(x := row.get(name), int | float) and not isinstance(x, bool) for row in rows)
    }


def describe_measurements(
    measurements: Mapping[str, np.ndarray], independent: bool = True
) -> dict[str, dict[str, float | None]]:
    """Return a row of statistics (`describe`) for each measurement with at least one value that is not NaN."""
    finite = _without_nan(measurements)
    return {name: describe(values, independent, is_proportion=name == SUCCESS) for name, values in finite.items()}


def _without_nan(measurements: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Remove NaN, and measurements that are NaN in all episodes."""
    finite = {name: values[~np.isnan(values)] for name, values in measurements.items()}
    return {name: values for name, values in finite.items() if len(values)}


_IDENTIFIER_KEYS = ("episode", "seed", "game")


def write_results(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    learned: bool,
    about: Mapping[str, Any],
    carried: Sequence[str] = (),
) -> None:
    """Write `results.json`: mean, standard error and 95% interval of each measurement, and the episodes' values.

    Args:
        folder: the run folder.
        rows: one line per episode.
        learned: whether the episodes share a trained agent (trained in this run or loaded with its weights), which
            might have come out differently. Such episodes depend on each other, and reports use the run, not the
            episode, as the unit of a standard error.
        about: further keys of the file, e.g. the model's label.
        carried: names of the information passed from one episode to the next (lessons, how the last one ended). Such
            episodes depend on each other: they have no standard error and no interval, and reports use the run as
            the unit.
    """
    measurements = to_columns(rows)
    content = {
        **about,
        "episodes": len(rows),
        "learned": learned,
        "carried": list(carried),
        "table": describe_measurements(measurements, independent=not carried),
        "per_episode": {name: values.tolist() for name, values in measurements.items()},
    }
    write_json(folder / RESULTS_NAME, content)


def add_costs(total: dict[str, Any], note: Mapping[str, Any]) -> None:
    """Add the costs in a note to the totals of an episode."""
    for name in COST_KEYS:
        if name in note:
            previous, increment = total.get(name, 0), note[name]
            total[name] = None if previous is None or increment is None else previous + increment
