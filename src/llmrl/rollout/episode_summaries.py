"""Welfare and other summaries of episodes: the objective of a principal, and other reported metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.rollouts import Episode
from llmrl.core.welfare_measures import MEASURES, Objective, SocietyEpisodes


def measures(episodes: Sequence[Episode], objective: Objective | None = None) -> dict[str, np.ndarray]:
    """Return the welfare of each episode of a society by measure, each [n_episodes] float64.

    The measures are all of `core.welfare_measures.MEASURES` that the episodes allow, and `objective`.

    Raises:
        ConfigError: a custom objective is not one number per episode, or cannot be computed from these episodes.
    """
    collected = SocietyEpisodes(
        base=np.array([episode.base_returns for episode in episodes], dtype=np.float64),
        returns=np.array([episode.returns for episode in episodes], dtype=np.float64),
        gains=np.array([episode.gains for episode in episodes]),
        gain_times=np.array([episode.gain_times for episode in episodes]),
        metrics={name: np.array([e.summaries[name] for e in episodes]) for name in _metrics(episodes)},
    )
    welfare = {measure.name: measure.of(collected) for measure in MEASURES}
    if objective is not None and objective.name not in welfare:
        welfare[objective.name] = _custom_welfare(objective, collected)
    return {name: values for name, values in welfare.items() if values is not None}


def _metrics(episodes: Sequence[Episode]) -> list[str]:
    return list(episodes[0].summaries) if episodes else []


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


def episode_welfare(episodes: Sequence[Episode], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """Return a principal's objective in each episode, [n_episodes]: a measure - `spending_cost` * spending."""
    return judged(measures(episodes, objective), objective, spending_cost)


def judged(welfare: Mapping[str, np.ndarray], objective: Objective, spending_cost: float = 0.0) -> np.ndarray:
    """Return `episode_welfare` for computed `measures`.

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
        finite = [e.summaries[name] for e in episodes if not np.isnan(e.summaries[name])]
        if finite:
            metrics[f"{prefix}/{name}"] = float(np.mean(finite))
    return metrics


def summarize_welfare(episodes: Sequence[Episode], objective: Objective | None = None) -> dict[str, float]:
    """Return means over episodes of every welfare measure and of `objective` as `welfare/name`; {} without episodes."""
    if not episodes:
        return {}
    return {f"welfare/{name}": float(values.mean()) for name, values in measures(episodes, objective).items()}


def summarize_evaluation(episodes: Sequence[Episode], objective: Objective, spending_cost: float) -> dict[str, float]:
    """Return means over the episodes of an evaluation: `evaluation/...`, with the objective, and `welfare/...`."""
    return {
        **summarize(episodes, "evaluation"),
        **summarize_welfare(episodes, objective),
        "evaluation/objective": float(episode_welfare(episodes, objective, spending_cost).mean()),
    }
