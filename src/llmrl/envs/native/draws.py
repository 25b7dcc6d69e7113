"""Random numbers by address: a hash of (game, step, purpose, index), so that a game draws the same in any batch.

A generator that is advanced would tie a game's numbers to how many games there are and what else was drawn; here
nothing is advanced, nothing is saved, and all numbers of a step come from a few integer operations on the device.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

PURPOSES = ("place", "heading", "phase", "order", "grow", "spill", "return", "return_heading")
"""What numbers are for: who starts where, facing where; frames of the water; who moves first; what grows; which dirt
appears; who comes back where, facing where."""

_SCALE = 2.0**-24
_GOLDEN = -1640531527  # 2**32 divided by the golden ratio, odd, as a signed number
_MIX_1 = 0x7FEB352D
_MIX_2 = 0x846CA68B - 2**32
"""Multipliers of a 32-bit finaliser with very low bias (Wellons 2018, "lowbias32")."""


def _mixed(x: torch.Tensor) -> torch.Tensor:
    """A bijection of int32 whose every output bit depends on every input bit."""
    x = (x ^ ((x >> 16) & 0xFFFF)) * _MIX_1
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _MIX_2
    return x ^ ((x >> 16) & 0xFFFF)


class Draws:
    """The numbers of a batch of games.

    Args:
        keys: of each game's episode, [n_games, 2] int32; equal keys draw equal numbers.
    """

    def __init__(self, keys: torch.Tensor) -> None:
        self.keys = keys
        self._step: torch.Tensor | None = None
        self._words: tuple[torch.Tensor, torch.Tensor] | None = None
        self._addresses: dict[tuple[str, int], torch.Tensor] = {}

    def uniform(self, purpose: str, t: torch.Tensor, n: int) -> torch.Tensor:
        """Numbers in [0, 1) in steps of 2**-24, [n_games, n] float32, for step `t` [n_games] of each game."""
        if self._step is not t:
            # Two words, because with millions of games and steps one of 32 bits would come up again.
            ticks = t.to(torch.int32)
            self._step = t
            self._words = (
                _mixed(self.keys[:, 0] + ticks * _GOLDEN)[:, None],
                _mixed(self.keys[:, 1] ^ (ticks * _MIX_1))[:, None],
            )
        assert self._words is not None
        first, second = self._words
        x = self._address(purpose, n) + first
        x = (x ^ ((x >> 16) & 0xFFFF)) * _MIX_1
        x = (x ^ ((x >> 15) & 0x1FFFF)) + second
        x = x * _MIX_2
        x = (x ^ ((x >> 16) & 0xFFFF)) * _MIX_1
        return ((x >> 8) & 0xFFFFFF).to(torch.float32) * _SCALE

    def of(self, games: torch.Tensor) -> Draws:
        """The numbers of some games, by index [k]."""
        return Draws(self.keys[games])

    def _address(self, purpose: str, n: int) -> torch.Tensor:
        known = self._addresses.get((purpose, n))
        if known is None:
            index = torch.arange(n, dtype=torch.int32, device=self.keys.device)
            known = (index * len(PURPOSES) + PURPOSES.index(purpose)) * _GOLDEN
            self._addresses[purpose, n] = known
        return known


def game_keys(roots: NDArray[np.int64], games: NDArray[np.int64], episodes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Keys [n_games, 2] of episode `episodes` of game `games` under the seeds `roots`, all [n_games]."""
    words = []
    for salt in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        x = _split_mix(roots.astype(np.uint64) + np.uint64(salt))
        x = _split_mix(x ^ _split_mix(games.astype(np.uint64) + np.uint64(salt)))
        x = _split_mix(x ^ _split_mix(episodes.astype(np.uint64) * np.uint64(2) + np.uint64(1)))
        words.append((x >> np.uint64(32)).astype(np.uint32).view(np.int32))
    return np.stack(words, axis=1)


def _split_mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
