"""Lazily computed text observations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class LazyTextArray:
    """Texts of n games of k agents, like an array [n, k] of `str`, each computed on first access.

    Args:
        shape: (n, k).
        describe: function from the index of a game and of an agent to the text. The data that it reads must not change.
    """

    dtype = np.dtype(object)

    def __init__(self, shape: tuple[int, int], describe: Callable[[int, int], str]) -> None:
        self.shape, self._describe = shape, describe
        self._texts: dict[tuple[int, int], str] = {}

    def __getitem__(self, index: Any) -> Any:
        """Return the text at (game, agent), or the texts of all agents of a game, a list."""
        if not isinstance(index, tuple):
            return [self[index, agent] for agent in range(self.shape[1])]
        game, agent = index
        if not (0 <= game < self.shape[0] and 0 <= agent < self.shape[1]):
            raise IndexError(f"no agent {agent} of game {game} among texts of shape {self.shape}")
        if index not in self._texts:
            self._texts[index] = self._describe(game, agent)
        return self._texts[index]

    def tolist(self) -> list[list[str]]:
        return [[self[game, agent] for agent in range(self.shape[1])] for game in range(self.shape[0])]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.tolist(), dtype=object)
