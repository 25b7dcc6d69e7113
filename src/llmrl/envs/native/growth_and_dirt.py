"""How apples grow and dirt spreads in Harvest and Clean Up, as in the published substrates."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

REGROWTH = (0.0, 0.0025, 0.005, 0.025)
"""Harvest: probability a step that a bare site sprouts with 0, 1, 2, 3 or more live apples within a distance of 2."""
SPILL = (0.5, 51)
"""Clean Up: probability a step that one more cell gets dirty, and the first step in which it can."""
GROWTH, TOO_DIRTY = 0.05, 0.4
"""Clean Up: probability a step that an apple grows where the river is clean, and the share of dirt where none does."""


def growth(n_cells: int) -> NDArray[np.float64]:
    """Return the probability a step that an apple grows in Clean Up, by number of dirty cells, [n_cells + 1].

    It falls in a straight line from `GROWTH` in a clean river to 0 at the share `TOO_DIRTY`, and is negative beyond.

    Args:
        n_cells: number of cells of the river that can be dirty, >= 0.
    """
    share = np.arange(n_cells + 1) / max(1, n_cells)
    return GROWTH * np.minimum((share - TOO_DIRTY) / -TOO_DIRTY, 1)
