"""Bootstrap intervals of scores, curves and comparisons of groups.

Scores are [..., n_runs]. Several tasks are the strata of a stratified bootstrap (Agarwal et al., 2021, arXiv
2108.13264). Definitions are those of the paper's library, rliable; in contrast to it, tasks may have different numbers
of runs, and a seed determines the resamples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.statistics import (
    Interval,
    Levels,
    Statistic,
    checked,
    interquartile_mean,
    mean,
    members_of,
    over_tasks,
    standard_error,
    standard_error_of_mean,
)

_CHUNK = 250_000  # resampled scores held at once: 2 MB, which a cache holds

_IN_CACHE = 128  # resamples of all groups multiplied at once: a few hundred kB, ten times as fast as all of them


_POOL = 1_000
"""Number of resamples of each run's societies and episodes, from which resamples of runs draw."""

_WITHIN = 1
"""Key of the random numbers within runs, to keep them apart from those of runs."""


@dataclass(frozen=True)
class Band:
    """Estimates [...] with pointwise confidence intervals; bounds are NaN where there is too little data."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def bootstrap_bands(
    scores: np.ndarray,
    statistics: Mapping[str, Statistic],
    sizes: Sequence[int] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    levels: Sequence[Levels] | None = None,
) -> dict[str, Band]:
    """Return percentile bootstrap intervals of several statistics, from the same resamples of runs, stratified by task.

    With `levels` it is a hierarchical bootstrap (Saravanan, Berman & Sober, 2020, arXiv 2007.07797): every level is
    resampled with replacement within the one above. Variation within a run then counts twice, in its score and by
    resampling, so intervals are rather wide. With few units at the top, this partly compensates for the percentile
    bootstrap, whose intervals are then too narrow. Without two runs of any task the bounds are NaN.

    Args:
        scores: scores [..., n_runs]; leading axes, such as points of a curve, are resampled together, run by run.
        statistics: functions over the last axis, by name.
        sizes: numbers of runs of the tasks, which follow each other on the last axis; runs are drawn with replacement
            within their task, so a resample has as many runs of each task as the data. None: one task.
        level: confidence level in (0, 1).
        resamples: number of bootstrap resamples.
        seed: root of the bootstrap's random numbers; the same data and seed give the same intervals.
        levels: resampling levels of each task; None: runs are independent. `Levels.within` is only used for scores
            of shape [n_runs].

    Raises:
        ValueError: scores, sizes, level, levels or resamples are invalid or do not fit together.
    """
    scores = checked(scores)
    sizes = [scores.shape[-1]] if sizes is None else sizes
    if sum(sizes) != scores.shape[-1]:
        raise ValueError(f"tasks of {list(sizes)} runs for {scores.shape[-1]} scores")
    estimates = {name: np.asarray(statistic(scores)) for name, statistic in statistics.items()}
    if max(sizes) == 1:  # resampling one run gives itself, whatever the noise
        nothing = {name: np.full(estimate.shape, np.nan) for name, estimate in estimates.items()}
        return {name: Band(estimate, nothing[name], nothing[name]) for name, estimate in estimates.items()}
    resampled: dict[str, list[np.ndarray]] = {name: [] for name in statistics}
    levels = [Levels()] * len(sizes) if levels is None else levels
    pools = _pools(scores, sizes, levels, seed) if scores.ndim == 1 else None
    rng = np.random.default_rng([seed, _WITHIN])
    for drawn in _draws(sizes, levels, resamples, seed, max(1, _CHUNK // scores.size)):
        sample = scores[..., drawn] if pools is None else pools[drawn, rng.integers(_POOL, size=drawn.shape)]
        for name, statistic in statistics.items():
            resampled[name].append(statistic(sample))
    at = tails(level)
    bounds = {name: quantiles(np.concatenate(parts, axis=-1), at) for name, parts in resampled.items()}
    return {name: Band(estimates[name], low, high) for name, (low, high) in bounds.items()}


def bootstrap_interval(
    scores: np.ndarray,
    statistic: Statistic = interquartile_mean,
    groups: Sequence[object] | None = None,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Return the percentile bootstrap interval of one statistic; see `bootstrap_bands`.

    Args:
        scores: scores [n_runs]; or [n_groups, n_runs], where each row is a group.
        statistic: function over the last axis, which holds the scores of all groups, one group after another.
        groups: label of the group (task) of each run, [n_runs], in any order. None: one group, or the rows of `scores`.
        level, resamples, seed: as for `bootstrap_bands`.

    Raises:
        ValueError: scores, groups, level or resamples are invalid or do not fit together.
    """
    scores = checked(scores)
    if scores.ndim == 2 and groups is None:
        groups = np.repeat(np.arange(scores.shape[0]), scores.shape[1]).tolist()
        scores = scores.reshape(-1)
    if scores.ndim != 1:
        raise ValueError(f"scores must be [n_runs], or [n_groups, n_runs] without groups; got shape {scores.shape}")
    if groups is not None and len(groups) != len(scores):
        raise ValueError(f"{len(groups)} group labels for {len(scores)} scores")
    members = members_of(groups if groups is not None else [0] * len(scores))
    ordered, sizes = scores[np.concatenate(members)], [len(indices) for indices in members]
    band = bootstrap_bands(ordered, {"": statistic}, sizes, level, resamples, seed)[""]
    return Interval(float(band.estimate), float(band.low), float(band.high))


