"""What a player of Clean Up or Harvest sees of its surroundings, in words: the 11 x 11 cells of its picture."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.spaces import EnvDescription
from llmrl.envs import mechanism_text
from llmrl.envs.mechanisms import Mechanism
from llmrl.envs.melting_pot.substrate_rules import SUBSTRATES, Rules, SubstrateName, action_names

_YOU = (9, 5)
"""Row and column of the player's own cell in `memory_layout.CELLS`."""
THINGS = ("outside", "floor", "grass", "river", "dirt", "wall", "apple")
"""What can lie on a cell; of several things that lie on each other the last of these is what counts."""
FACINGS = ("nobody", "the way you face", "to your right", "towards you", "to your left")
"""Which way somebody faces, for the player who looks."""
BEAMS = ("no beam", "clean", "zap")
"""Beams over a cell; of both the last is seen."""
_SIGNS = " .,~x#a"
_DIRT, _APPLE = THINGS.index("dirt"), THINGS.index("apple")
_ORIENTATIONS = "NESW"
_KINDS = {"Sand": 1, "Floor": 1, "Grass": 2, "GrassEdge": 2, "Dirt": 4, "Wall": 5, "Apple": 6}
_BEAMS = {"BeamClean": 1, "BeamZap": 2}


def grid_codes(n_agents: int) -> tuple[int, ...]:
    """How many values each of the four numbers of a cell in the channel `grid` can have: what lies there (`THINGS`),
    who stands there (0 nobody, 1 the player who looks, 2 + slot another), which way it faces (`FACINGS`), and what
    passes (`BEAMS`)."""
    return len(THINGS), 2 + n_agents, len(FACINGS), len(BEAMS)


def grid_planes(substrate: SubstrateName, n_agents: int) -> dict[str, tuple[int, int, int]]:
    """Facts about a cell of the channel `grid` (`Channel.planes`): what lies there, whether another player stands
    there, and what passes."""
    dirt = SUBSTRATES[substrate].dirt
    things = [name for name in THINGS[1:] if dirt or name not in ("river", "dirt")]
    planes = {name: (0, THINGS.index(name), THINGS.index(name)) for name in things}
    return planes | {"others": (1, 2, 1 + n_agents), "clean_beam": (3, 1, 1), "zap_beam": (3, 2, 2)}


class SpriteCodes:
    """From the engine's sprites to the four numbers of each cell.

    Args:
        sprites: names of the sprites the engine's numbers refer to, `Apple.N` and the like; the first is none.
    """

    def __init__(self, sprites: Sequence[str]) -> None:
        kinds = [name.partition(".") for name in sprites]
        slots = [int(kind[6:]) if kind.startswith("Avatar") and kind[6:].isdigit() else 0 for kind, _, _ in kinds]
        facing = [
            1 + _ORIENTATIONS.index(way or "N") if slot else 0 for slot, (_, _, way) in zip(slots, kinds, strict=True)
        ]
        # Shadows lie on something else.
        things = [3 if kind.startswith("water") else _KINDS.get(kind, 0) for kind, _, _ in kinds]
        beams = [_BEAMS.get(kind, 0) for kind, _, _ in kinds]
        self._of = np.array([things, slots, facing, beams], dtype=np.uint8)

    def __call__(self, layers: NDArray[np.int32], player: int) -> NDArray[np.uint8]:
        """[11, 11, layers] sprite numbers of what `player` (from 0) sees -> [11, 11, 4]."""
        view: NDArray[np.uint8] = self._of[:, layers].max(axis=-1)
        view[1] = np.where(view[1] == player + 1, 1, np.where(view[1] > 0, view[1] + 1, 0))
        return np.moveaxis(view, 0, -1)


_ACTS = {
    "noop": "do nothing",
    "forward": "step one cell ahead",
    "backward": "step one cell back, without turning",
    "step_left": "step one cell to the left, without turning",
    "step_right": "step one cell to the right, without turning",
    "turn_left": "turn to the left by 90 degrees, staying in your cell",
    "turn_right": "turn to the right by 90 degrees, staying in your cell",
    "zap": "fire a beam over the cells up to 3 ahead and 1 to either side, which removes players it hits from the game "
    "for {away} steps; it needs {zap_cooldown} steps to be ready again",
    "clean": "fire a beam over the cells up to 3 ahead and 1 to either side, which cleans dirt out of the river there",
}


