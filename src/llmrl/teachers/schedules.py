"""How much the teacher counts, as a function of the number of updates so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt, UnitInterval


@runtime_checkable
class Schedule(Protocol):
    def __call__(self, update: int) -> float:
        """Weight of the teacher's loss in update number `update`, from 0; >= 0. At 0 the teacher is not asked."""
        ...


@dataclass(frozen=True)
class Constant:
    """Always the same weight."""

    weight: NonNegativeFloat = 1.0

    def __call__(self, update: int) -> float:
        return self.weight


@dataclass(frozen=True)
class LinearFloorCutoff:
    """From `start` down a straight line to `floor` in `anneal` updates, then `floor`, and 0 from `cutoff` on.

    With the defaults the schedule of LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373) as released:
    10 - 0.005 i down to 0.1, and no teacher from update 3000 on.
    """

    start: NonNegativeFloat = 10.0
    floor: NonNegativeFloat = 0.1
    anneal: PositiveInt = 1980
    cutoff: NonNegativeInt | None = 3000

    def __post_init__(self) -> None:
        _check_floor(self.floor, self.start)

    def __call__(self, update: int) -> float:
        if self.cutoff is not None and update >= self.cutoff:
            return 0.0
        passed = min(update / self.anneal, 1.0)
        return self.floor if passed == 1.0 else self.start + (self.floor - self.start) * passed


@dataclass(frozen=True)
class Exponential:
    """`start` times `decay` to the number of updates, not below `floor`, and 0 from `cutoff` on."""

    start: NonNegativeFloat = 1.0
    decay: UnitInterval = 0.99
    floor: NonNegativeFloat = 0.0
    cutoff: NonNegativeInt | None = None

    def __post_init__(self) -> None:
        _check_floor(self.floor, self.start)

    def __call__(self, update: int) -> float:
        if self.cutoff is not None and update >= self.cutoff:
            return 0.0
        return float(max(self.start * self.decay**update, self.floor))


def _check_floor(floor: float, start: float) -> None:
    if floor > start:
        raise ConfigError(f"teacher.schedule: floor={floor:g} is above start={start:g}; the weight goes down")
