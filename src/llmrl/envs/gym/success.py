"""The criterion for a successful episode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

from llmrl.core.errors import ConfigError

Success = Literal["return", "reward", "terminated"]
"""Quantity that is judged: return of the episode, highest reward of a step, or whether the episode terminated."""


@dataclass(frozen=True)
class SuccessCriterion:
    """A criterion: the return or the highest reward is at least `at`, or the episode terminated (`at` is None).

    Raises:
        ConfigError: `at` is missing, or is given with the kind `terminated`.
    """

    kind: Success
    at: float | None = None

    def __post_init__(self) -> None:
        if (self.kind in ("return", "reward")) != (self.at is not None):
            raise ConfigError(
                f"env.success={self.kind} and env.success_threshold={self.at} do not fit: success=return and "
                "success=reward require a number success_threshold, and any other success requires "
                "success_threshold=null"
            )

    @classmethod
    def of(cls, kind: Success | None, at: float | None) -> SuccessCriterion | None:
        """Return the criterion, or None if there is none (`kind` and `at` are None).

        Raises:
            ConfigError: `kind` and `at` do not fit each other.
        """
        return None if kind is None and at is None else cls(cast("Success", kind), at)

    def __str__(self) -> str:
        """Return the criterion as text: `terminated`, `return >= 475`, `reward >= 0.01`."""
        return self.kind if self.at is None else f"{self.kind} >= {self.at:g}"

    def judge(self, returned: Any, best_reward: Any, terminated: Any) -> Any:
        """Return whether an episode is a success; for arrays of episodes, elementwise.

        Args:
            returned: return of the episode.
            best_reward: highest reward of a step.
            terminated: whether the episode terminated.
        """
        if self.kind == "terminated":
            return terminated
        assert self.at is not None
        return (returned if self.kind == "return" else best_reward) >= self.at
