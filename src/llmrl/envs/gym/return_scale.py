"""How far a return is from that of random play to the best that is known."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt


@dataclass(frozen=True)
class ReturnScale:
    """Puts returns of one game on a scale: 0 is a random player's mean, 1 the best known player's.

    It is the human-normalised score of Mnih et al. (Nature 2015, Methods) with the best known player for the human. It
    may be below 0 and above 1.

    Attributes:
        random: mean return of `agent=random`.
        best: mean return of the best player known.
        horizon: steps an episode with which both were measured; with another one there is no score.
        kwargs: arguments of the environment with which they were; with others there is none.
        is_maximum: whether no episode can return more than `best`; `search.stop_at=max` ends a search there.

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

    def fits(self, horizon: int | None, kwargs: Mapping[str, Any]) -> bool:
        """Whether a game is the one that was measured."""
        return horizon == self.horizon and dict(kwargs) == dict(self.kwargs)

    def score(self, returned: Any) -> Any:
        """The score of a return; of many, elementwise.

        >>> ReturnScale(random=-200.0, best=0.0).score(-50.0)
        0.75
        """
        return (returned - self.random) / (self.best - self.random)
