"""Counter-based random numbers: hashes of (game, step, purpose, index), which do not depend on other games of a batch.

There is no generator state, which other games and other random numbers would change. A random number is a 24-bit
integer; an event of probability p happens if this integer is below `compute_probability_threshold(p)`. Except in the
keys of games, arithmetic is on 64-bit integers truncated to 32 bits, with equal results in Python and Numba.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

START_CELL, START_HEADING, WATER_PHASE, MOVE_ORDER, APPLE_GROWTH, SPILL, RETURN_CELL, RETURN_HEADING = range(8)
"""Purposes of random numbers: start cell and heading of a player, frame of the water, order of moves, growth of apples,
appearance of dirt, cell and heading of a returning player."""

N_RANDOM_BITS = 24
"""Number of bits of a random integer."""
UNIT_SCALE = np.float32(2.0**-24)
"""Factor that converts a random integer to a number in [0, 1)."""
UINT32_MASK = 0xFFFFFFFF
GOLDEN_RATIO_MULTIPLIER = 0x9E3779B9
"""2**32 divided by the golden ratio, rounded to an odd integer."""
MIX_MULTIPLIER_1, MIX_MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B
"""Multipliers of a 32-bit finalizer with very low bias (Wellons 2018, "lowbias32")."""


def mix_bits(x: int) -> int:
    """Return the image of a 32-bit integer under a bijection in which every output bit depends on every input bit."""
    x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
    x = ((x ^ (x >> 15)) * MIX_MULTIPLIER_2) & UINT32_MASK
    return x ^ (x >> 16)


def hash_step(game_keys: NDArray[Any], b: int, step: int) -> tuple[int, int]:
    """Return two 32-bit hashes from which all random numbers of game `b` at a step are computed.

    A single hash would have collisions among millions of games and steps. `game_keys`: [n_games, 2] int32.
    """
    hash_0 = mix_bits((int(game_keys[b, 0]) + int(step) * GOLDEN_RATIO_MULTIPLIER) & UINT32_MASK)
    hash_1 = mix_bits((int(game_keys[b, 1]) ^ (int(step) * MIX_MULTIPLIER_1)) & UINT32_MASK)
    return hash_0, hash_1


def sample_integer(step_hash: tuple[int, int], purpose: int, index: int) -> int:
    """Return the random integer, 0 to 2**24 - 1, of a purpose and an index (of a player or cell) in a step."""
    x = ((int(index) * 8 + purpose) * GOLDEN_RATIO_MULTIPLIER + step_hash[0]) & UINT32_MASK
    x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
    x = ((x ^ (x >> 15)) + step_hash[1]) & UINT32_MASK
    x = (x * MIX_MULTIPLIER_2) & UINT32_MASK
    x = ((x ^ (x >> 16)) * MIX_MULTIPLIER_1) & UINT32_MASK
    return x >> 8


def compute_probability_threshold(probability: float) -> int:
    """Return the integer, at most 2**24, below which a random integer lies with a given probability.

    The probability is rounded to float32, so that results equal published recordings of episodes.
    """
    return math.ceil(float(np.float32(probability)) * 2.0**N_RANDOM_BITS)


def derive_game_keys(
    root_seeds: NDArray[np.int64], game_indices: NDArray[np.int64], episode_indices: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Return the keys of games, [n_games, 2] int32, which are hashes of three integers of each game, [n_games]."""
    key_columns = []
    for salt in (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03):
        x = _split_mix_64(root_seeds.astype(np.uint64) + np.uint64(salt))
        x = _split_mix_64(x ^ _split_mix_64(game_indices.astype(np.uint64) + np.uint64(salt)))
        x = _split_mix_64(x ^ _split_mix_64(episode_indices.astype(np.uint64) * np.uint64(2) + np.uint64(1)))
        key_columns.append((x >> np.uint64(32)).astype(np.uint32).view(np.int32))
    return np.stack(key_columns, axis=1)


def _split_mix_64(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply the finalizer of SplitMix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
