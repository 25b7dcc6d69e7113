"""Schedules of the weight of a teacher's loss, as functions of the update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, NonNegativeInt, PositiveInt


@runtime_checkable
class Schedule(Protocol):
    def __call__(self, update: int) -> float:
        """Return the weight, >= 0, in an update, counted from 0; at weight 0 the teacher is not called."""
        ...


@dataclass(frozen=True)
class Constant:
    """Schedule with a constant weight."""

    weight: NonNegativeFloat = 1.0

    def __call__(self, update: int) -> float:
        return self.weight


@dataclass(frozen=True)
class LinearFloorCutoff:
    """Schedule with a linear decrease from `start` to `floor` in `anneal` updates, and 0 from update `cutoff` on.

    Defaults are those of the released LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373): 10 - 0.005 i in update i,
    at least 0.1, and no teacher from update 3000 on.
    """

    start: NonNegativeFloat = 10.0
    floor: NonNegativeFloat = 0.1
    anneal: PositiveInt = 1980
    cutoff: NonNegativeInt | None = 3000

    def __post_init__(self) -> None:
        if self.floor > self.start:
            raise ConfigError(
                f"teacher.schedule: floor={self.floor:g} must be at most start={self.start:g}, since the weight "
                "decreases"
            )

    def __call__(self, update: int) -> float:
        if self.cutoff is not None and update >= self.cutoff:
            return 0.0
        progress = min(update / self.anneal, 1.0)
        return self.floor if progress == 1.0 else self.start + (self.floor - self.start) * progress
