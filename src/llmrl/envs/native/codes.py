"""One number for what lies on a cell: the ground, who stands on it, and a beam above. All pictures are made of these.

    code = ground + n_grounds * (avatar + n_avatars * beam)

What a player sees is 121 such numbers, which tables turn into tiles of a picture or into the channel `grid`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.melting_pot.seen import BEAMS
from llmrl.envs.native.maps import GameMap

WATERS = 4
"""Frames of the water's animation."""

_THING_OF = {"sand": 1, "floor": 1, "grass": 2, "grass_edge": 2, "dirt": 4, "wall": 5, "apple": 6}


@dataclass(frozen=True)
class Codes:
    """The numbering of one map with `n_agents` players.

    Attributes:
        n_agents: players.
        grounds: what each ground looks like, names of art from bottom to top; 0 is nothing.
        base: ground of each cell where nothing has happened, [n_cells]: river as frame 0 of the water and clean, apples
            not there, grass. Added to it: the frame of the water; `WATERS` for dirt; 1 for an apple; 2 for grass that
            has withered.
    """

    n_agents: int
    grounds: tuple[tuple[str, ...], ...]
    base: NDArray[np.int32]

    @property
    def n_grounds(self) -> int:
        return len(self.grounds)

    @property
    def n_avatars(self) -> int:
        """0 nobody; 1 + 4 * slot + heading a player; the last: the player who looks, who faces away."""
        return 2 + 4 * self.n_agents

    @property
    def oneself(self) -> int:
        """The avatar code of the player who looks."""
        return self.n_avatars - 1

    @property
    def n_codes(self) -> int:
        return self.n_grounds * self.n_avatars * len(BEAMS)

    def parts(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Ground, avatar and beam of every code, each [n_codes]."""
        code = np.arange(self.n_codes)
        return code % self.n_grounds, code // self.n_grounds % self.n_avatars, code // self.n_grounds // self.n_avatars

    def grid(self) -> NDArray[np.uint8]:
        """What `seen.grid_codes` says of every code, for a player with each heading, [4, n_codes, 4]."""
        ground, avatar, beam = self.parts()
        table = np.zeros((4, self.n_codes, 4), np.uint8)
        thing = np.array([thing_of(stack) for stack in self.grounds], np.uint8)
        somebody = (avatar > 0) & (avatar < self.oneself)
        slot, heading = (avatar - 1) // 4, (avatar - 1) % 4
        for viewer in range(4):
            table[viewer, :, 0] = thing[ground]
            table[viewer, :, 1] = np.where(somebody, 2 + slot, avatar == self.oneself)
            table[viewer, :, 2] = np.where(somebody, 1 + (heading - viewer) % 4, avatar == self.oneself)
            table[viewer, :, 3] = beam
        table[:, ground == 0] = 0  # nothing of what happens outside the map is seen
        return table


def thing_of(stack: tuple[str, ...]) -> int:
    """The index into `seen.THINGS` of what matters most among what lies on each other."""
    return max((3 if art.startswith("water") else _THING_OF.get(art, 0) for art in stack), default=0)


def number(game_map: GameMap, n_agents: int) -> Codes:
    """Codes for a map: static grounds one each, rivers and apples one for each of their states."""
    grounds: list[tuple[str, ...]] = [()]
    first: dict[tuple[int, str], int] = {}
    base = np.zeros(game_map.n_cells, np.int32)
    kinds = np.full(game_map.n_cells, "", dtype="<U5")
    kinds[game_map.apples] = "apple"
    kinds[game_map.river] = "river"
    kinds[game_map.dirt] = "dirt"
    for cell in np.flatnonzero(game_map.looks):
        key = (int(game_map.looks[cell]), str(kinds[cell]))
        if key not in first:
            first[key] = len(grounds)
            grounds += _states(game_map.stacks[key[0]], key[1], withers=game_map.substrate == "harvest")
        base[cell] = first[key]
    return Codes(n_agents, tuple(grounds), base)


def _states(stack: tuple[str, ...], kind: str, withers: bool) -> list[tuple[str, ...]]:
    """What a cell of a kind can look like, in the order of what `Codes.base` adds."""
    if kind in ("river", "dirt"):
        waters = [tuple(f"water_{i + 1}" if art == "river" else art for art in stack) for i in range(WATERS)]
        return waters if kind == "river" else waters + [(*water, "dirt") for water in waters]
    if kind == "apple" and not withers:
        return [stack, (*stack, "apple")]
    if kind == "apple":
        withered = tuple("floor" if art == "grass" else art for art in stack)
        return [stack, (*stack, "apple"), withered, (*withered, "apple")]
    return [stack]
