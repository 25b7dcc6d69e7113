"""The search space: what a trial may set, and how a value is written as a Hydra override."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_DIGITS = 6
"""Significant digits of a real number as it is run: run folders are named after it, and no search is finer."""


@dataclass(frozen=True)
class Numbers:
    """Numbers from `low` to `high`, both included; `step` apart if it is given.

    Attributes:
        log: searched on a logarithmic scale, because the order of magnitude is what matters.
        integer: whole numbers only.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    integer: bool = False

    def check(self, key: str) -> None:
        """Raise ConfigError if there is nothing to search here; `key` is for the message."""
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low <= self.high):
            raise ConfigError(f"{key} is searched from {self.low:g} to {self.high:g}; give two finite numbers in order")
        if self.log and self.low <= 0:
            raise ConfigError(
                f"{key} is searched on a logarithmic scale from {self.low:g}; it must start above 0 (or leave out log)"
            )
        if self.log and self.step is not None and not (self.integer and self.step == 1):
            raise ConfigError(
                f"{key} is searched on a logarithmic scale in steps of {self.step:g}; leave out the step or log, or "
                "name the values: choice(1,10,100)"
            )

    def distribution(self) -> BaseDistribution:
        """The same as Optuna says it."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def text(self, value: Any) -> str:
        """`value` as the right-hand side of an override, never outside the bounds."""
        if self.integer:
            return str(int(value))
        text = f"{value:.{_DIGITS}g}"
        return text if self.low <= float(text) <= self.high else repr(float(value))

    def first(self) -> str:
        """Some value, for trying out whether the key can be set at all."""
        return self.text(self.low)

    def __str__(self) -> str:
        step = "" if self.step is None or (self.integer and self.step == 1) else f" in steps of {self.step:g}"
        kind = "whole numbers" if self.integer else "numbers"
        return f"{kind} from {self.low:.{_DIGITS}g} to {self.high:.{_DIGITS}g}{step}{', log scale' if self.log else ''}"


@dataclass(frozen=True)
class Choices:
    """One of several values without an order, each written as the right-hand side of an override."""

    options: tuple[str, ...]

    def check(self, key: str) -> None:
        """Raise ConfigError if there is nothing to choose; `key` is for the message."""
        if not self.options:
            raise ConfigError(f"{key} has no values to choose from")

    def distribution(self) -> BaseDistribution:
        """The same as Optuna says it."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.options)

    def text(self, value: Any) -> str:
        """`value` as the right-hand side of an override."""
        return str(value)

    def first(self) -> str:
        """Some value, for trying out whether the key can be set at all."""
        return self.options[0]

    def __str__(self) -> str:
        return f"one of {', '.join(self.options)}"


Dimension = Numbers | Choices
Space = Mapping[str, Dimension]
"""What is searched, by the left-hand side of the override: `agent.ppo.epochs`, `principal`, `+agent.extra`."""


def overrides(space: Space, params: Mapping[str, Any]) -> list[str]:
    """The Hydra overrides that set `params`, in the order of the space."""
    return [f"{key}={dimension.text(params[key])}" for key, dimension in space.items()]
