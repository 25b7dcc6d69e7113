"""Numbers of an episode that follow from several of its per-step metrics: one sum over its steps by another.

Where the sum below the line is 0 there is nothing to say, and the number is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Rows = Mapping[str, Any]
"""Per-step metrics by name, arrays or tensors of one shape."""


@dataclass(frozen=True)
class Ratio:
    """Total of the metric `of` for each unit of the total of `by`."""

    of: str
    by: str

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """What is summed up above and below the line, of the shape of `step`, the steps of the episode before it."""
        return rows[self.of], rows[self.by]


@dataclass(frozen=True)
class MeanStep:
    """The step of the episode, counted from 1, at which the metric `of` came about, mean over its units."""

    of: str

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """As `Ratio.parts`."""
        return rows[self.of] * (step + 1), rows[self.of]


@dataclass(frozen=True)
class Within:
    """Mean of the metric `of` over the steps `start` <= t < `stop` of the episode, counted from 0."""

    of: str
    start: int
    stop: int

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """As `Ratio.parts`."""
        inside = (step >= self.start) & (step < self.stop)
        return rows[self.of] * inside, inside


@dataclass(frozen=True)
class Entropy:
    """Mean entropy, in nats, of the policy over the agent-steps in which `plane` is seen; over all where it is None.

    Whoever plays a policy adds the rows, for an environment knows none.

    Attributes:
        channel, plane: a map that agents see, and one of its `Channel.planes`: it is seen where it holds of any cell.
    """

    channel: str | None = None
    plane: str | None = None

    @property
    def rows(self) -> tuple[str, str]:
        """Names of the sum of the entropies of the agents that are counted in a step, and of their number."""
        seen = "anything" if self.plane is None else f"{self.channel} {self.plane}"
        return f"entropy seeing {seen}", f"agents seeing {seen}"

    def parts(self, rows: Rows, step: Any) -> tuple[Any, Any]:
        """As `Ratio.parts`."""
        above, below = self.rows
        return rows[above], rows[below]


Derived = Ratio | MeanStep | Within | Entropy


def quarters(of: str, horizon: int) -> dict[str, Within]:
    """The course of a metric: its mean over each quarter of the horizon, as `<of>_quarter_1` to `_4`."""
    edges = [horizon * k // 4 for k in range(5)]
    return {f"{of}_quarter_{k + 1}": Within(of, edges[k], edges[k + 1]) for k in range(4)}
