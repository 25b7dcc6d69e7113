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


@dataclass(frozen=True)
class Entropy:
    """Mean entropy of the policy, in nats, over the agent-steps in which `plane` is seen; over all if it is None.

    The rollout adds the rows, because an environment does not know the policy's entropy.

    Attributes:
        channel: observation channel with a map of codes.
        plane: one of its `Channel.planes`, which is seen if it is true of any cell.
    """

    channel: str | None = None
    plane: str | None = None

    @property
    def rows(self) -> tuple[str, str]:
        """Names of two per-step rows: sum of the entropies of the counted agents, and the number of these agents."""
        view = "anything" if self.plane is None else f"{self.channel} {self.plane}"
        return f"entropy seeing {view}", f"agents seeing {view}"

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """Return what `Ratio.parts` does."""
        numerator, denominator = self.rows
        return rows[numerator], rows[denominator]


Derived = Ratio | MeanStep | Within | Entropy


def quarters(of: str, horizon: int) -> dict[str, Within]:
    """Return the means of a metric over the quarters of the horizon, as `<of>_quarter_1` to `<of>_quarter_4`."""
    edges = [horizon * k // 4 for k in range(5)]
    return {f"{of}_quarter_{k + 1}": Within(of, edges[k], edges[k + 1]) for k in range(4)}
