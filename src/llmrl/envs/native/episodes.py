"""When episodes end: known without looking at a game, so that nobody waits for a device to learn it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.melting_pot.rules import FIRST_END, SUBSTRATES
from llmrl.envs.native.draws import game_keys
from llmrl.envs.native.engine import Setup

INTERVAL, LAST_END = 100, 5000
"""Steps between the chances of an end at random, from `FIRST_END` on, and steps after which it is over in any case."""


def over(steps: NDArray[np.int64], horizon: int | None, keys: NDArray[np.int32], setup: Setup) -> NDArray[np.bool_]:
    """Which games are over after `steps` [n] of their episodes, of which `keys` [n, 2] are those of the draws."""
    ended = steps >= min(horizon or LAST_END, LAST_END)
    due = (steps >= FIRST_END) & ((steps - FIRST_END) % INTERVAL == 0)
    if due.any() and not setup.switched("no_random_end"):
        drawn = game_keys(keys[:, 0].astype(np.int64), keys[:, 1].astype(np.int64), steps)[:, 0].view(np.uint32)
        ended |= due & (drawn < SUBSTRATES[setup.game_map.substrate].end_probability * 2.0**32)
    return ended
