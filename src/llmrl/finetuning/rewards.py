"""What a reply is rewarded for: named pure functions of what came of it, and their weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt


@dataclass(frozen=True)
class Attempt:
    """A reply and what came of it.

    Attributes:
        vector: the numbers in it, [d]; None where none could be read.
        inside: they are inside the bounds.
        returns: of the rollouts they were judged by, [m]; empty where there is no vector inside the bounds.
        history: values of the proposals that the prompt shows, [k], k >= 1.
        repeats: the vector is one of those proposals.
        fault: what is wrong with the reply, "" if nothing is.
    """

    vector: np.ndarray | None
    inside: bool
    returns: np.ndarray
    history: np.ndarray
    repeats: bool = False
    fault: str = ""

    @property
    def value(self) -> float | None:
        """Mean return; None where nothing was played."""
        return float(self.returns.mean()) if len(self.returns) else None


@dataclass(frozen=True)
class Scale:
    """Which returns count as 0 and as 1. `published`: see `improvement`.

    Raises:
        ConfigError: they are not in this order.
    """

    low: float
    high: float
    published: bool = False

    def __post_init__(self) -> None:
        if not self.low < self.high:
            raise ConfigError(
                f"rewards are scaled from low={self.low:g} to high={self.high:g}, which leaves no room: set "
                "low and high (of rewards, or of transfer.<task>) to a bad and to a good return of this task"
            )

    def __call__(self, value: float) -> float:
        """clip((value - low) / (high - low), 0, 1)."""
        return float(np.clip((value - self.low) / (self.high - self.low), 0.0, 1.0))


def valid(attempt: Attempt, scale: Scale) -> float:
    """1 where the numbers could be read."""
    return float(attempt.vector is not None)


def inside(attempt: Attempt, scale: Scale) -> float:
    """1 where they could be read and are inside the bounds."""
    return float(attempt.vector is not None and attempt.inside)


def scaled_return(attempt: Attempt, scale: Scale) -> float:
    """The mean return, scaled to [0, 1]; 0 where nothing was played."""
    return 0.0 if attempt.value is None else scale(attempt.value)


def improvement(attempt: Attempt, scale: Scale) -> float:
    """The share of what was left to gain over the best value of the history that was gained, in [0, 1].

    With scaled returns g(new) and g(best): clip((g(new) - g(best)) / (1 - g(best)), 0, 1), and where nothing was left
    to gain, 1 for keeping it.

    As published (`scale.published`): clip((g(new) - g(best)) g(new) / g(best), 0, 1), or g(new) where g(best) = 0. It
    is worth nearly nothing where the history is good: from 0.98 to 0.99 it gives 0.01.
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
    """The share of the history's values that were beaten; a tie counts half."""
    if attempt.value is None:
        return 0.0
    return float(np.mean((attempt.value > attempt.history) + 0.5 * (attempt.value == attempt.history)))


def repeat(attempt: Attempt, scale: Scale) -> float:
    """-1 for a proposal that the history holds already."""
    return -float(attempt.repeats)


Reward = Callable[[Attempt, Scale], float]

REWARDS: Mapping[str, Reward] = {
    "valid": valid,
    "inside": inside,
    "scaled_return": scaled_return,
    "improvement": improvement,
    "rank": rank,
    "repeat": repeat,
}


class Rewards:
    """The reward of a reply: the weighted sum of the named ones.

    Args:
        valid, inside, scaled_return, improvement, rank, repeat: their weights; 0 leaves one out.
        low, high: returns that count as 0 and as 1; None: the lowest and the highest mean return among the trials to
            train on.
        rollouts: episodes a proposal is judged by.
        parity: `improvement` as published.

    Raises:
        ConfigError: all weights are 0, or `low` is not below `high`.
    """

    def __init__(
        self,
        valid: NonNegativeFloat = 1.0,
        inside: NonNegativeFloat = 1.0,
        scaled_return: NonNegativeFloat = 1.0,
        improvement: NonNegativeFloat = 1.0,
        rank: NonNegativeFloat = 0.0,
        repeat: NonNegativeFloat = 0.5,
        low: float | None = None,
        high: float | None = None,
        rollouts: PositiveInt = 5,
        parity: bool = False,
    ) -> None:
        weights = (valid, inside, scaled_return, improvement, rank, repeat)
        self.weights = {name: w for name, w in zip(REWARDS, weights, strict=True) if w > 0}
        if not self.weights:
            raise ConfigError(
                f"every reward has the weight 0; give one of rewards.{', '.join(REWARDS)} a weight above 0"
            )
        if low is not None and high is not None:
            Scale(low, high)
        self.low, self.high, self.rollouts, self.parity = low, high, rollouts, parity

    def scale(self, values: np.ndarray) -> Scale:
        """The scale, where `values` [n] are those of the trials to train on.

        Raises:
            ConfigError: all are the same, and no limits are given.
        """
        low = float(values.min()) if self.low is None else self.low
        high = float(values.max()) if self.high is None else self.high
        return Scale(low, high, self.parity)

    def scaled(self, limits: tuple[float | None, float | None]) -> Rewards:
        """The same for another task, whose `low` and `high` are `limits`."""
        other = copy.copy(self)
        other.low, other.high = limits
        return other

    def __call__(self, attempt: Attempt, scale: Scale) -> float:
        """The weighted sum."""
        return sum(weight * REWARDS[name](attempt, scale) for name, weight in self.weights.items())
