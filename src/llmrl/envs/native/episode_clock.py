"""When games are over: at their horizon, or by chance. Known on the host, and looked at only when something is due."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.melting_pot.substrate_rules import FIRST_END, SUBSTRATES
from llmrl.envs.native.engine import Setup
from llmrl.envs.native.hashed_random import game_keys

INTERVAL, LAST_END = 100, 5000
"""Steps between the chances of an end at random, from `FIRST_END` on, and steps after which it is over in any case."""


class EpisodeClock:
    """Counts the steps of a batch of games.

    Args:
        n: games; none has begun.
        horizon: steps an episode; None leaves its end to the rules.
        setup: what is played.

    Attributes:
        ended, live: which games are over, and which are not, [n] bool; not to be changed.
    """

    def __init__(self, n: int, horizon: int | None, setup: Setup) -> None:
        self._horizon, self._setup = horizon, setup
        self._clock = self._counted = self._due = 0
        self._steps = np.zeros(n, dtype=np.int64)  # at `_counted`
        self.ended = np.ones(n, dtype=bool)
        self.live = ~self.ended

    @property
    def steps(self) -> NDArray[np.int64]:
        """Steps of each game's episode, [n]; those of a game that is over do not go on."""
        self._steps[self.live] += self._clock - self._counted
        self._counted = self._clock
        return self._steps

    def begin(self, games: NDArray[np.bool_]) -> None:
        """New episodes of `games` [n] begin."""
        self.set(np.where(games, 0, self.steps), self.ended & ~games)

    def set(self, steps: NDArray[np.int64], ended: NDArray[np.bool_]) -> None:
        """All games are where they are said to be, both [n]."""
        self._steps, self._counted = steps.astype(np.int64), self._clock
        self._settle(ended)

    def advance(self, keys: NDArray[np.int32]) -> bool:
        """One more step of all games that are not over; whether any ended with it. `keys` [n, 2]: of the draws."""
        self._clock += 1
        if self._clock < self._due:
            return False
        before = self.ended
        self._settle(before | over(self.steps, self._horizon, keys, self._setup))
        return bool((self.ended & ~before).any())

    def _settle(self, ended: NDArray[np.bool_]) -> None:
        """Work out the next step at which any game can end."""
        self.ended, self.live = ended, ~ended
        steps = self._steps[self.live]
        if not len(steps):
            self._due = self._clock + LAST_END
            return
        left = np.maximum(min(self._horizon or LAST_END, LAST_END) - steps, 1)
        if not self._setup.switched("no_random_end"):
            chances = FIRST_END + INTERVAL * np.maximum((steps - FIRST_END) // INTERVAL + 1, 0)
            left = np.minimum(left, chances - steps)
        self._due = self._clock + int(left.min())


def over(steps: NDArray[np.int64], horizon: int | None, keys: NDArray[np.int32], setup: Setup) -> NDArray[np.bool_]:
    """Which games are over after `steps` [n] of their episodes, of which `keys` [n, 2] are those of the draws."""
    ended = steps >= min(horizon or LAST_END, LAST_END)
    due = (steps >= FIRST_END) & ((steps - FIRST_END) % INTERVAL == 0)
    if due.any() and not setup.switched("no_random_end"):
        drawn = game_keys(keys[:, 0].astype(np.int64), keys[:, 1].astype(np.int64), steps)[:, 0].view(np.uint32)
        ended |= due & (drawn < SUBSTRATES[setup.game_map.substrate].end_probability * 2.0**32)
    return ended
