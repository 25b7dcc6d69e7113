"""Scores of episodes: the success criterion, and the scale of returns from random play to the best known player."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt

SuccessQuantity = Literal["return", "reward", "terminated"]
"""Return of the episode, highest reward of a step, or whether the episode terminated."""


@dataclass(frozen=True)
class SuccessCriterion:
    """Success criterion: the return or the highest reward is at least `threshold`, or the episode terminated.

    Args:
        quantity: the quantity that decides.
        threshold: minimum return or reward; None for `terminated`.

    Raises:
        ConfigError: `threshold` is missing, or is given with the quantity `terminated`.
    """

    quantity: SuccessQuantity
    threshold: float | None = None

    def __post_init__(self) -> None:
        if (self.quantity in ("return", "reward")) != (self.threshold is not None):
            raise ConfigError(
                f"env.success={self.quantity} and env.success_threshold={self.threshold} do not fit: success=return "
                "and success=reward require a number success_threshold, and any other success requires "
                "success_threshold=null"
            )

    @classmethod
    def from_options(cls, success: SuccessQuantity | None, success_threshold: float | None) -> SuccessCriterion | None:
        """Return the criterion that `env.success` and `env.success_threshold` define; None if both are None.

        Raises:
            ConfigError: the options do not fit each other.
        """
        if success is None and success_threshold is None:
            return None
        return cls(success, success_threshold)  # type: ignore[arg-type]  # the constructor rejects None

    def __str__(self) -> str:
        """Return the criterion as text: `terminated`, `return >= 475`, `reward >= 0.01`."""
        return self.quantity if self.threshold is None else f"{self.quantity} >= {self.threshold:g}"

    def is_met(self, episode_return: Any, max_reward: Any, terminated: Any) -> Any:
        """Return whether an episode is a success; for arrays of episodes, elementwise.

        Args:
            episode_return: sum of the rewards of the episode.
            max_reward: highest reward of a step.
            terminated: whether the episode terminated.
        """
        if self.threshold is None:
            return terminated
        return (episode_return if self.quantity == "return" else max_reward) >= self.threshold


@dataclass(frozen=True)
class ReturnScale:
    """Scale of returns in one environment: 0 is a random player's mean return, 1 that of the best known player.

    It is the human-normalized score of Mnih et al. (Nature 2015, Methods) with the best known player in place of the
    human. Scores may be below 0 and above 1.

    Attributes:
        random: mean return of `agent=random`.
        best: mean return of the best known player.
        horizon: step limit in both measurements; None: there was none.
        kwargs: arguments of the environment in both measurements.
        is_maximum: whether `best` is the greatest possible return, at which `search.target_return=max` ends a search.

    Raises:
        ConfigError: the best player is no better than the random one.
    """

    random: float
    best: float
    horizon: PositiveInt | None = None
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    is_maximum: bool = False

    def __post_init__(self) -> None:
        if not self.best > self.random:
            raise ConfigError(f"env.progress: best={self.best} must be above random={self.random}")

    def applies_to(self, horizon: int | None, kwargs: Mapping[str, Any]) -> bool:
        """Return whether the scale was measured with this step limit and these arguments; else there are no scores."""
        return horizon == self.horizon and dict(kwargs) == dict(self.kwargs)

    def score(self, episode_return: Any) -> Any:
        """Return the score of a return; of arrays, elementwise.

        >>> ReturnScale(random=-200.0, best=0.0).score(-50.0)
        0.75
        """
        return (episode_return - self.random) / (self.best - self.random)
