"""Metrics of an episode that are derived from per-step metrics: quotients of two sums over the steps of the episode.

If the denominator is 0, the metric is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Rows = Mapping[str, Any]
"""Per-step metrics by name, arrays or tensors of one shape."""


@dataclass(frozen=True)
class Ratio:
    """Total of the metric `of` divided by the total of the metric `by`."""

    of: str
    by: str

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """Return the summands of numerator and denominator, of the shape of `step` (index in the episode, from 0)."""
        return rows[self.of], rows[self.by]


@dataclass(frozen=True)
class MeanStep:
    """Mean index of a step, from 1, weighted by the metric `of` of the step."""

    of: str

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """Return what `Ratio.parts` does."""
        return rows[self.of] * (step + 1), rows[self.of]


@dataclass(frozen=True)
class Within:
    """Mean of the metric `of` over the steps `start` <= t < `stop` of the episode, counted from 0."""

    of: str
    start: int
    stop: int

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """Return what `Ratio.parts` does."""
        mask = (step >= self.start) & (step < self.stop)
        return rows[self.of] * mask, mask


Derived = Ratio | MeanStep | Within


def quarters(of: str, horizon: int) -> dict[str, Within]:
    """Return the means of a metric over the quarters of the horizon, as `<of>_quarter_1` to `<of>_quarter_4`."""
    edges = [horizon * k // 4 for k in range(5)]
    return {f"{of}_quarter_{k + 1}": Within(of, edges[k], edges[k + 1]) for k in range(4)}
