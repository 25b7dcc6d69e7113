"""Pooled estimates of vectors that were measured several times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

VectorKey = tuple[float, ...]


@dataclass
class Estimate:
    """Estimate of a vector's value in a context, pooled over all its measurements.

    Attributes:
        vector: vector that was measured.
        context: context of the measurements; None if there are no contexts.
        first_index: index of the vector's first measurement among all measurements of the pool, from 0.
        value: mean over all units, so a measurement is weighted by its number of units.
        n_units: number of units, the independent numbers that `value` averages: episodes, or means of societies.
        n_episodes: number of episodes of all measurements.
        n_measurements: number of measurements.
        draw_names: names of the random numbers of the measurements (`PooledEstimates.add`).
    """

    vector: VectorKey
    context: int | str | None
    first_index: int
    value: float = 0.0
    n_units: int = 0
    n_episodes: int = 0
    n_measurements: int = 0
    draw_names: set[str] = field(default_factory=set)
    _squared_deviations: float = 0.0  # sum over units of their squared deviations from `value`
    _single_standard_error: float | None = None  # standard error of the only measurement; None after a second one

    @property
    def standard_error(self) -> float | None:
        """Standard error of `value` over units; for a single unit, the one of its measurement; None if unknown."""
        if self.n_units < 2:
            return self._single_standard_error
        return math.sqrt(self._squared_deviations / (self.n_units - 1) / self.n_units)

    def add(self, value: float, standard_error: float | None, n_units: int, n_episodes: int) -> None:
        """Add a measurement with mean `value` over `n_units` units, and its standard error.

        Moments are merged as in Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance".
        """
        squared_error = 0.0 if n_units < 2 or standard_error is None else standard_error**2
        total, shift = self.n_units + n_units, value - self.value
        self._squared_deviations += squared_error * n_units * (n_units - 1) + shift**2 * self.n_units * n_units / total
        self.value += shift * n_units / total
        self._single_standard_error = standard_error if self.n_measurements == 0 else None
        self.n_units, self.n_episodes = total, self.n_episodes + n_episodes
        self.n_measurements += 1


class PooledEstimates:
    """Estimates of vectors by context, each pooled over all measurements of the vector.

    The highest of several noisy estimates is biased upwards even if they are pooled (the winner's curse). Pooling only
    removes the bias of the highest measurement of a single vector.

    Args:
        min_episodes: minimum number of episodes of an estimate that `best` and `ranked` return, because the mean of a
            few episodes may be high by chance.
    """

    def __init__(self, min_episodes: int = 1) -> None:
        self.min_episodes = min_episodes
        self._estimates: dict[tuple[int | str | None, VectorKey], Estimate] = {}
        self._best: dict[int | str | None, Estimate | None] = {}
        self._n_measurements = 0

    def add(
        self,
        vector: Sequence[float] | np.ndarray,
        value: float,
        standard_error: float | None,
        n_units: int,
        n_episodes: int,
        context: int | str | None = None,
        draw: str | None = None,
    ) -> Estimate:
        """Add a measurement and return the pooled estimate of its vector.

        Args:
            vector: vector that was measured, [d]. Vectors are pooled only if all numbers are exactly equal.
            value, standard_error: mean over units, and its standard error; None if the error is unknown.
            n_units, n_episodes: number of units (see `Estimate`) and of episodes.
            context: context of the measurement.
            draw: name of the random numbers of this measurement. A second measurement of a vector with the same draw
                (equal proposals in one step, seeds shared by all steps) has the same value and is not counted. None: no
                other measurement has the same random numbers.
        """
        key = make_vector_key(vector)
        estimate = self._estimates.get((context, key))
        if estimate is None:
            estimate = self._estimates[context, key] = Estimate(key, context, self._n_measurements)
        self._n_measurements += 1
        if draw is not None and draw in estimate.draw_names:
            return estimate
        previous_value = estimate.value
        estimate.add(value, standard_error, n_units, n_episodes)
        if draw is not None:
            estimate.draw_names.add(draw)
        best, is_reliable = self._best.get(context), estimate.n_episodes >= self.min_episodes
        if best is estimate and estimate.value < previous_value:
            self._best[context] = max(self._list_reliable(context), key=_get_sort_key)
        elif is_reliable and (best is None or _get_sort_key(estimate) > _get_sort_key(best)):
            self._best[context] = estimate
        return estimate

    def get(self, vector: Sequence[float] | np.ndarray, context: int | str | None = None) -> Estimate:
        """Return the estimate of a vector in a context.

        Raises:
            KeyError: the vector was not measured in this context.
        """
        return self._estimates[context, make_vector_key(vector)]

    def count(self, vector: Sequence[float] | np.ndarray, context: int | str | None = None) -> int:
        """Return the number of measurements of a vector in a context."""
        estimate = self._estimates.get((context, make_vector_key(vector)))
        return 0 if estimate is None else estimate.n_measurements

    def best(self, context: int | str | None = None) -> Estimate | None:
        """Return the highest estimate of a context, of equal ones the first; None if there is none."""
        return self._best.get(context)

    def ranked(self, context: int | str | None = None) -> list[Estimate]:
        """Return the estimates of a context with at least `min_episodes` episodes, highest first."""
        return sorted(self._list_reliable(context), key=_get_sort_key, reverse=True)

    @property
    def contexts(self) -> list[int | str | None]:
        """Contexts with measurements, in the order of their first measurements."""
        return list(dict.fromkeys(context for context, _ in self._estimates))

    def _list_reliable(self, context: int | str | None) -> list[Estimate]:
        estimates = [estimate for estimate in self._estimates.values() if estimate.context == context]
        return [estimate for estimate in estimates if estimate.n_episodes >= self.min_episodes]


def make_vector_key(vector: Sequence[float] | np.ndarray) -> VectorKey:
    """Return a vector as a hashable key; -0.0 becomes 0.0."""
    return tuple(float(x) + 0.0 for x in vector)


def _get_sort_key(estimate: Estimate) -> tuple[float, int]:
    return estimate.value, -estimate.first_index
