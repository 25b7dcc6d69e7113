"""The search space of tuning: the values that a trial may set, and their text as Hydra overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmrl.core.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

_DIGITS = 6
"""Significant digits of real values; they suffice, and folder names contain them."""


@dataclass(frozen=True)
class NumericRange:
    """A range of numbers.

    Attributes:
        low, high: bounds, both included.
        step: distance of the numbers; None: all numbers.
        log: whether to search on a logarithmic scale.
        integer: whether only integers are searched.
    """

    low: float
    high: float
    step: float | None = None
    log: bool = False
    integer: bool = False

    def check(self, key: str) -> None:
        """Raise ConfigError if the range is invalid; `key` is for the message."""
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
        """Return the dimension as a distribution of Optuna."""
        from optuna.distributions import FloatDistribution, IntDistribution

        if self.integer:
            return IntDistribution(int(self.low), int(self.high), log=self.log, step=int(self.step or 1))
        return FloatDistribution(self.low, self.high, log=self.log, step=self.step)

    def text(self, value: Any) -> str:
        """Return `value` as the right-hand side of an override, never outside the bounds."""
        if self.integer:
            return str(int(value))
        text = f"{value:.{_DIGITS}g}"
        return text if self.low <= float(text) <= self.high else repr(float(value))

    def first(self) -> str:
        """Return one value, to test whether the key can be set."""
        return self.text(self.low)

    def __str__(self) -> str:
        step = "" if self.step is None or (self.integer and self.step == 1) else f" in steps of {self.step:g}"
        kind = "whole numbers" if self.integer else "numbers"
        return f"{kind} from {self.low:.{_DIGITS}g} to {self.high:.{_DIGITS}g}{step}{', log scale' if self.log else ''}"


@dataclass(frozen=True)
class CategoricalChoice:
    """A choice among values without an order, each given as the right-hand side of an override."""

    options: tuple[str, ...]

    def check(self, key: str) -> None:
        """Raise ConfigError if there are no values; `key` is for the message."""
        if not self.options:
            raise ConfigError(f"{key} has no values to choose from; give at least one, as in choice(1,10)")

    def distribution(self) -> BaseDistribution:
        """Return the dimension as a distribution of Optuna."""
        from optuna.distributions import CategoricalDistribution

        return CategoricalDistribution(self.options)

    def text(self, value: Any) -> str:
        """Return `value` as the right-hand side of an override."""
        return str(value)

    def first(self) -> str:
        """Return one value, to test whether the key can be set."""
        return self.options[0]

    def __str__(self) -> str:
        return f"one of {', '.join(self.options)}"


Dimension = NumericRange | CategoricalChoice
Space = Mapping[str, Dimension]
"""Dimensions of the search by the left-hand side of the override: `agent.ppo.epochs`, `principal`, `+agent.extra`."""


def overrides(space: Space, params: Mapping[str, Any]) -> list[str]:
    """Return the Hydra overrides that set `params`, in the order of the space."""
    return [f"{key}={dimension.text(params[key])}" for key, dimension in space.items()]
