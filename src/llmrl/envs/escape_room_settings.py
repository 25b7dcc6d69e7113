"""Options of the Contextual Escape Room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeInt, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class EscapeRoomSettings:
    """Options of `EscapeRoom`; meanings, units and ranges are in `conf/env/escape_room.yaml`.

    Raises:
        ConfigError: options that contradict each other.
    """

    n_envs: PositiveInt
    n_agents: PositiveInt
    n_levers: PositiveInt
    min_agents_per_lever: PositiveInt
    horizon: PositiveInt
    fixed_context: NonNegativeInt | None
    mechanism: bool
    max_incentive: PositiveFloat
    budget_balanced: bool
    show_mechanism: bool
    stay_penalty: bool
    observation_divisor: PositiveFloat
    name_lever: bool
    observe: Sequence[Literal["vector", "text"]]

    def __post_init__(self) -> None:
        if not self.observe:
            raise ConfigError("env.observe is empty; it must contain at least one of vector, text")
        if self.min_agents_per_lever >= self.n_agents:
            raise ConfigError(
                f"env.min_agents_per_lever={self.min_agents_per_lever} leaves none of {self.n_agents} agents for "
                f"the door; use at most {self.n_agents - 1}"
            )
        if self.fixed_context is not None and not 0 <= self.fixed_context < self.n_levers:
            raise ConfigError(
                f"env.fixed_context={self.fixed_context} is not a lever; use 0 to {self.n_levers - 1}, or null"
            )
        if self.show_mechanism and not self.mechanism:
            raise ConfigError("env.show_mechanism=true requires env.mechanism=true")

    @property
    def places(self) -> tuple[str, ...]:
        """Names of the levers, the door and the start, in the order of the actions."""
        return (*(f"lever_{i}" for i in range(self.n_levers)), "door", "start")
