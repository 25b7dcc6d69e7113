"""The statistics of results: point estimates of scores over runs, their standard errors, tests and shares.

Scores are [..., n_runs]; estimates are taken over the last axis. Runs are the seeds of one experiment, or the seeds of
one experiment on several tasks. Definitions are those of Agarwal et al. (2021), "Deep Reinforcement Learning at the
Edge of the Statistical Precipice", arXiv 2108.13264, and of the paper's library, rliable. Intervals by resampling are
in `llmrl.analysis.bootstrap`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

Statistic = Callable[[np.ndarray], np.ndarray]
"""[..., n_runs] -> [...]."""


@dataclass(frozen=True)
class Levels:
    """How the runs of one task came about, for a hierarchical bootstrap.

    Attributes:
        clusters: what each run shares with others (a pre-training run), [n_runs]: a resample draws labels with
            replacement, then runs within each. None: every run stands alone.
        within: of each run the values that its score is the mean of, society by society: the score is the mean over
            societies of the mean over their episodes. A resample draws societies, then episodes within each. None:
            only scores are known, of all runs or of that one.
    """

    clusters: Sequence[object] | None = None
    within: Sequence[Sequence[np.ndarray] | None] | None = None


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
    return np.asarray(checked(scores).mean(axis=-1))


def median(scores: np.ndarray) -> np.ndarray:
    """Median, [..., n_runs] -> [...]."""
    return np.asarray(np.median(checked(scores), axis=-1))


def standard_error(scores: np.ndarray, clusters: Sequence[object] | None = None) -> np.ndarray:
    """Standard error of the mean: sample standard deviation / sqrt(n_runs), [..., n_runs] -> [...]; NaN for one run.

    With `clusters` (labels, [n_runs]) runs of one label may vary together: the cluster-robust (CR1) standard error, as
    in Cameron & Miller (2015), equation 10, of a constant. One cluster alone cannot tell, and counts as none.
    """
    scores = checked(scores)
    n_runs = scores.shape[-1]
    if n_runs == 1:
        return np.full(scores.shape[:-1], np.nan)
    members = [] if clusters is None else members_of(clusters)
    if len(members) in (0, 1, n_runs):
        return np.asarray(scores.std(axis=-1, ddof=1) / np.sqrt(n_runs))
    centred = scores - scores.mean(axis=-1, keepdims=True)
    sums = np.stack([centred[..., indices].sum(axis=-1) for indices in members])
    return np.asarray(np.sqrt((sums**2).sum(axis=0) * len(members) / (len(members) - 1)) / n_runs)


def standard_error_of_mean(scores: np.ndarray) -> float | None:
    """`standard_error` of scores [n] as a number; None for one score, which cannot tell."""
    return float(standard_error(scores)) if len(scores) > 1 else None


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """Mean of the middle half, [..., n_runs] -> [...]: floor(n_runs / 4) scores are dropped at either end.

    Less swayed by one lucky run than the mean, less noisy than the median (arXiv 2108.13264, section 4.3).
    """
    scores = np.sort(checked(scores), axis=-1)
    n_runs = scores.shape[-1]
    cut = n_runs // 4
    return np.asarray(scores[..., cut : n_runs - cut].mean(axis=-1))


def optimality_gap(scores: np.ndarray, target: float) -> np.ndarray:
    """Mean shortfall below `target`, [..., n_runs] -> [...]: what lies above it does not make up for what lies below.

    `target - mean(min(scores, target))`, as arXiv 2108.13264, section 4.3, has it, where scores are normalised and
    the target is 1.
    """
    return np.asarray(target - np.minimum(checked(scores), target).mean(axis=-1))


def over_tasks(statistic: Statistic, sizes: Sequence[int]) -> Statistic:
    """`statistic` of the tasks' means, so that a task counts once, however many runs it has.

    For scores whose last axis holds `sizes[k]` runs of task k, one task after another.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])

    def of_means(scores: np.ndarray) -> np.ndarray:
        return statistic(np.add.reduceat(checked(scores), starts, axis=-1) / np.asarray(sizes))

    return of_means


def standard_error_over_tasks(tasks: Sequence[np.ndarray], levels: Sequence[Levels] | None = None) -> float:
    """Standard error of the mean of the tasks' means, given each task's scores [n_runs]; NaN if a task has one run."""
    levels = [Levels()] * len(tasks) if levels is None else levels
    errors = [standard_error(scores, each.clusters) for scores, each in zip(tasks, levels, strict=True)]
    return float(np.sqrt(sum(error**2 for error in errors)) / len(tasks))


