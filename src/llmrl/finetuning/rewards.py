"""Rewards of replies: named pure functions of an attempt, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class Attempt:
    """Evaluated reply.

    Attributes:
        vector: numbers in the reply, [d]; None if it could not be parsed.
        in_bounds: whether the numbers are within the bounds.
        returns: returns of the episodes played with them, [m]; empty if nothing was played or a return is not finite.
        history: values of the proposals shown in the prompt, [k], k >= 1.
        repeats: whether the vector is one of those proposals.
        error: reason why the reply is invalid; "" if it is valid.
    """

    vector: np.ndarray | None
    in_bounds: bool
    returns: np.ndarray
    history: np.ndarray
    repeats: bool = False
    error: str = ""

    @property
    def value(self) -> float | None:
        """Mean return; None if there are no returns."""
        return float(self.returns.mean()) if len(self.returns) else None


@dataclass(frozen=True)
class Scale:
    """Returns that are scaled to 0 (`low`) and to 1 (`high`). `published`: see `improvement`.

    Raises:
        ConfigError: `low` is not below `high`.
    """

    low: float
    high: float
    published: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(
                f"rewards.low must be below rewards.high, got {self.low:g} and {self.high:g}; set them to a bad and to "
                "a good return of this task"
            )

    def __call__(self, value: float) -> float:
        """Return clip((value - low) / (high - low), 0, 1)."""
        return float(np.clip((value - self.low) / (self.high - self.low), 0.0, 1.0))


def valid(attempt: Attempt, scale: Scale) -> float:
    """Return 1 if the reply could be parsed, else 0."""
    return float(attempt.vector is not None)


def in_bounds(attempt: Attempt, scale: Scale) -> float:
    """Return 1 if the reply could be parsed and its numbers are within the bounds, else 0."""
    return float(attempt.vector is not None and attempt.in_bounds)


def scaled_return(attempt: Attempt, scale: Scale) -> float:
    """Return the mean return, scaled to [0, 1]; 0 if there is none."""
    return 0.0 if attempt.value is None else scale(attempt.value)


def improvement(attempt: Attempt, scale: Scale) -> float:
    """Return the improvement over the history's best value as a share of the possible one, in [0, 1].

    With scaled returns g(new) and g(best): clip((g(new) - g(best)) / (1 - g(best)), 0, 1). For g(best) = 1 it is 1 if
    g(new) = 1, else 0. It is 0 if there is no return.

    As published (`scale.published`): clip((g(new) - g(best)) g(new) / g(best), 0, 1), or g(new) for g(best) = 0. This
    nearly vanishes after a good history: from 0.98 to 0.99 it gives 0.01.
    """
    if attempt.value is None:
        return 0.0
    new, best = scale(attempt.value), scale(float(attempt.history.max()))
    if scale.published:
        return new if best == 0.0 else float(np.clip((new - best) * new / best, 0.0, 1.0))
    if best == 1.0:
        return float(new == 1.0)
    return float(np.clip((new - best) / (1.0 - best), 0.0, 1.0))


def rank(attempt: Attempt, scale: Scale) -> float:
    """Return the share of the history's values that are exceeded, ties counting half; 0 if there is no return."""
    if attempt.value is None:
        return 0.0
    return float(np.mean((attempt.value > attempt.history) + 0.5 * (attempt.value == attempt.history)))


def repeat(attempt: Attempt, scale: Scale) -> float:
    """Return -1 for a proposal that the history already contains, else 0."""
    return -float(attempt.repeats)


Reward = Callable[[Attempt, Scale], float]

REWARDS: Mapping[str, Reward] = {
    "valid": valid,
    "in_bounds": in_bounds,
    "scaled_return": scaled_return,
    "improvement": improvement,
    "rank": rank,
    "repeat": repeat,
}


@dataclass(frozen=True)
class Rewards:
    """Reward of a reply: the weighted sum of the named rewards.

    Attributes:
        valid, in_bounds, scaled_return, improvement, rank, repeat: weights of these rewards; 0 omits one.
        low, high: returns that count as 0 and as 1; None: the lowest and the highest mean return among the training
            trials.
        rollouts: episodes per proposal.
        parity: compute `improvement` as published.

    Raises:
        ConfigError: all weights are 0, or `low` is not below `high`.
    """

    valid: NonNegativeFloat
    in_bounds: NonNegativeFloat
    scaled_return: NonNegativeFloat
    improvement: NonNegativeFloat
    rank: NonNegativeFloat
    repeat: NonNegativeFloat
    low: float | None
    high: float | None
    rollouts: PositiveInt
    parity: bool

    def __post_init__(self) -> None:
        if not self.weights:
            raise ConfigError(
                f"all rewards have the weight 0; set one of rewards.{', '.join(REWARDS)} to a number above 0"
            )
        if self.low is not None and self.high is not None:
            Scale(self.low, self.high)

    @property
    def weights(self) -> dict[str, float]:
        """Weights above 0 by the name of the reward."""
        return {name: weight for name in REWARDS if (weight := getattr(self, name)) > 0}

    def scale(self, values: np.ndarray) -> Scale:
        """Return the scale for the `values` [n] of the training trials.

        Raises:
            ConfigError: the lower limit is not below the upper one, e.g. because all values are equal.
        """
        low = float(values.min()) if self.low is None else self.low
        high = float(values.max()) if self.high is None else self.high
        return Scale(low, high, self.parity)

    def __call__(self, attempt: Attempt, scale: Scale) -> float:
        """Return the weighted sum."""
        return sum(weight * REWARDS[name](attempt, scale) for name, weight in self.weights.items())