def probability_of_improvement(x: Sequence[np.ndarray], y: Sequence[np.ndarray]) -> float:
    """Return P(X > Y): the share of pairs in which a run of X beats a run of Y on the same task, averaged over tasks.

    Ties count half. It is the Mann-Whitney statistic divided by the number of pairs (arXiv 2108.13264, section 4.3).

    Args:
        x, y: scores of each task, [n_runs] each; tasks in the same order, numbers of runs may differ.
    """
    return float(np.mean([wins(a, b).mean() for a, b in zip(x, y, strict=True)]))


def improvement_matrix(
    groups: Sequence[Sequence[np.ndarray]],
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
    levels: Sequence[Sequence[Levels]] | None = None,
) -> Band:
    """Return `probability_of_improvement` of every group over every other; each group is resampled independently.

    Args:
        groups: for each group, the scores of its tasks, [n_runs] each; all have the same tasks in the same order.
        level, resamples, seed: as for `bootstrap_bands`.
        levels: resampling levels of each group's tasks, of which only `Levels.clusters` is used.

    Returns:
        Band [n_groups, n_groups], row over column; 1/2 on the diagonal. Bounds are NaN if one of the two groups has a
        single run of every task.
    """
    at, n = tails(level), len(groups)
    estimate, low, high = np.full((n, n), 0.5), np.full((n, n), np.nan), np.full((n, n), np.nan)
    tasks = [[checked(group[k]) for group in groups] for k in range(len(groups[0]) if n else 0)]
    # A resample is the share it gives each run; a probability is then two products with the matrix of who beats whom.
    clusters = [[None if levels is None else levels[i][k].clusters for i in range(n)] for k in range(len(tasks))]
    shares = [
        _shares([len(scores) for scores in task], clusters[k], resamples, [seed, k]) for k, task in enumerate(tasks)
    ]
    for i in range(n - 1):
        sampled = np.zeros((n - 1 - i, resamples + 1))
        for task, share in zip(tasks, shares, strict=True):
            most = share.shape[1]
            later = np.concatenate([np.pad(scores, (0, most - len(scores))) for scores in task[i + 1 :]])
            beaten = np.ascontiguousarray(wins(task[i], later).T)
            for start in range(0, resamples + 1, _IN_CACHE):
                part = slice(start, start + _IN_CACHE)
                won = (beaten @ share[i, : len(task[i]), part]).reshape(n - 1 - i, most, -1)
                won *= share[i + 1 :, :, part]
                sampled[:, part] += won.sum(1) / len(tasks)
        estimate[i, i + 1 :] = sampled[:, 0]
        low[i, i + 1 :], high[i, i + 1 :] = quantiles(sampled[:, 1:], at)
    below = np.tril_indices(n, -1)
    estimate[below], low[below], high[below] = 1 - estimate.T[below], 1 - high.T[below], 1 - low.T[below]
    told = [any(len(scores) > 1 for scores in group) for group in groups]
    unknown = ~np.logical_and.outer(told, told)
    low[unknown] = high[unknown] = np.nan
    return Band(estimate, low, high)