Z95 = 1.959963984540054
"""The normal distribution's 97.5% quantile."""


def proportion(successes: int, n: int, z: float = Z95) -> Interval:
    """The share of `successes` in `n` episodes with Wilson's score interval (Wilson 1927), within [0, 1].

    Raises:
        ValueError: there are no episodes, or more successes than episodes.
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"{successes} successes of {n} episodes")
    p = successes / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # Rounding must not leave the share outside.
    return Interval(p, min(max(centre - half, 0.0), p), max(min(centre + half, 1.0), p))


def mean_proportion(parts: Sequence[Interval]) -> Interval:
    """The mean of independent shares, each counting once, from their own intervals (the square-and-add limits of Zou &
    Donner 2008, Statistics in Medicine 27, eq. 3 for a sum).

    Raises:
        ValueError: there are none.
    """
    if not parts:
        raise ValueError("no shares")
    n = len(parts)
    estimate = sum(part.estimate for part in parts) / n
    below = math.sqrt(sum((part.estimate - part.low) ** 2 for part in parts)) / n
    above = math.sqrt(sum((part.high - part.estimate) ** 2 for part in parts)) / n
    return Interval(estimate, max(estimate - below, 0.0), min(estimate + above, 1.0))


@dataclass(frozen=True)
class Variance:
    """How far groups differ, and how far chance alone lets them differ.

    Attributes:
        spread: standard deviation between the groups' means.
        noise: standard error of such a mean, pooled over groups; None where no group has two scores.
        p: chance of means at least as far apart where all groups are alike; None where noise is not known.
    """

    spread: float
    noise: float | None
    p: float | None


def analysis_of_variance(strata: Sequence[Sequence[np.ndarray]]) -> Variance:
    """One-way analysis of variance with Fisher's F test, within strata: groups are compared with those of their own.

    Sums of squares and degrees of freedom are added up over strata, so one test says whether groups differ in any.

    Args:
        strata: of each stratum its groups' scores, [n_scores] each; one stratum has two groups at least.

    Raises:
        ValueError: there is nothing to compare.
    """
    groups = [[checked(scores) for scores in stratum] for stratum in strata]
    between, of_means = 0.0, 0.0
    for stratum in groups:
        means = np.array([scores.mean() for scores in stratum])
        sizes = np.array([len(scores) for scores in stratum])
        between += float((sizes * (means - np.average(means, weights=sizes)) ** 2).sum())
        of_means += float(((means - means.mean()) ** 2).sum())
    flat = [scores for stratum in groups for scores in stratum]
    above, below = len(flat) - len(groups), sum(len(scores) - 1 for scores in flat)
    if above < 1:
        raise ValueError("an analysis of variance compares two groups at least")
    spread = math.sqrt(of_means / above)
    if below < 1:
        return Variance(spread, None, None)
    within = sum(float(((scores - scores.mean()) ** 2).sum()) for scores in flat) / below
    noise = math.sqrt(within * float(np.mean([1 / len(scores) for scores in flat])))
    if not within:  # nothing is left to chance
        return Variance(spread, 0.0, 0.0 if between else 1.0)
    return Variance(spread, noise, _upper_tail(between / above / within, above, below))


def _upper_tail(ratio: float, above: int, below: int) -> float:
    """Chance of an F of `above` and `below` degrees of freedom that is at least `ratio`."""
    from scipy.special import fdtrc  # lazily: only the end of a design run needs it

    return float(fdtrc(above, below, ratio))


def members_of(groups: Sequence[object]) -> list[np.ndarray]:
    """Indices of the runs of each group, groups in order of first appearance."""
    indices: dict[object, list[int]] = {}
    for i, group in enumerate(groups):
        indices.setdefault(group, []).append(i)
    return [np.array(members) for members in indices.values()]


def checked(scores: np.ndarray) -> np.ndarray:
    """Return scores [..., n_runs] as numbers.

    Raises:
        ValueError: there are none, or one is not finite.
    """
    scores = np.asarray(scores, dtype=np.float64)
    if scores.ndim == 0 or scores.size == 0:
        raise ValueError(f"no scores: shape {scores.shape}")
    if not np.isfinite(scores).all():
        raise ValueError("scores hold NaN or infinity; leave out runs without a result, and say how many those are")
    return scores
