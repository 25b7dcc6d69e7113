"""Several measurements of one vector as one estimate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

Key = tuple[float, ...]


@dataclass
class Estimate:
    """What all measurements of a vector in a context say.

    Attributes:
        vector, context: what was measured, and where; no context is None.
        first: number of its first measurement among all of the pool, from 0.
        value: mean over all independent numbers, so a measurement weighs as much as it has episodes.
        units: independent numbers that `value` is the mean of: episodes, or societies.
        episodes: of all measurements.
        measurements: how many there are.
        draws: names of the random numbers that they were made with.
    """

    vector: Key
    context: int | str | None
    first: int
    value: float = 0.0
    units: int = 0
    episodes: int = 0
    measurements: int = 0
    draws: set[str] = field(default_factory=set)
    _squares: float = 0.0  # summed squared deviations of the units from `value`
    _alone: float | None = None  # standard error of the only measurement, where that is one unit

    @property
    def standard_error(self) -> float | None:
        """Of `value`, over units; of a single unit what its own measurement said, None where nothing is known."""
        if self.units < 2:
            return self._alone
        return math.sqrt(self._squares / (self.units - 1) / self.units)

    def add(self, value: float, standard_error: float | None, units: int, episodes: int) -> None:
        """One more measurement: the mean of `units` independent numbers, and its standard error.

        Moments are merged as by Chan, Golub & LeVeque (1983), "Algorithms for computing the sample variance".
        """
        squares = 0.0 if units < 2 or standard_error is None else standard_error**2 * units * (units - 1)
        total, shift = self.units + units, value - self.value
        self._squares += squares + shift**2 * self.units * units / total
        self.value += shift * units / total
        self._alone = standard_error if self.measurements == 0 else None
        self.units, self.episodes, self.measurements = total, self.episodes + episodes, self.measurements + 1


class Pool:
    """Estimates of vectors by context, of all their measurements.

    The highest of several noisy estimates is too high whatever they are pooled from (the winner's curse); pooling only
    takes the luckiest measurement of one vector out of it.

    Args:
        fewest: episodes below which an estimate is not among the best: the mean of a few episodes would be it by luck.
    """

    def __init__(self, fewest: int = 1) -> None:
        self.fewest = fewest
        self._found: dict[tuple[int | str | None, Key], Estimate] = {}
        self._best: dict[int | str | None, Estimate | None] = {}
        self._measured = 0

    def add(
        self,
        vector: Sequence[float] | np.ndarray,
        value: float,
        standard_error: float | None,
        units: int,
        episodes: int,
        context: int | str | None = None,
        draw: str | None = None,
    ) -> Estimate:
        """Take in a measurement; returns what is known of its vector now.

        Args:
            vector: what was measured, [d]; only equal numbers are the same vector.
            value, standard_error: mean of `units` independent numbers, and its standard error.
            units, episodes: see `Estimate`.
            context: where.
            draw: name of the random numbers of this measurement. A second one of a vector with the same ones (two equal
                proposals of a step, seeds common to all steps) is the first again, and is not counted. None: its own.
        """
        key = key_of(vector)
        found = self._found.get((context, key))
        if found is None:
            found = self._found[context, key] = Estimate(key, context, self._measured)
        self._measured += 1
        if draw is not None and draw in found.draws:
            return found
        before = found.value
        found.add(value, standard_error, units, episodes)
        if draw is not None:
            found.draws.add(draw)
        best = self._best.get(context)
        if best is found and found.value < before:
            self._best[context] = max(self._fit(context), key=_rank)
        elif found.episodes >= self.fewest and (best is None or _rank(found) > _rank(best)):
            self._best[context] = found
        return found

    def of(self, vector: Sequence[float] | np.ndarray, context: int | str | None = None) -> Estimate:
        """What is known of a vector.

        Raises:
            KeyError: it was never measured.
        """
        return self._found[context, key_of(vector)]

    def best(self, context: int | str | None = None) -> Estimate | None:
        """The highest estimate of a context, of equals the one that was measured first; None if there is none."""
        return self._best.get(context)

    def ranked(self, context: int | str | None = None) -> list[Estimate]:
        """The estimates of a context, highest first."""
        return sorted(self._fit(context), key=_rank, reverse=True)

    @property
    def contexts(self) -> list[int | str | None]:
        """Those in which something was measured, in the order of their first measurements."""
        return list(dict.fromkeys(context for context, _ in self._found))

    def _fit(self, context: int | str | None) -> list[Estimate]:
        return [each for each in self._found.values() if each.context == context and each.episodes >= self.fewest]


def key_of(vector: Sequence[float] | np.ndarray) -> Key:
    """What equal vectors have in common; -0 is 0."""
    return tuple(float(x) + 0.0 for x in vector)


def _rank(estimate: Estimate) -> tuple[float, int]:
    return estimate.value, -estimate.first
