"""Codes of the 11 x 11 cells in a player's view (channel `grid`), and texts of Clean Up and Harvest made of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.core.spaces import EnvDescription
from llmrl.envs import mechanism_text
from llmrl.envs.mechanisms import Mechanism
from llmrl.envs.substrate.substrate_rules import SUBSTRATES, Rules, SubstrateName, list_action_names

_VIEWER_POSITION = (9, 5)
"""Row and column of the viewing player in the channel `grid`."""
CONTENTS = ("outside", "floor", "grass", "river", "dirt", "wall", "apple")
"""Contents of a cell. If a cell has several, the last one in this order is observed."""
FACINGS = ("nobody", "the way you face", "to your right", "towards you", "to your left")
"""Direction in which a player on a cell faces, relative to the viewing player."""
BEAMS = ("no beam", "clean", "zap")
"""Beam over a cell. If a cell has both, the last one in this order is observed."""
_CONTENT_SYMBOLS = " .,~x#a"
_DIRT_CODE, _APPLE_CODE = CONTENTS.index("dirt"), CONTENTS.index("apple")
_HEADING_LETTERS = "NESW"
_CONTENT_CODE_BY_SPRITE = {"sand": 1, "floor": 1, "grass": 2, "grassedge": 2, "dirt": 4, "wall": 5, "apple": 6}
_BEAM_CODE_BY_SPRITE = {"BeamClean": 1, "BeamZap": 2}


def find_content_code(sprite: str) -> int:
    """Return the index into `CONTENTS` of a sprite, e.g. `GrassEdge` or `grass_edge`; 0 for shadows and avatars."""
    name = sprite.replace("_", "").lower()
    return CONTENTS.index("river") if name.startswith("water") else _CONTENT_CODE_BY_SPRITE.get(name, 0)


def count_grid_codes(n_agents: int) -> tuple[int, ...]:
    """Return the number of possible values of each of the four codes of a cell in the channel `grid`.

    The codes are the content (index into `CONTENTS`), the player (0 none, 1 the viewing player, else 2 + player index),
    its direction (index into `FACINGS`) and the beam (index into `BEAMS`).
    """
    return len(CONTENTS), 2 + n_agents, len(FACINGS), len(BEAMS)


def build_grid_planes(substrate: SubstrateName, n_agents: int) -> dict[str, tuple[int, int, int]]:
    """Return the binary features of a cell in the channel `grid` (`Channel.planes`).

    They are the contents, whether another player is on the cell, and the beams.
    """
    names = [name for name in CONTENTS[1:] if SUBSTRATES[substrate].has_dirt or name not in ("river", "dirt")]
    planes = {name: (0, CONTENTS.index(name), CONTENTS.index(name)) for name in names}
    return planes | {"others": (1, 2, 1 + n_agents), "clean_beam": (3, 1, 1), "zap_beam": (3, 2, 2)}


class SpriteEncoder:
    """Encoder of sprite numbers of Melting Pot as the four codes of each cell in the channel `grid`.

    Args:
        sprite_names: names and headings such as `Apple.N`, in the order of the sprite numbers; number 0 is no sprite.
    """

    def __init__(self, sprite_names: Sequence[str]) -> None:
        code_rows = []
        for sprite_name in sprite_names:
            name, _, heading = sprite_name.partition(".")
            player_number = int(name[6:]) if name.startswith("Avatar") and name[6:].isdigit() else 0
            facing_code = 1 + _HEADING_LETTERS.index(heading or "N") if player_number else 0
            code_rows.append((find_content_code(name), player_number, facing_code, _BEAM_CODE_BY_SPRITE.get(name, 0)))
        self._codes = np.array(code_rows, dtype=np.uint8).T

    def __call__(self, sprite_numbers: NDArray[np.int32], player: int) -> NDArray[np.uint8]:
        """Return the codes [11, 11, 4] of sprite numbers [11, 11, n_layers] in the view of player `player` (from 0)."""
        view: NDArray[np.uint8] = self._codes[:, sprite_numbers].max(axis=-1)
        view[1] = np.where(view[1] == player + 1, 1, np.where(view[1] > 0, view[1] + 1, 0))
        return np.moveaxis(view, 0, -1)


_ACTION_TEXTS = {
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


def describe_game(
    substrate: SubstrateName, rules: Rules, n_agents: int, mechanism: Mechanism | None = None, shows_values: bool = True
) -> EnvDescription:
    """Return the description of the game that players read before it begins.

    `shows_values`: whether players see the values of the mechanism; without one it has no effect.
    """
    actions = list_action_names(substrate, rules)
    constants, has_dirt = SUBSTRATES[substrate], SUBSTRATES[substrate].has_dirt
    eating, cleaning = "is eaten and gives you a reward; nothing else does", "cleaning itself is not rewarded, and "
    payment_text = zap_text = ""
    if mechanism is not None:
        eating, cleaning = "is eaten", ""
        rules_texts = mechanism.base_reward_text, mechanism.rule_text
        payment_text = f" {mechanism_text.describe_rules(mechanism.space, *rules_texts, shows_values)}"
    if "zap" in actions:
        zap_text = f" A player who is hit by a zap is out of the game for {constants.removal_steps} steps."
    if substrate == "cleanup":
        goal = (
            f"{n_agents} players live on a map with an orchard on one side and a river on the other. An apple that you "
            f"walk onto {eating}. Apples grow in the orchard, the faster the cleaner the river is, and not at all "
            "once 40 % of it is dirty. The river gets dirtier by itself, by about a cell every two steps. Players can "
            f"clean it where they stand close to dirt and face it; {cleaning}everybody profits from "
            f"it.{zap_text}{payment_text} Only your own reward counts for you, over the whole episode."
        )
    else:
        goal = (
            f"{n_agents} players live on a map with patches of apples. An apple that you walk onto {eating}. An "
            "eaten apple grows again, the sooner the more apples there are close by, and never if there are none: a "
            f"patch that is eaten bare stays bare.{zap_text}{payment_text} Only your own reward counts for you, over "
            "the whole episode."
        )
    river_symbols = ", ~ clean river, x dirty river" if has_dirt else ""
    observation_fields = [
        (
            "map",
            "the cells around you, 11 rows of 11 signs; the way you face is up, you are @ in the tenth row, in the "
            f"middle (9 rows ahead, 1 behind, 5 cells to either side). a apple, . floor, comma grass{river_symbols}, # "
            "wall, blank outside the map, other players by their number (10 is A, 11 is B, ...)",
        ),
        (
            "apples",
            "apples on the map; nearest_apple: how many cells ahead (behind if negative) and to the right (left)",
        ),
    ]
    if has_dirt:
        observation_fields.append(("dirt", "dirty cells on the map; nearest_dirt: where, as for apples"))
    observation_fields.append(("players", "others on the map: cells ahead, cells to the right, and where they face"))
    if "zap" in actions:
        observation_fields.append(("can_zap", "whether your beam is ready"))
    if has_dirt:
        observation_fields.append(("others_who_cleaned", "how many others cleaned dirt in the last step"))
    mechanism_report: Mapping[str, Any] = {}
    if mechanism is not None:
        arguments = mechanism.space, mechanism.player_facts, shows_values
        observation_fields += mechanism_text.describe_report_fields(*arguments)
        mechanism_report = mechanism_text.build_example_report(*arguments)
    # An example with a long text: many apples, all other players in view, and all payments.
    view = np.zeros((11, 11, 4), dtype=np.uint8)
    view[..., 0] = np.resize([1, _APPLE_CODE, 2, _DIRT_CODE], (11, 11))
    cells = np.arange(0, 2 * (n_agents - 1), 2)
    view[cells // 11, cells % 11, 1], view[cells // 11, cells % 11, 2] = 2 + np.arange(1, n_agents), 1
    return EnvDescription(
        goal,
        tuple(observation_fields),
        tuple(
            (name, _ACTION_TEXTS[name].format(away=constants.removal_steps, zap_cooldown=constants.zap_cooldown))
            for name in actions
        ),
        example=describe_observation(view, substrate, rules, (1.0, 0.0) if has_dirt else (1.0,), mechanism_report),
    )


def describe_observation(
    view: NDArray[np.uint8],
    substrate: SubstrateName,
    rules: Rules,
    vector: Sequence[float],
    mechanism_report: Mapping[str, Any] | None = None,
) -> str:
    """Return the observation of one player as a JSON object.

    Args:
        view: the player's `grid`, [11, 11, 4].
        substrate: name of the substrate.
        rules: rules of the game.
        vector: the player's channel `vector` (`Substrate.vector_observations`).
        mechanism_report: the player's entries of `MechanismReport.build_entries`; None: there is no mechanism.
    """
    players = view[..., 1]
    contents = np.where(players > 0, 0, view[..., 0])
    # Other players have the symbols 1 to F by index; the symbol @ of the viewing player is set below.
    symbols = np.array([*_CONTENT_SYMBOLS, *"123456789ABCDEF"])
    rows = ["".join(row) for row in symbols[np.where(players > 1, players + len(_CONTENT_SYMBOLS) - 2, contents)]]
    y, x = _VIEWER_POSITION
    rows[y] = rows[y][:x] + "@" + rows[y][x + 1 :]
    observation: dict[str, object] = {"map": rows}
    code_by_name = {"apples": _APPLE_CODE, **({"dirt": _DIRT_CODE} if SUBSTRATES[substrate].has_dirt else {})}
    for name, code in code_by_name.items():
        cells = np.argwhere(contents == code)
        observation[name] = len(cells)
        if len(cells):
            row, column = cells[np.abs(cells - _VIEWER_POSITION).sum(1).argmin()].tolist()
            observation[f"nearest_{name.rstrip('s')}"] = {"ahead": y - row, "right": column - x}
    other_players = [(int(players[r, c]) - 1, r, c) for r, c in np.argwhere(players > 1).tolist()]
    observation["players"] = [
        {"player": number, "ahead": y - row, "right": column - x, "facing": FACINGS[view[row, column, 2]]}
        for number, row, column in sorted(other_players)
    ]
    if "zap" in list_action_names(substrate, rules):
        observation["can_zap"] = bool(vector[0])
    if len(vector) > 1:
        observation["others_who_cleaned"] = int(vector[1])
    return json.dumps({**observation, **(mechanism_report or {})})
