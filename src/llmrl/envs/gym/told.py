"""Texts that are made when somebody reads them: words cost more than a step of most games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from llmrl.envs.gym.protocols import Describer


class Told:
    """What is observed in `n` games of one agent, in words: like an array [n, 1] of `str`.

    Args:
        describer: finds the words, once for each game that is read.
        seen: the observations, kept as they are now.
        infos: what the environments said beside them.
    """

    dtype = np.dtype(object)

    def __init__(
        self, describer: Describer, seen: Sequence[Any] | np.ndarray, infos: Sequence[Mapping[str, Any]]
    ) -> None:
        self._describer = describer
        # Batched games write the next observations over these.
        self._seen = seen.copy() if isinstance(seen, np.ndarray) else list(seen)
        self._infos = list(infos)
        self._words: dict[int, str] = {}

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._seen), 1

    def __getitem__(self, place: tuple[int, int]) -> str:
        game, agent = place
        if agent != 0 or not 0 <= game < len(self._seen):
            raise IndexError(f"no agent {agent} of game {game} among texts of shape {self.shape}")
        if game not in self._words:
            self._words[game] = self._describer.describe(self._seen[game], self._infos[game])
        return self._words[game]

    def tolist(self) -> list[list[str]]:
        return [[self[game, 0]] for game in range(len(self._seen))]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.tolist(), dtype=object)
