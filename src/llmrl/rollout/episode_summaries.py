"""Summaries of episodes: welfare, the objective of a principal, metrics, and the file `results.json`."""

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
"""Name of the metric that is 1 for a successful episode and 0 for others."""
COST_KEYS = ("replies", "invalid", "failed", "prompt_tokens", "completion_tokens", "cost")
"""Keys of counts and costs in the notes of a language-model player. A sum is None (unknown) if one of its terms is."""


def compute_welfare(episodes: Sequence[Episode], objective: Objective | None = None) -> dict[str, np.ndarray]:
    """Return from the name of each welfare measure to its value in each episode, [n_episodes] float64.

    The measures are `objective`, and those of `core.welfare_measures.MEASURES` that are defined for these episodes.

    Raises:
        ConfigError: a custom objective is not one number per episode, or cannot be computed from these episodes.
    """
    metric_names = list(episodes[0].summaries) if episodes else []
    society_episodes = SocietyEpisodes(
        base=np.array([episode.base_returns for episode in episodes], dtype=np.float64),
        returns=np.array([episode.returns for episode in episodes], dtype=np.float64),
        n_gain_steps=np.array([episode.n_gain_steps for episode in episodes]),
        gain_step_sums=np.array([episode.gain_step_sums for episode in episodes]),
        metrics={name: np.array([e.summaries[name] for e in episodes]) for name in metric_names},
    )
    welfare = {measure.name: measure.of(society_episodes) for measure in MEASURES}
    if objective is not None and objective.name not in welfare:
        welfare[objective.name] = _compute_custom_objective(objective, society_episodes)
    return {name: values for name, values in welfare.items() if values is not None}


def _compute_custom_objective(objective: Objective, society_episodes: SocietyEpisodes) -> np.ndarray:
    welfare = objective.of(society_episodes)
    if welfare is None:
        raise ConfigError(
            f"design.objective={objective.name} cannot be computed from the episodes of this environment; "
            "choose another objective"
        )
    values = np.asarray(welfare, dtype=np.float64)
    if values.shape != society_episodes.base.shape[:1]:
        raise ConfigError(
            f"the function of design.objective={objective.name} returned an array of shape {values.shape}; it must "
            f"return one number per episode, shape ({len(society_episodes.base)},)"
        )
    return values


def compute_objective(episodes: Sequence[Episode], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """Return a principal's objective in each episode, [n_episodes]: welfare measure - `spending_cost` * spending."""
    return compute_objective_from_welfare(compute_welfare(episodes, objective), objective, spending_cost)


def compute_objective_from_welfare(
    welfare: Mapping[str, np.ndarray], objective: Objective, spending_cost: float = 0.0
) -> np.ndarray:
    """Return a principal's objective in each episode, [n_episodes], from the result of `compute_welfare`.

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
    """Return means over episodes of returns, length and environment metrics as `<prefix>/<name>`; {} without episodes.

    The mean of a metric excludes episodes in which it is NaN (undefined).
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
    """Return means over episodes of `objective` and all welfare measures, `welfare/<name>`; {} without episodes."""
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
    """Return the measurements of an episode as JSON-compatible numbers by name.

    The names are return and base_return (mean over agents), length, the environment's metrics and objective. With
    several agents there are also returns (one per agent) and every measure of welfare as `welfare/<name>`.
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
        "objective": float(compute_objective_from_welfare(welfare, objective, spending_cost)[0]),
        **society_fields,
    }


def average_episode_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return means over rows of `make_episode_row`, without NaN, as `evaluation/<name>` and `welfare/<name>`."""
    return {
        name if name.startswith("welfare/") else f"evaluation/{name}": float(values.mean())
        for name, values in _without_nan(to_columns(rows)).items()
    }


def to_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Return the columns of rows of `make_episode_row` that are numbers in all rows, each [n_episodes]."""
    return {
        name: np.array([row[name] for row in rows], dtype=np.float64)
        for name in (rows[0] if rows else ())
        if name not in _IDENTIFIER_KEYS
        and all(isinstance(x := row.get(name), int | float) and not isinstance(x, bool) for row in rows)
    }


def describe_measurements(
    measurements: Mapping[str, np.ndarray], independent: bool = True
) -> dict[str, dict[str, float | None]]:
    """Return the statistics (`describe`) of each measurement, without NaN; measurements that are all NaN are omitted.

    Args:
        measurements: values of each measurement by name, [n_episodes] each.
        independent: whether episodes are independent, which standard errors and intervals require.
    """
    finite = _without_nan(measurements)
    return {name: describe(values, independent, is_proportion=name == SUCCESS) for name, values in finite.items()}


def _without_nan(measurements: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the measurements without NaN; those that are NaN in all episodes are omitted."""
    finite = {name: values[~np.isnan(values)] for name, values in measurements.items()}
    return {name: values for name, values in finite.items() if len(values)}


_IDENTIFIER_KEYS = ("episode", "seed", "game")


def write_results(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    learned: bool,
    extra_fields: Mapping[str, Any],
    carried_states: Sequence[str] = (),
) -> None:
    """Write `results.json`: mean, standard error and 95% interval of each measurement, and the episodes' values.

    Args:
        folder: the run folder.
        rows: measurements of each episode (`make_episode_row`).
        learned: whether the episodes share a trained agent, from this run or loaded. Training is a source of variance
            that the episodes have in common, so reports use the run, not the episode, as the unit of standard errors.
        extra_fields: further keys of the file, such as the name of the language model.
        carried_states: names of the states that agents keep between episodes, such as lessons. If there are any,
            episodes are not independent: they have no standard error and interval, and reports use the run as the unit.
    """
    measurements = to_columns(rows)
    content = {
        **extra_fields,
        "episodes": len(rows),
        "learned": learned,
        "carried": list(carried_states),
        "table": describe_measurements(measurements, independent=not carried_states),
        "per_episode": {name: values.tolist() for name, values in measurements.items()},
    }
    write_json(folder / RESULTS_NAME, content)


def add_costs(total: dict[str, Any], note: Mapping[str, Any]) -> None:
    """Add the counts and costs (`COST_KEYS`) of a note to the totals of an episode, in place."""
    for name in COST_KEYS:
        if name in note:
            previous_total, increment = total.get(name, 0), note[name]
            total[name] = None if previous_total is None or increment is None else previous_total + increment
