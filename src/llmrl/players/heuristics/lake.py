"""The best way over a frozen lake, by value iteration (Bellman 1957)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_MOVES = ((0, -1), (1, 0), (0, 1), (-1, 0))
"""(rows, columns) of left, down, right, up: the actions in their order."""
ROUNDS = 5000
"""Most sweeps; values of small maps settle long before."""


def best_moves(rows: Sequence[str], straight: float) -> np.ndarray:
    """The move that reaches the goal with the highest probability, from every state, [n_states] int64.

    Args:
        rows: the map, `S` start, `F` ice, `H` hole, `G` goal.
        straight: probability of moving where one wants; else to either side, equally likely.
    """
    height, width = len(rows), len(rows[0])
    tiles = np.array([list(row) for row in rows]).ravel()
    reached = np.zeros((4, height * width), dtype=np.int64)
    for move, (down, right) in enumerate(_MOVES):
        y, x = np.divmod(np.arange(height * width), width)
        reached[move] = np.clip(y + down, 0, height - 1) * width + np.clip(x + right, 0, width - 1)
    side = (1.0 - straight) / 2
    value = (tiles == "G").astype(np.float64)
    fixed = np.isin(tiles, ("G", "H"))
    for _ in range(ROUNDS):
        after = value[reached]
        choices = straight * after + side * (np.roll(after, 1, axis=0) + np.roll(after, -1, axis=0))
        # A step costs a trifle, so that of equally safe ways the shorter is taken.
        new = np.where(fixed, value, choices.max(0) * (1 - 1e-6))
        if np.abs(new - value).max() < 1e-12:
            break
        value = new
    return np.asarray(choices.argmax(0))
