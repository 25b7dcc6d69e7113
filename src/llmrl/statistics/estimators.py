"""Point estimates of scores over runs, their standard errors, proportions, and analysis of variance.

Scores are arrays [..., n_runs]; estimates reduce the last axis. Runs differ in their seeds only. The interquartile mean
is that of Agarwal et al. (2021), "Deep Reinforcement Learning at the Edge of the Statistical Precipice", arXiv
2108.13264. Intervals of means are in `llmrl.statistics.intervals`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Interval:
    """An estimate with its confidence interval; the bounds are NaN if there are too few scores for an interval."""

    estimate: float
    low: float
    high: float


def mean(scores: np.ndarray) -> np.ndarray:
    """Return the arithmetic mean, [..., n_runs] -> [...].

    Raises:
        ValueError: there are no scores, or one is not a finite number.
    """
    return np.asarray(validate_scores(scores).mean(axis=-1))


def median(scores: np.ndarray) -> np.ndarray:
    """Return the median, [..., n_runs] -> [...]; invalid scores raise ValueError."""
    return np.asarray(np.median(validate_scores(scores), axis=-1))


def average_by_unit(scores: np.ndarray, units: Sequence[object] | None = None) -> np.ndarray:
    """Return the mean score of each top-level unit, [..., n_runs] -> [..., n_units], in order of first appearance.

    Args:
        scores: scores [..., n_runs].
        units: label of the unit of each run, such as its pre-training run, [n_runs]; None: each run is a unit.

    Raises:
        ValueError: there are no scores, one is not a finite number, or there are more or fewer labels than runs.
    """
    scores = validate_scores(scores)
    if units is None:
        return scores
    if len(units) != scores.shape[-1]:
        raise ValueError(f"{len(units)} unit labels for {scores.shape[-1]} scores")
    if len(set(units)) == len(units):
        return scores
    return np.stack([scores[..., indices].mean(axis=-1) for indices in group_indices(units)], axis=-1)


def standard_error(scores: np.ndarray, units: Sequence[object] | None = None) -> np.ndarray:
    """Return the standard error std(ddof=1) / sqrt(n_units) of the mean of unit means, [...]; NaN for one unit."""
    means = average_by_unit(scores, units)
    n_units = means.shape[-1]
    if n_units == 1:
        return np.full(means.shape[:-1], np.nan)
    return np.asarray(means.std(axis=-1, ddof=1) / np.sqrt(n_units))


def standard_error_of_mean(scores: np.ndarray) -> float | None:
    """Return `standard_error` of scores [n] as a float; None for fewer than two scores."""
    return float(standard_error(scores)) if len(scores) > 1 else None


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Return the mean without the floor(n_runs / 4) lowest and highest scores, [..., n_runs] -> [...].

    It is more robust to outliers than the mean, and less noisy than the median (arXiv 2108.13264, section 4.3).
    """
    scores = np.sort(validate_scores(scores), axis=-1)
    n_runs = scores.shape[-1]
    n_trimmed = n_runs // 4
    return np.asarray(scores[..., n_trimmed : n_runs - n_trimmed].mean(axis=-1))


Z95 = 1.959963984540054
"""97.5% quantile of the standard normal distribution."""


