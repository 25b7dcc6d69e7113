"""Options of the common-pool resource game."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, MinLen

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveFloat, PositiveInt

ScenarioName = Literal["fishery", "pasture", "pollution"]
ChannelName = Literal["vector", "text"]


@dataclass(frozen=True)
class CommonsSettings:
    """Options of `Commons`; meanings, units and ranges are in `conf/env/fishery.yaml`.

    Raises:
        ConfigError: options that contradict each other.
    """

    scenario: ScenarioName
    n_envs: PositiveInt
    n_agents: PositiveInt
    capacity: PositiveInt
    growth: Annotated[int, Ge(2)]
    collapse_threshold: PositiveInt
    horizon: PositiveInt
    max_catch: PositiveInt
    observe: Annotated[Sequence[ChannelName], MinLen(1)]
    show_horizon: bool
    universalization: bool
    mechanism: bool
    max_tax: PositiveFloat
    show_mechanism: bool

    def __post_init__(self) -> None:
        capacity = self.capacity
        if self.max_catch > capacity:
            raise ConfigError(f"env.max_catch={self.max_catch} must be at most env.capacity={capacity}")
        if self.growth * self.collapse_threshold > capacity:
            raise ConfigError(
                f"env.collapse_threshold={self.collapse_threshold} must be at most capacity / growth = "
                f"{capacity // self.growth}; otherwise even a stock of {capacity} that nobody reduces could collapse"
            )
        if self.universalization and "text" not in self.observe:
            raise ConfigError("env.universalization=true adds a sentence to texts; add text to env.observe")
        if self.show_mechanism and not self.mechanism:
            raise ConfigError("env.show_mechanism=true requires env.mechanism=true")
