"""Many random generators at once, each equal to `numpy.random.default_rng(seed)`.

NumPy hashes one seed at a time, which takes longer than playing a short episode. The algorithm is O'Neill's seed
sequence; NumPy documents that it will not change (`numpy.random.SeedSequence`).
"""

from __future__ import annotations

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

_POOL = 4
_STATE = 8
"""Number of 32-bit words of a seed's pool, and of the state of PCG64."""
_SHIFT = np.uint32(16)
_MIX_LEFT, _MIX_RIGHT = np.uint32(0xCA01F9DD), np.uint32(0x4973F715)


def _constants(start: int, factor: int, n: int) -> NDArray[np.uint32]:
    """Return start, start * factor, ... modulo 2**32, n + 1 numbers, as a column."""
    row = [start * pow(factor, i, 2**32) % 2**32 for i in range(n + 1)]
    return np.array(row, dtype=np.uint32)[:, None]


_FILL = _constants(0x43B0D7E5, 0x931E8875, _POOL + _POOL * (_POOL - 1))
_DRAW = _constants(0x8B51F9DD, 0x58F38DED, _STATE)
_TARGETS = [np.array([j for j in range(_POOL) if j != i]) for i in range(_POOL)]


class _Words(ISeedSequence):
    """A seed sequence with precomputed words."""

    def __init__(self, words: NDArray[np.uint64]) -> None:
        self._words = words

    def generate_state(self, n_words: int, dtype: object = np.uint32) -> NDArray[np.uint64]:
        return self._words


def generators(seeds: NDArray[np.int64]) -> list[np.random.Generator]:
    """Return a generator for each of `seeds` [m], the same as `gymnasium.Env.reset(seed=...)` makes.

    Raises:
        ValueError: a negative seed.
    """
    seeds = np.asarray(seeds, dtype=np.int64)
    if len(seeds) and seeds.min() < 0:
        raise ValueError(f"seeds must not be negative, got {seeds.min()}")
    pool = np.zeros((_POOL, len(seeds)), dtype=np.uint32)
    pool[:2] = np.ascontiguousarray(seeds, dtype="<i8").view("<u4").reshape(-1, 2).T
    pool = _hash(pool, _FILL[: _POOL + 1])
    at = _POOL
    for source, targets in enumerate(_TARGETS):
        mixture = _MIX_LEFT * pool[targets] - _MIX_RIGHT * _hash(pool[source], _FILL[at : at + _POOL])
        pool[targets] = mixture ^ (mixture >> _SHIFT)
        at += len(targets)
    words = _hash(np.tile(pool, (_STATE // _POOL, 1)), _DRAW)
    states = np.ascontiguousarray(words.T, dtype="<u4").view("<u8").astype(np.uint64)
    # NumPy's type stubs do not allow other seed sequences.
    return [np.random.Generator(np.random.PCG64(_Words(state))) for state in states]  # type: ignore[arg-type]


def _hash(values: NDArray[np.uint32], constants: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return the hash of each row i of `values` (or of its only row) with constants i and i + 1."""
    mixture: NDArray[np.uint32] = (values ^ constants[:-1]) * constants[1:]
    return mixture ^ (mixture >> _SHIFT)