def proportion(successes: int, n: int) -> Interval:
    """Return the proportion of `successes` in `n` episodes with Wilson's 95% score interval, within [0, 1].

    Raises:
        ValueError: there are no episodes, or `successes` is not in [0, n].
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} episodes")
    low, high = wilson_bounds(np.array(successes / n), n)
    return Interval(successes / n, float(low), float(high))


def wilson_bounds(proportions: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds, in [0, 1], of Wilson's 95% score interval (1927) of proportions of `n` trials, [...] each."""
    centers = (proportions + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half_width = Z95 / (1 + Z95**2 / n) * np.sqrt(proportions * (1 - proportions) / n + Z95**2 / (4 * n * n))
    low, high = np.maximum(centers - half_width, 0.0), np.minimum(centers + half_width, 1.0)
    # Rounding errors must not exclude the proportion itself from its interval.
    return np.minimum(low, proportions), np.maximum(high, proportions)


def mean_proportion(intervals: Sequence[Interval]) -> Interval:
    """Return the equally weighted mean of independent proportions, with an interval derived from their intervals.

    The method is square-and-add (Zou & Donner 2008, Statistics in Medicine 27, eq. 3 for a sum), clipped to [0, 1].

    Raises:
        ValueError: there are no proportions.
    """
    if not intervals:
        raise ValueError("no proportions")
    n = len(intervals)
    estimate = sum(interval.estimate for interval in intervals) / n
    lower_distance = math.sqrt(sum((interval.estimate - interval.low) ** 2 for interval in intervals)) / n
    upper_distance = math.sqrt(sum((interval.high - interval.estimate) ** 2 for interval in intervals)) / n
    return Interval(estimate, max(estimate - lower_distance, 0.0), min(estimate + upper_distance, 1.0))


@dataclass(frozen=True)
class AnalysisOfVariance:
    """The result of an analysis of variance.

    Attributes:
        spread: standard deviation of the group means.
        noise: standard error of a group mean, pooled over groups; None if no group has two scores.
        p: p-value of the F test of equal group means; None if `noise` is None.
    """

    spread: float
    noise: float | None
    p: float | None


def analysis_of_variance(strata: Sequence[Sequence[np.ndarray]]) -> AnalysisOfVariance:
    """Return a one-way analysis of variance with Fisher's F test, in which groups are compared within their stratum.

    Sums of squares and degrees of freedom are added over strata, so one test covers the differences in all strata.

    Args:
        strata: for each stratum, the scores of its groups, [n_scores] each.

    Raises:
        ValueError: no stratum has two groups.
    """
    from scipy.special import fdtrc  # lazy: importing it takes longer than most commands

    groups = [[validate_scores(scores) for scores in stratum] for stratum in strata]
    between_sum_of_squares, squared_deviations_of_means = 0.0, 0.0
    for stratum in groups:
        means = np.array([scores.mean() for scores in stratum])
        sizes = np.array([len(scores) for scores in stratum])
        between_sum_of_squares += float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum())
        squared_deviations_of_means += float(((means - means.mean()) ** 2).sum())
    all_groups = [scores for stratum in groups for scores in stratum]
    df_between, df_within = len(all_groups) - len(groups), sum(len(scores) - 1 for scores in all_groups)
    if df_between < 1:
        raise ValueError("an analysis of variance needs a stratum with at least two groups")
    spread = math.sqrt(squared_deviations_of_means / df_between)
    if df_within < 1:
        return AnalysisOfVariance(spread, noise=None, p=None)
    within_mean_square = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in all_groups) / df_within
    noise = math.sqrt(within_mean_square * float(np.mean([1 / len(scores) for scores in all_groups])))
    if not within_mean_square:  # no variation within groups
        return AnalysisOfVariance(spread, noise=0.0, p=0.0 if between_sum_of_squares else 1.0)
    return AnalysisOfVariance(
        spread, noise, float(fdtrc(df_between, df_within, between_sum_of_squares / df_between / within_mean_square))
    )


def group_indices(labels: Sequence[object]) -> list[np.ndarray]:
    """Return the indices of equal labels, [n_members] each, in order of first appearance."""
    indices: dict[object, list[int]] = defaultdict(list)
    for i, label in enumerate(labels):
        indices[label].append(i)
    return [np.array(member_indices) for member_indices in indices.values()]


def validate_scores(scores: np.ndarray) -> np.ndarray:
    """Return scores [..., n_runs] as float64.

    Raises:
        ValueError: there are no scores, or one is not finite.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim == 0 or scores.size == 0:
        raise ValueError(f"no scores: shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores contain NaN or infinity; exclude runs without a finite result")
    return scores
