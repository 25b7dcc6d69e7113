"""What makes an episode a success."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from llmrl.core.errors import ConfigError

Success = Literal["return", "reward", "terminated"]
"""The return of the episode is at least a number, the reward of one of its steps is, or it ended by itself."""


@dataclass(frozen=True)
class Criterion:
    """An episode is a success if its `kind` is at least `at`, or if it `terminated` (then `at` is None).

    Raises:
        ConfigError: a kind that needs a number has none, or one that needs none has one.
    """

    kind: Success
    at: float | None = None

    def __post_init__(self) -> None:
        if (self.kind == "terminated") != (self.at is None):
            raise ConfigError(
                f"env.success={self.kind} and env.success_at={self.at}: success=return and success=reward need a "
                "number success_at, and only they do"
            )

    @classmethod
    def of(cls, kind: Success | None, at: float | None) -> Criterion | None:
        """None where there is no `kind`; then there must be no number either."""
        if kind is None and at is not None:
            raise ConfigError(
                f"env.success=null and env.success_at={at}: success=return and success=reward need a number "
                "success_at, and only they do"
            )
        return None if kind is None else cls(kind, at)

    def __str__(self) -> str:
        """`terminated`, `return >= 475`, `reward >= 0.01`."""
        return self.kind if self.at is None else f"{self.kind} >= {self.at:g}"

    def judge(self, returned: Any, best_reward: Any, terminated: Any) -> Any:
        """Whether an episode is a success; of many episodes, elementwise.

        Args:
            returned: its return.
            best_reward: the highest reward of a step.
            terminated: whether it ended by itself.
        """
        if self.kind == "terminated":
            return terminated
        assert self.at is not None
        return (returned if self.kind == "return" else best_reward) >= self.at
