"""Scores of returns relative to random play and to the best known player."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt


@dataclass(frozen=True)
class ReturnScale:
    """A scale of the returns of one game: 0 is the mean of a random player, 1 that of the best known player.

    It is the human-normalized score of Mnih et al. (Nature 2015, Methods) with the best known player in place of the
    human. Scores may be below 0 and above 1.

    Attributes:
        random: mean return of `agent=random`.
        best: mean return of the best known player.
        horizon: steps per episode in both measurements; with another horizon there is no score.
        kwargs: arguments of the environment in both measurements; with others there is no score.
        is_maximum: whether no episode can return more than `best`; `search.target_return=max` ends a search there.

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
        """Return whether a game has the horizon and arguments with which the scale was measured."""
        return horizon == self.horizon and dict(kwargs) == dict(self.kwargs)

    def score(self, returned: Any) -> Any:
        """Return the score of a return; of arrays, elementwise.

        >>> ReturnScale(random=-200.0, best=0.0).score(-50.0)
        0.75
        """
        return (returned - self.random) / (self.best - self.random)
