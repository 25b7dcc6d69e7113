"""Groups of runs and two of them against each other, by what the runs share: pre-trained societies, and seeds.

A sweep over pre-training runs and seeds is a crossed design: all runs of one seed have the principal's draws in common,
in whatever society. Both factors are then resampled, each by itself (Owen, 2007, "The pigeonhole bootstrap", Annals of
Applied Statistics 1). Where every society has seeds of its own, runs are resampled within societies (Saravanan, Berman
& Sober, 2020, arXiv 2007.07797).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from llmrl.analysis.bootstrap import Band, probability_of_improvement, quantiles, tails, wins
from llmrl.analysis.resampling_levels import clusters_of
from llmrl.analysis.runs import RunRecord
from llmrl.analysis.statistics import checked, members_of

_TAILS = tails(0.95)
_CHUNK = 2_000_000
"""Numbers of resampled curves held at once."""


@dataclass(frozen=True)
class Factors:
    """What the runs of a group share.

    Attributes:
        clusters: the pre-training run that each begins with, [n]; a label of its own where it shares none.
        seeds: of each, [n].
    """

    clusters: tuple[object, ...]
    seeds: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[RunRecord]) -> Factors:
        """Find them in the records of a group's runs."""
        return cls(tuple(clusters_of(runs)), tuple(run.seed for run in runs))

    @property
    def members(self) -> dict[object, np.ndarray]:
        """Indices of the runs of each cluster."""
        return dict(zip(dict.fromkeys(self.clusters), members_of(self.clusters), strict=True))

    @property
    def clustered(self) -> bool:
        """Whether there are several clusters, and one of them has several runs."""
        return 1 < len(set(self.clusters)) < len(self.clusters)

    @property
    def crossed(self) -> bool:
        """Whether every cluster has the same seeds, each once."""
        seeds = [sorted(self.seeds[i] for i in indices) for indices in self.members.values()]
        return self.clustered and all(own == seeds[0] and len(set(own)) == len(own) for own in seeds)


def mean_band(values: np.ndarray, factors: Factors, resamples: int = 10_000, seed: int = 0) -> Band:
    """Return the mean of a group's runs with its 95 % percentile interval; every cluster counts alike.

    Args:
        values: [..., n]; leading axes, such as the points of a curve, are resampled together.
        factors: of the runs on the last axis.
        resamples, seed: of the interval.
    """
    return _band([checked(values)], [factors], resamples, seed)


def difference(
    x: np.ndarray, y: np.ndarray, of_x: Factors, of_y: Factors, resamples: int = 10_000, seed: int = 0
) -> Band:
    """Return how far the mean of `x` is above that of `y`, with its 95 % percentile interval.

    Clusters and seeds that both groups have are drawn for both at once, so what they share is taken out.

    Args:
        x, y: [..., n] and [..., m], with equal leading axes.
        of_x, of_y: factors of the runs on the last axes.
        resamples, seed: of the interval.
    """
    return _band([checked(x), checked(y)], [of_x, of_y], resamples, seed)


def improvement(
    x: np.ndarray, y: np.ndarray, of_x: Factors, of_y: Factors, resamples: int = 10_000, seed: int = 0
) -> Band:
    """Return the probability of improvement of `x` over `y` (`bootstrap.probability_of_improvement`) within clusters
    that they share, averaged over these; of all pairs where they share none. The interval is as of `difference`.

    Args:
        x, y: scores, [n] and [m].
        of_x, of_y, resamples, seed: as for `difference`.
    """
    x, y = checked(x), checked(y)
    blocks = [(np.arange(len(x)), np.arange(len(y)))]
    if paired(of_x, of_y):
        theirs = of_y.members
        blocks = [(indices, theirs[label]) for label, indices in of_x.members.items()]
    estimate = probability_of_improvement([x[i] for i, _ in blocks], [y[j] for _, j in blocks])
    bounds = [np.array(np.nan)] * 2
    if _known([of_x, of_y]):
        share_x, share_y = _shares([of_x, of_y], resamples, seed)
        found = np.zeros(resamples)
        for i, j in blocks:
            # Within a cluster a share is a weight of the cluster, the same in both groups, times one of the run.
            weight = share_y[j].sum(axis=0)
            inside = np.divide(share_y[j], weight, out=np.zeros_like(share_y[j]), where=weight > 0)
            found += np.einsum("ir,ij,jr->r", share_x[i], wins(x[i], y[j]), inside)
        bounds = quantiles(found, _TAILS)
    return Band(np.asarray(estimate), *bounds)