def performance_profile(
    scores: np.ndarray,
    thresholds: np.ndarray,
    sizes: Sequence[int] | None = None,
    level: float = 0.95,
    resamples: int = 2_000,
    seed: int = 0,
    levels: Sequence[Levels] | None = None,
) -> Band:
    """Return the share of runs with a score above each threshold, with pointwise intervals, [n_thresholds]
    (arXiv 2108.13264, section 4.2).

    Args:
        scores: scores [n_runs], stratified by `sizes` as in `bootstrap_bands`.
        thresholds: thresholds [n_thresholds].
        levels: resampling levels of each task, of which only `Levels.clusters` is used.
    """
    above = (checked(scores)[None, :] > np.asarray(thresholds)[:, None]).astype(np.float64)
    return bootstrap_bands(above, {"": mean}, sizes, level, resamples, seed, levels)[""]


def describe(scores: np.ndarray, seed: int = 0, independent: bool = True) -> dict[str, float | None]:
    """Return a row of a table for scores [n]: mean, standard error, 95% bootstrap interval of the mean, min, max.

    Standard error and interval are None for a single score, and for scores that are not `independent`.
    """
    scores = checked(scores)
    if not independent:
        unknown = dict.fromkeys(("standard_error", "low", "high"))
        return {"mean": float(mean(scores)), **unknown, "min": float(scores.min()), "max": float(scores.max())}
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


def describe_difference(
    x: np.ndarray, reference: np.ndarray, paired: bool, seed: int = 0, independent: bool = True
) -> dict[str, float | None]:
    """Return a row of a table for mean(x [n]) - mean(reference [m]): mean, standard error, 95% bootstrap interval.

    Scores that are `paired` (n = m) were measured under the same conditions one by one, so their differences are
    resampled. Otherwise x and reference are resampled separately. Unknown values are None, as in `describe`.
    """
    if paired:
        row = describe(checked(x) - checked(reference), seed, independent)
        return {name: row[name] for name in ("mean", "standard_error", "low", "high")}
    scores, sizes = np.concatenate([checked(reference), checked(x)]), [len(reference), len(x)]
    above = over_tasks(lambda means: means[..., 1] - means[..., 0], sizes)
    row = {"mean": float(above(scores)), **dict.fromkeys(("standard_error", "low", "high"))}
    if independent and min(sizes) > 1:
        band = bootstrap_bands(scores, {"": above}, sizes, seed=seed)[""]
        error = np.hypot(standard_error(scores[: sizes[0]]), standard_error(scores[sizes[0] :]))
        row |= {"standard_error": float(error), "low": float(band.low), "high": float(band.high)}
    return row


def _draws(
    sizes: Sequence[int], levels: Sequence[Levels], resamples: int, seed: int, chunk: int
) -> Iterator[np.ndarray]:
    """Yield the indices of the runs of resamples, [<= chunk, n_runs], `resamples` in total, drawn within each task."""
    if resamples < 1:
        raise ValueError(f"resamples must be positive; got {resamples}")
    rng = np.random.default_rng(seed)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    for done in range(0, resamples, chunk):
        rows = min(chunk, resamples - done)
        drawn = [
            start + _drawn(size, each.clusters, rows, rng)
            for start, size, each in zip(starts, sizes, levels, strict=True)
        ]
        yield np.concatenate(drawn, axis=1)