def game_text(
    substrate: SubstrateName, rules: Rules, n_agents: int, mechanism: Mechanism | None = None, shown: bool = True
) -> EnvDescription:
    """Return what players are told of a game before it begins.

    `shown`: whether players see the values of the mechanism."""
    actions = action_names(substrate, rules)
    facts = SUBSTRATES[substrate]
    zap = f" A player who is hit by a zap is out of the game for {facts.away} steps." if "zap" in actions else ""
    if mechanism is None:
        eaten, cleaning = "is eaten and gives you a reward; nothing else does", "cleaning itself is not rewarded, and "
        paid = ""
    else:
        eaten, cleaning = "is eaten", ""
        paid = f" {mechanism_text.rules_in_words(mechanism.spec, mechanism.base_reward, mechanism.rule, shown)}"
    if substrate == "cleanup":
        goal = (
            f"{n_agents} players live on a map with an orchard on one side and a river on the other. An apple that you "
            f"walk onto {eaten}. Apples grow in the orchard, the faster the cleaner the river is, and not at all once "
            "40 % of it is dirty. The river gets dirtier by itself, by about a cell every two steps. Players "
            "can clean it where they stand close to dirt "
            f"and face it; {cleaning}everybody profits from it.{zap}{paid} "
            "Only your own reward counts for you, over the whole episode."
        )
    else:
        goal = (
            f"{n_agents} players live on a map with patches of apples. An apple that you walk onto {eaten}. "
            "An eaten apple grows again, the sooner the more apples there are close by, and never if there are none: a "
            f"patch that is eaten bare stays bare.{zap}{paid} Only your own reward counts for you, over the whole "
            "episode."
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
    if mechanism is not None:
        observation += mechanism_text.fields(mechanism.spec, mechanism.player_facts, shown)
    return EnvDescription(
        goal,
        tuple(observation),
        tuple((name, _ACTS[name].format(away=facts.away, zap_cooldown=facts.zap_cooldown)) for name in actions),
        example=_example(substrate, rules, n_agents, mechanism, shown),
        neighbours="players",
    )


def _example(substrate: SubstrateName, rules: Rules, n_agents: int, mechanism: Mechanism | None, shown: bool) -> str:
    """Return an observation among apples, with all other players in view and every payment made."""
    view = np.zeros((11, 11, 4), dtype=np.uint8)
    view[..., 0] = np.resize([1, _APPLE, 2, _DIRT], (11, 11))
    cells = np.arange(0, 2 * (n_agents - 1), 2)
    view[cells // 11, cells % 11, 1], view[cells // 11, cells % 11, 2] = 2 + np.arange(1, n_agents), 1
    more = {} if mechanism is None else mechanism_text.example(mechanism.spec, mechanism.player_facts, shown)
    return told(view, substrate, rules, (1.0, 0.0) if SUBSTRATES[substrate].dirt else (1.0,), more)


def told(
    view: NDArray[np.uint8],
    substrate: SubstrateName,
    rules: Rules,
    scalars: Sequence[float],
    more: Mapping[str, Any] | None = None,
) -> str:
    """Return what one player sees, as a JSON object.

    Args:
        view: its `grid`, [11, 11, 4].
        substrate, rules: of the game.
        scalars: the numbers of `memory_layout.VECTOR`.
        more: what it is told of a mechanism (`MechanismReport.told`).
    """
    things, who = np.where(view[..., 1] > 0, 0, view[..., 0]), view[..., 1]
    rows = [
        "".join(_sign(int(thing), int(slot)) for thing, slot in zip(*row, strict=True))
        for row in zip(things, who, strict=True)
    ]
    y, x = _YOU
    rows[y] = rows[y][:x] + "@" + rows[y][x + 1 :]
    said: dict[str, object] = {"map": rows}
    counted = {"apples": _APPLE, **({"dirt": _DIRT} if SUBSTRATES[substrate].dirt else {})}
    for name, code in counted.items():
        cells = np.argwhere(things == code)
        said[name] = len(cells)
        if len(cells):
            row, column = cells[np.abs(cells - _YOU).sum(1).argmin()].tolist()
            said[f"nearest_{name.rstrip('s')}"] = {"ahead": y - row, "right": column - x}
    others = [(int(who[r, c]) - 1, r, c) for r, c in np.argwhere(who > 1).tolist()]
    said["players"] = [
        {"player": slot, "ahead": y - row, "right": column - x, "facing": FACINGS[view[row, column, 2]]}
        for slot, row, column in sorted(others)
    ]
    if "zap" in action_names(substrate, rules):
        said["can_zap"] = bool(scalars[0])
    if len(scalars) > 1:
        said["others_who_cleaned"] = int(scalars[1])
    return json.dumps({**said, **(more or {})})


def _sign(thing: int, who: int) -> str:
    return _SIGNS[thing] if who < 2 else "123456789ABCDEF"[who - 2]