def paired(x: Factors, y: Factors) -> bool:
    """Whether two groups have the same clusters, several of them, so that they can be compared within each."""
    return x.clustered and y.clustered and set(x.clusters) == set(y.clusters)


def stays_above(places: np.ndarray, low: np.ndarray) -> float | None:
    """Return the first of `places` [n] from which on `low` [n] is above zero up to the end; None if it is not there at
    the end.

    >>> stays_above(np.array([1, 2, 3, 4]), np.array([0.5, -1.0, 0.2, 0.1]))
    3.0
    """
    below = np.flatnonzero(~(low > 0))
    first = 0 if len(below) == 0 else int(below[-1]) + 1
    return float(places[first]) if first < len(places) else None


def _band(values: Sequence[np.ndarray], factors: Sequence[Factors], resamples: int, seed: int) -> Band:
    """The mean of the first group, less that of the second if there is one."""
    shape = values[0].shape[:-1]
    flat = [each.reshape(-1, each.shape[-1]) for each in values]
    signs = (1.0, -1.0)
    means = [_mean(each, own) for each, own in zip(flat, factors, strict=True)]
    estimate = sum(sign * mean for sign, mean in zip(signs, means, strict=False))
    bounds = np.full((2, len(flat[0])), np.nan)
    if _known(factors):
        shares = _shares(factors, resamples, seed)
        step = max(1, _CHUNK // resamples)
        for start in range(0, len(flat[0]), step):
            part = slice(start, start + step)
            sampled = sum(sign * (each[part] @ share) for sign, each, share in zip(signs, flat, shares, strict=False))
            bounds[:, part] = quantiles(sampled, _TAILS)
    return Band(np.asarray(estimate).reshape(shape), bounds[0].reshape(shape), bounds[1].reshape(shape))


def _mean(values: np.ndarray, factors: Factors) -> np.ndarray:
    return np.asarray(np.mean([values[:, indices].mean(axis=-1) for indices in factors.members.values()], axis=0))


def _known(factors: Sequence[Factors]) -> bool:
    """Whether resampling says anything: every group has several runs."""
    return min(len(each.clusters) for each in factors) > 1


def _shares(factors: Sequence[Factors], resamples: int, seed: int) -> list[np.ndarray]:
    """The share of each run of each group in each resample, [n, resamples] each; they add up to one."""
    rng = np.random.default_rng([seed, 0])
    alike = len(factors) == 1 or paired(*factors)
    times: dict[object, np.ndarray] = {}
    of_seeds: dict[frozenset[int], dict[int, np.ndarray]] = {}
    found = []
    for own in factors:
        if not own.clustered:
            n = len(own.clusters)
            found.append(rng.multinomial(n, np.full(n, 1 / n), size=resamples).T / n)
            continue
        members = own.members
        if not times or not alike:
            k = len(members)
            drawn = rng.multinomial(k, np.full(k, 1 / k), size=resamples).T
            times = dict(zip(members, drawn, strict=True))
        shares = np.zeros((len(own.clusters), resamples))
        for label, indices in members.items():
            if own.crossed:
                seeds = frozenset(own.seeds)
                if seeds not in of_seeds or not alike:
                    drawn = rng.multinomial(len(seeds), np.full(len(seeds), 1 / len(seeds)), size=resamples).T
                    of_seeds[seeds] = dict(zip(sorted(seeds), drawn / len(seeds), strict=True))
                inside = np.stack([of_seeds[seeds][own.seeds[i]] for i in indices])
                shares[indices] = times[label] / len(members) * inside
            else:
                # Each time a cluster is drawn, as many of its runs are as it has: together a multinomial draw.
                counts = rng.multinomial(times[label] * len(indices), np.full(len(indices), 1 / len(indices)))
                shares[indices] = counts.T / (len(members) * len(indices))
        found.append(shares)
    return found
