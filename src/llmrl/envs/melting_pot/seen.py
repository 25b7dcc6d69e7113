"""What a player of Clean Up or Harvest sees of its surroundings, in words: the 11 x 11 cells of its picture."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from llmrl.core.spaces import GameText
from llmrl.envs.melting_pot.rules import SUBSTRATES, Rules, SubstrateName, action_names

_YOU = (9, 5)
"""Row and column of the player's own cell in `layout.CELLS`."""
_SIGNS = " .,~x#a"
_OUTSIDE, _FLOOR, _GRASS, _RIVER, _DIRT, _WALL, _APPLE = range(7)
"""Codes of cells, and the signs of the map; codes from `_PLAYERS` on are players."""
_PLAYERS = 16
_ORIENTATIONS = "NESW"
_FACING = ("the way you face", "to your right", "towards you", "to your left")
_CODES = {
    "Sand": _FLOOR,
    "Floor": _FLOOR,
    "Grass": _GRASS,
    "GrassEdge": _GRASS,
    "Dirt": _DIRT,
    "Wall": _WALL,
    "Apple": _APPLE,
    "OutOfBounds": _OUTSIDE,
    "OutOfView": _OUTSIDE,
}

_ACTS = {
    "noop": "do nothing",
    "forward": "step one cell ahead",
    "backward": "step one cell back, without turning",
    "step_left": "step one cell to the left, without turning",
    "step_right": "step one cell to the right, without turning",
    "turn_left": "turn to the left by 90 degrees, staying in your cell",
    "turn_right": "turn to the right by 90 degrees, staying in your cell",
    "zap": "fire a beam over the cells up to 3 ahead and 1 to either side, which removes players it hits from the game "
    "for 50 steps; it needs 10 steps to be ready again",
    "clean": "fire a beam over the cells up to 3 ahead and 1 to either side, which cleans dirt out of the river there",
}


class Codes:
    """From the engine's sprites to one code for each cell.

    Args:
        sprites: names of the sprites the engine's numbers refer to, `Apple.N` and the like; the first is none.
    """

    def __init__(self, sprites: Sequence[str]) -> None:
        self._of = np.array([_code(name) for name in sprites], dtype=np.uint8)

    def __call__(self, layers: NDArray[np.int32]) -> NDArray[np.uint8]:
        """[11, 11, layers] sprite numbers -> [11, 11]: of what lies on each other what matters most."""
        top: NDArray[np.uint8] = self._of[layers].max(axis=-1)
        return top


def _code(name: str) -> int:
    kind, _, orientation = name.partition(".")
    if kind.startswith("Avatar") and kind[6:].isdigit():
        return _PLAYERS + 4 * (int(kind[6:]) - 1) + _ORIENTATIONS.index(orientation or "N")
    if kind.startswith("water"):
        return _RIVER
    # Shadows and beams lie on something else.
    return _CODES.get(kind, _OUTSIDE)


def game_text(substrate: SubstrateName, rules: Rules, n_agents: int) -> GameText:
    """What players are told of a game before it begins."""
    actions = action_names(substrate, rules)
    zap = " A player who is hit by a zap is out of the game for 50 steps." if "zap" in actions else ""
    if substrate == "cleanup":
        goal = (
            f"{n_agents} players live on a map with an orchard on one side and a river on the other. An apple that you "
            "walk onto is eaten and gives you a reward; nothing else does. Apples grow in the orchard, the faster the "
            "cleaner the river is, and not at all when it is too dirty. The river gets dirtier by itself. Players can "
            "clean it where they stand close to dirt and face it; cleaning itself is not rewarded, and everybody "
            f"profits from it.{zap} Only your own reward counts for you, over the whole episode."
        )
    else:
        goal = (
            f"{n_agents} players live on a map with patches of apples. An apple that you walk onto is eaten and gives "
            "you a reward; nothing else does. An eaten apple grows again, the sooner the more apples there are close "
            f"by, and never if there are none: a patch that is eaten bare stays bare.{zap} Only your own reward counts "
            "for you, over the whole episode."
        )
    river = ", ~ clean river, x dirty river" if SUBSTRATES[substrate].dirt else ""
    observation = [
        (
            "map",
            "the cells around you, 11 rows of 11 signs; the way you face is up, you are @ in the tenth row, in the "
            f"middle (9 rows ahead, 1 behind, 5 cells to either side). a apple, . floor, comma grass{river}, # wall, "
            "blank outside the map, other players by their number (10 is A, 11 is B, ...)",
        ),
        (
            "apples",
            "apples on the map; nearest_apple: how many cells ahead (behind if negative) and to the right (left)",
        ),
    ]
    if SUBSTRATES[substrate].dirt:
        observation.append(("dirt", "dirty cells on the map; nearest_dirt: where, as for apples"))
    observation.append(("players", "others on the map: cells ahead, cells to the right, and where they face"))
    if "zap" in actions:
        observation.append(("can_zap", "whether your beam is ready"))
    if SUBSTRATES[substrate].dirt:
        observation.append(("others_who_cleaned", "how many others cleaned dirt in the last step"))
    return GameText(
        goal,
        tuple(observation),
        tuple((name, _ACTS[name]) for name in actions),
        example=_example(substrate, rules, n_agents),
    )


def _example(substrate: SubstrateName, rules: Rules, n_agents: int) -> str:
    """An observation among apples, with all other players in view."""
    view = np.resize(np.array([_FLOOR, _APPLE, _GRASS, _DIRT], dtype=np.uint8), (11, 11))
    view.flat[: 2 * (n_agents - 1) : 2] = _PLAYERS + 4 * np.arange(1, n_agents)
    return told(view, substrate, rules, (1.0, 0.0) if SUBSTRATES[substrate].dirt else (1.0,))


def told(view: NDArray[np.uint8], substrate: SubstrateName, rules: Rules, scalars: Sequence[float]) -> str:
    """What one player sees, as a JSON object: the codes of its view [11, 11], and the numbers of `layout.VECTOR`."""
    rows = ["".join(_sign(int(code)) for code in row) for row in view]
    y, x = _YOU
    rows[y] = rows[y][:x] + "@" + rows[y][x + 1 :]
    said: dict[str, object] = {"map": rows}
    things = {"apples": _APPLE, **({"dirt": _DIRT} if SUBSTRATES[substrate].dirt else {})}
    for name, code in things.items():
        cells = np.argwhere(view == code)
        said[name] = len(cells)
        if len(cells):
            row, column = cells[np.abs(cells - _YOU).sum(1).argmin()].tolist()
            said[f"nearest_{name.rstrip('s')}"] = {"ahead": y - row, "right": column - x}
    others = [(int(view[r, c]) - _PLAYERS, r, c) for r, c in np.argwhere(view >= _PLAYERS).tolist() if (r, c) != _YOU]
    said["players"] = [
        {"player": code // 4 + 1, "ahead": y - row, "right": column - x, "facing": _FACING[code % 4]}
        for code, row, column in sorted(others)
    ]
    if "zap" in action_names(substrate, rules):
        said["can_zap"] = bool(scalars[0])
    if len(scalars) > 1:
        said["others_who_cleaned"] = int(scalars[1])
    return json.dumps(said)


def _sign(code: int) -> str:
    if code < _PLAYERS:
        return _SIGNS[code]
    return "123456789ABCDEF"[(code - _PLAYERS) // 4]
