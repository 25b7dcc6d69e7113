"""Observations of several numbers as the number of a state, for tables."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmrl.agents.controllers.labels import input_names, n_inputs
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import EnvSpec

MOST_STATES = 100_000


class Bins:
    """Cuts the range of each number of an observation into bins of equal width; a state is a bin of each.

    Numbers below a range are in its first bin, and those above it in its last.

    Args:
        spec: of the environment.
        ranges: low, high and how many bins, for each number of the channel `vector`.

    Attributes:
        n: states: the product of the numbers of bins.

    Raises:
        ConfigError: there is no such channel, it has another length, a range is empty, or there are too many states.
    """

    def __init__(self, spec: EnvSpec, ranges: Sequence[Sequence[float]]) -> None:
        inputs, names = n_inputs(spec, "agent.bins"), input_names(spec)
        if len(ranges) != inputs:
            raise ConfigError(
                f"agent.bins has {len(ranges)} ranges, and env={spec.name} shows {inputs} numbers "
                f"({', '.join(names)}): write [low, high, bins] for each"
            )
        for name, entry in zip(names, ranges, strict=True):
            if len(entry) != 3 or not np.isfinite(entry).all() or entry[0] >= entry[1] or not _whole(entry[2]):
                raise ConfigError(
                    f"agent.bins: {list(entry)} of {name} must be [low, high, bins], low < high, bins >= 1"
                )
        self._low = np.array([low for low, _, _ in ranges], dtype=np.float64)
        self._high = np.array([high for _, high, _ in ranges], dtype=np.float64)
        self._counts = np.array([int(count) for _, _, count in ranges], dtype=np.int64)
        self.n = int(np.prod(self._counts.astype(object)))
        if self.n > MOST_STATES:
            raise ConfigError(f"agent.bins makes {self.n:,} states; at most {MOST_STATES:,} can be searched")
        # The last number changes fastest, as in an array of states.
        self._strides = np.append(np.cumprod(self._counts[:0:-1])[::-1], 1)
        self._names = names

    def state(self, observation: np.ndarray) -> np.ndarray:
        """Return the states, [n] int64, of observations [n, k]."""
        share = (observation - self._low) / (self._high - self._low)
        # Within the range first: what is infinite has no whole number.
        bins = np.floor(np.clip(share, 0.0, 1.0) * self._counts).astype(np.int64)
        states: np.ndarray = np.minimum(bins, self._counts - 1) @ self._strides
        return states

    @property
    def told(self) -> str:
        """Which state is which, a line for each number."""
        lines = [
            "In state s each number of the observation lies in a bin, counted from 0 (// divides without a remainder, "
            "% is the remainder):"
        ]
        each = zip(self._names, self._low, self._high, self._counts, self._strides, strict=True)
        for name, low, high, count, stride in each:
            which = f"(s // {stride}) % {count}" if stride > 1 else f"s % {count}"
            width = (high - low) / count
            lines.append(f"- {name}: bin {which} of {count}, each {width:.4g} wide, from {low:g} to {high:g}")
        return "\n".join(lines) + "\nNumbers outside a range are in its first or last bin.\n"


def _whole(x: float) -> bool:
    return x == int(x) and x >= 1