def _drawn(size: int, clusters: Sequence[object] | None, rows: int, rng: np.random.Generator) -> np.ndarray:
    """Return the indices of the runs of each resample of one task, [rows, size].

    With clusters, a randomly drawn cluster replaces each one, and as many runs are drawn from it as the replaced one
    has: all resamples have `size` runs. A single cluster is treated as no clusters.
    """
    members = [] if clusters is None else members_of(clusters)
    if len(members) in (0, 1, size):
        return rng.integers(size, size=(rows, size))
    lengths = np.array([len(indices) for indices in members])
    table = np.stack([np.resize(indices, lengths.max()) for indices in members])
    chosen = rng.integers(len(members), size=(rows, len(members))).repeat(lengths, axis=1)
    return np.asarray(table[chosen, rng.integers(lengths[chosen])])


def _pools(scores: np.ndarray, sizes: Sequence[int], levels: Sequence[Levels], seed: int) -> np.ndarray | None:
    """Return resampled scores of each run, with its societies and episodes resampled, [n_runs, `_POOL`]; None if no run
    has values of several episodes.

    Raises:
        ValueError: the mean over a run's episodes is not its score.
    """
    inside = [part for each, size in zip(levels, sizes, strict=True) for part in each.within or [None] * size]
    if all(part is None or sum(map(len, part)) < 2 for part in inside):
        return None
    rng = np.random.default_rng([seed, _WITHIN, 0])
    pools = np.repeat(scores[:, None], _POOL, axis=1)
    for i, part in enumerate(inside):
        if part is None:
            continue
        if not np.isclose(np.mean([checked(society).mean() for society in part]), scores[i], rtol=1e-4, atol=1e-6):
            raise ValueError(f"a run scored {scores[i]} is not the mean of its episodes")
        lengths = np.array([len(society) for society in part])
        table = np.stack([np.resize(society, lengths.max()) for society in part])
        chosen = rng.integers(len(part), size=(_POOL, len(part)))
        own = lengths[chosen][..., None]
        values = table[chosen[..., None], rng.integers(own, size=(*chosen.shape, lengths.max()))]
        counted = np.arange(lengths.max()) < own  # a society has as many episodes in a resample as it played
        pools[i] = ((values * counted).sum(-1) / own[..., 0]).mean(-1)
    return pools


def _shares(
    sizes: Sequence[int], clusters: Sequence[Sequence[object] | None], resamples: int, seed: list[int]
) -> np.ndarray:
    """Return the share of each run in the data and in each resample of its group, [n_groups, most runs, 1 + resamples].

    Index 0 of the last axis is the data. Groups with fewer runs are padded with zeros.
    """
    shares = np.zeros((len(sizes), max(sizes, default=0), 1 + resamples))
    rng = np.random.default_rng(seed)
    for group, size, labels in zip(shares, sizes, clusters, strict=True):
        drawn = _drawn(size, labels, resamples, rng) * resamples + np.arange(resamples)[:, None]
        group[:size, 0] = 1 / size
        group[:size, 1:] = np.bincount(drawn.ravel(), minlength=drawn.size).reshape(size, resamples) / size
    return shares


def quantiles(samples: np.ndarray, at: Sequence[float]) -> list[np.ndarray]:
    """Return quantiles over the last axis, [...] each, interpolated linearly as by `np.quantile`, which is slower."""
    ordered, last = np.sort(samples, axis=-1), samples.shape[-1] - 1
    quantiles = []
    for q in at:
        place = last * q
        k = int(place)
        below, above = ordered[..., k], ordered[..., min(k + 1, last)]
        quantiles.append(below + (place - k) * (above - below))
    return quantiles


def wins(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return an array [n, m]: 1 where a score of x [n] is above one of y [m], 1/2 where they are equal, else 0."""
    x, y = checked(x)[:, None], checked(y)[None, :]
    return np.asarray((x > y) + 0.5 * (x == y))


def tails(level: float) -> list[float]:
    """Return the two quantile levels that bound an interval of the confidence level `level`.

    Raises:
        ValueError: `level` is not in (0, 1).
    """
    if not 0 < level < 1:
        raise ValueError(f"level must be in (0, 1), not {level}")
    return [(1 - level) / 2, (1 + level) / 2]
