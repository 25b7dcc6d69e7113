"""The statistics of results: point estimates of scores over runs, and how far to trust them.

Scores are [..., n_runs]; estimates are taken over the last axis. Runs are the seeds of one experiment, or the seeds of
several experiments or tasks, which are then the groups of a stratified bootstrap (Agarwal et al., 2021, "Deep
Reinforcement Learning at the Edge of the Statistical Precipice", arXiv 2108.13264).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]
"""[..., n_runs] -> [...]."""

_CHUNK = 4_000_000  # resampled scores held in memory at once


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; the bounds are NaN where the data cannot tell (one run)."""

    estimate: float
    low: float
    high: float


def mean(scores: np.ndarray) -> np.ndarray:
    """Arithmetic mean, [..., n_runs] -> [...].

    Raises:
        ValueError: there are no scores, or one is not a finite number.
    """
    return np.asarray(_checked(scores).mean(axis=-1))


def standard_error(scores: np.ndarray) -> np.ndarray:
    """Standard error of the mean: sample standard deviation / sqrt(n_runs), [..., n_runs] -> [...]; NaN for one run."""
    scores = _checked(scores)
    n_runs = scores.shape[-1]
    if n_runs == 1:
        return np.full(scores.shape[:-1], np.nan)
    return np.asarray(scores.std(axis=-1, ddof=1) / np.sqrt(n_runs))


def standard_error_of_mean(scores: np.ndarray) -> float | None:
    """`standard_error` of scores [n] as a number; None for one score, which cannot tell."""
    return float(standard_error(scores)) if len(scores) > 1 else None


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half, [..., n_runs] -> [...]: floor(n_runs / 4) scores are dropped at either end.

    Less swayed by one lucky run than the mean, less noisy than the median (arXiv 2108.13264, section 4.3).
    """
    scores = np.sort(_checked(scores), axis=-1)
    n_runs = scores.shape[-1]
    cut = n_runs // 4
    return np.asarray(scores[..., cut : n_runs - cut].mean(axis=-1))


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Statistic = interquartile_mean,
    groups: Sequence[object] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval of `statistic`, stratified by group.

    Args:
        scores: [n_runs]; or [n_groups, n_runs], whose rows are the groups.
        statistic: estimate over the last axis; sees all groups' scores side by side.
        groups: the group of each run, [n_runs]; runs are drawn with replacement within their group only, so that a
            resample has as many runs of each task as the data. None: one group, or the rows of `scores`.
        level: confidence level in (0, 1).
        resamples: bootstrap resamples.
        seed: seed of the resampling; the same data and seed give the same interval.

    Raises:
        ValueError: scores, groups, level or resamples make no sense together.
    """
    scores = _checked(scores)
    if scores.ndim == 2 and groups is None:
        groups = np.repeat(np.arange(scores.shape[0]), scores.shape[1]).tolist()
        scores = scores.reshape(-1)
    if scores.ndim != 1:
        raise ValueError(f"scores must be [n_runs], or [n_groups, n_runs] without groups; got shape {scores.shape}")
    if groups is not None and len(groups) != len(scores):
        raise ValueError(f"{len(groups)} group labels for {len(scores)} scores")
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(f"level must be in (0, 1) and resamples positive; got {level} and {resamples}")
    estimate = float(statistic(scores))
    members = _members(groups if groups is not None else [0] * len(scores))
    if all(len(indices) == 1 for indices in members):
        return Interval(estimate, float("nan"), float("nan"))  # resampling one run gives itself, whatever the noise
    rng = np.random.default_rng(seed)
    estimates = []
    chunk = max(1, _CHUNK // len(scores))
    for start in range(0, resamples, chunk):
        size = min(chunk, resamples - start)
        drawn = [indices[rng.integers(len(indices), size=(size, len(indices)))] for indices in members]
        estimates.append(statistic(scores[np.concatenate(drawn, axis=1)]))
    tail = (1 - level) / 2
    low, high = np.quantile(np.concatenate(estimates), [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


def describe(scores: np.ndarray, seed: int = 0) -> dict[str, float | None]:
    """A row of a table for scores [n]: mean, standard error, 95% bootstrap interval of the mean, min, max.

    What one score cannot tell is None.
    """
    scores = _checked(scores)
    interval = bootstrap_interval(scores, mean, seed=seed)
    row = {
        "mean": float(mean(scores)),
        "standard_error": standard_error_of_mean(scores),
        "low": interval.low,
        "high": interval.high,
        "min": float(scores.min()),
        "max": float(scores.max()),
    }
    return {name: value if value is not None and np.isfinite(value) else None for name, value in row.items()}


def _members(groups: Sequence[object]) -> list[np.ndarray]:
    """Indices of the runs of each group, groups in order of first appearance."""
    indices: dict[object, list[int]] = {}
    for i, group in enumerate(groups):
        indices.setdefault(group, []).append(i)
    return [np.array(members) for members in indices.values()]


def _checked(scores: np.ndarray) -> np.ndarray:
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim == 0 or scores.size == 0:
        raise ValueError(f"no scores: shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores hold NaN or infinity; leave out runs without a result, and say how many those are")
    return scores
