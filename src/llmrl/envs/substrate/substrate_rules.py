"""The two substrates (environments of Melting Pot), Clean Up and Harvest, and changes of their rules.

The rules `upstream` are those of dm-meltingpot 2.4.1. The rules `legislative` include all changes in `RULE_CHANGES`;
they are those of "Large Legislative Models" (arXiv 2410.08345), whose code is a fork of Melting Pot.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Rules = Literal["upstream", "legislative"]
SubstrateName = Literal["cleanup", "harvest"]
SubstrateDefinition = dict[str, Any]
"""Result of `build` in a substrate's module: level name, number of players, map, prefabs, game objects."""

FIRST_RANDOM_END_STEP = 1099
"""First step in which an episode may end at random, unless the rules have `no_random_end`."""
MAX_AGENTS = 15
"""Maximum number of players with distinguishable colors in both substrates."""

GRID_SHAPE = (11, 11, 4)
"""Shape of a player's view in cells: 9 ahead, 1 behind, 5 to either side, rows from far to near, with four codes per
cell (`grid_text.count_grid_codes`)."""
PIXELS_SHAPE = (88, 88, 3)
"""Shape of a player's view in pixels, 8 x 8 per cell."""

_MOVES = ("noop", "forward", "backward", "step_left", "step_right", "turn_left", "turn_right")


@dataclass(frozen=True)
class SiteCounts:
    """Number of cells of different types in a map.

    Attributes:
        n_apple_sites: number of cells where apples grow.
        n_dirt_cells: number of cells that can be dirty.
        n_dirty_cells: number of cells that are dirty at the start.
    """

    n_apple_sites: int
    n_dirt_cells: int = 0
    n_dirty_cells: int = 0


@dataclass(frozen=True)
class Substrate:
    """Constants of one substrate.

    Attributes:
        module_name: name of its module in `meltingpot.configs.substrates`.
        upstream_actions: names of the upstream actions, in the order of their indices.
        world_shape: shape of a frame of the whole map, [height, width, 3].
        vector_observations: Melting Pot's names of the entries of the channel `vector`.
        piece_groups: metric name -> group of states of pieces (in Melting Pot's terms); the metric is the number of
            pieces in these states after a step.
        site_counts: number of cells of different types in Melting Pot's map.
        zap_cooldown, clean_cooldown: number of steps after a beam in which the player cannot fire another one.
        removal_steps: number of steps for which a zapped player is removed.
        end_probability: probability that an episode ends at `FIRST_RANDOM_END_STEP`, and at every 100th step after it.
        floor_prefab: name of the prefab under a spawn cell.
        spawn_cells: (x, y) of each player's spawn cell under `legislative` rules.
    """

    module_name: str
    upstream_actions: tuple[str, ...]
    world_shape: tuple[int, int, int]
    vector_observations: tuple[str, ...]
    piece_groups: Mapping[str, str]
    site_counts: SiteCounts
    zap_cooldown: int
    clean_cooldown: int
    removal_steps: int
    end_probability: float
    floor_prefab: str
    spawn_cells: tuple[tuple[int, int], ...]

    @property
    def has_dirt(self) -> bool:
        """True if the map has a river that gets dirty."""
        return self.site_counts.n_dirt_cells > 0


SUBSTRATES: Mapping[SubstrateName, Substrate] = {
    "cleanup": Substrate(
        module_name="clean_up",
        upstream_actions=(*_MOVES, "zap", "clean"),
        world_shape=(168, 240, 3),
        vector_observations=("READY_TO_SHOOT", "NUM_OTHERS_WHO_CLEANED_THIS_STEP"),
        piece_groups={"apples_live": "apples", "dirt": "dirt"},
        site_counts=SiteCounts(n_apple_sites=122, n_dirt_cells=147, n_dirty_cells=79),
        zap_cooldown=10,
        clean_cooldown=2,
        removal_steps=50,
        end_probability=0.2,
        floor_prefab="sand",
        spawn_cells=((11, 9), (8, 10), (8, 8), (5, 9), (5, 11), (11, 11), (8, 12)),
    ),
    "harvest": Substrate(
        module_name="commons_harvest__open",
        upstream_actions=(*_MOVES, "zap"),
        world_shape=(144, 192, 3),
        vector_observations=("READY_TO_SHOOT",),
        piece_groups={"apples_live": "apples"},
        site_counts=SiteCounts(n_apple_sites=64),
        zap_cooldown=2,
        clean_cooldown=0,
        removal_steps=4,
        end_probability=0.15,
        floor_prefab="floor",
        spawn_cells=((17, 13), (14, 13), (7, 7), (16, 7), (11, 13), (8, 13), (5, 13)),
    ),
}


@dataclass(frozen=True)
class RuleChange:
    """A difference from the upstream rules; `apply` changes the definition of a substrate to these rules, in place."""

    name: str
    substrates: tuple[SubstrateName, ...]
    apply: Callable[[SubstrateDefinition, Substrate], None]


def find_component(game_object: Mapping[str, Any], component_name: str) -> dict[str, Any]:
    """Return the keyword arguments of a component of a game object; changes of the result change the object.

    Raises:
        KeyError: the object has no such component.
    """
    for component in game_object["components"]:
        if component["component"] == component_name:
            return component.setdefault("kwargs", {})
    raise KeyError(f"{game_object['name']} has no component {component_name}")


def find_avatars(definition: SubstrateDefinition) -> list[dict[str, Any]]:
    """Return the players' game objects, in the order of the players' indices."""
    return [
        o for o in definition["simulation"]["gameObjects"] if any(c["component"] == "Avatar" for c in o["components"])
    ]


def _assign_spawn_cells(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Assign to each player one spawn cell, where it starts an episode and returns after a removal."""
    simulation = definition["simulation"]
    rows = [list(row) for row in simulation["map"].strip("\n").split("\n")]
    for row in rows:
        row[:] = [" " if symbol in "PQ" else symbol for symbol in row]
    for number, (avatar, (x, y)) in enumerate(
        zip(find_avatars(definition), substrate.spawn_cells, strict=False), start=1
    ):
        symbol, prefab_name, spawn_group = "tuvwxyz"[number - 1], f"spawn_point_{number}", f"spawnPoint{number}"
        spawn_point = copy.deepcopy(simulation["prefabs"]["spawn_point"])
        find_component(spawn_point, "StateManager")["stateConfigs"][0]["groups"] = [spawn_group]
        simulation["prefabs"][prefab_name] = spawn_point
        simulation["charPrefabMap"][symbol] = {"type": "all", "list": [substrate.floor_prefab, prefab_name]}
        rows[y][x] = symbol
        find_component(avatar, "Avatar").update(spawnGroup=spawn_group, postInitialSpawnGroup=spawn_group)
    simulation["map"] = "\n" + "\n".join("".join(row) for row in rows) + "\n"


def _start_heading_north(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Let all players start the episode heading north; the heading after a removal stays random."""
    for avatar in find_avatars(definition):
        find_component(avatar, "Avatar")["randomizeInitialOrientation"] = False


def _fix_move_order(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Execute moves in descending order of player indices, instead of in a random order."""
    for avatar in find_avatars(definition):
        avatar["components"].append({"component": "MoveOrder", "kwargs": {}})


def _disable_zap(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Leave the definition unchanged: `list_action_names` omits the zap, so no player can be removed."""


def _fill_apple_sites(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Start with an apple on every apple site."""
    find_component(definition["simulation"]["prefabs"]["potential_apple"], "StateManager")["initialState"] = "apple"


def _disable_random_end(definition: SubstrateDefinition, substrate: Substrate) -> None:
    """Let the engine end an episode only at its frame limit (5000)."""
    scene = definition["simulation"]["scene"]
    scene["components"] = [c for c in scene["components"] if c["component"] != "StochasticIntervalEpisodeEnding"]


RULE_CHANGES: tuple[RuleChange, ...] = (
    RuleChange("own_spawn_cells", ("cleanup", "harvest"), _assign_spawn_cells),
    RuleChange("start_heading_north", ("cleanup", "harvest"), _start_heading_north),
    RuleChange("fixed_move_order", ("cleanup", "harvest"), _fix_move_order),
    RuleChange("no_zap", ("harvest",), _disable_zap),
    RuleChange("apples_at_start", ("cleanup",), _fill_apple_sites),
    RuleChange("no_random_end", ("cleanup", "harvest"), _disable_random_end),
)


def find_rule_changes(name: SubstrateName, rules: Rules) -> tuple[RuleChange, ...]:
    """Return the changes of a substrate under `rules`; none for `upstream`."""
    return tuple(c for c in RULE_CHANGES if name in c.substrates) if rules == "legislative" else ()


def list_action_names(name: SubstrateName, rules: Rules) -> tuple[str, ...]:
    """Return the names of a player's actions under `rules`, in the order of their indices."""
    excluded = {"zap"} if any(c.name == "no_zap" for c in find_rule_changes(name, rules)) else set()
    return tuple(action for action in SUBSTRATES[name].upstream_actions if action not in excluded)


def build_definition(
    module: Any, name: SubstrateName, n_agents: int, rules: Rules, map_text: str | None = None
) -> SubstrateDefinition:
    """Return the definition of a substrate under `rules`, with the piece groups that `Substrate.piece_groups` counts.

    `module`: the substrate's configuration module, which is not changed. `map_text`: map to use instead of its map.
    """
    substrate = SUBSTRATES[name]
    definition: SubstrateDefinition = copy.deepcopy(dict(module.build(("default",) * n_agents, None)))
    if map_text is not None:
        definition["simulation"]["map"] = f"\n{map_text}\n"
        if "Q" not in map_text:
            for avatar in find_avatars(definition):
                find_component(avatar, "Avatar")["spawnGroup"] = "spawnPoints"
    prefabs = definition["simulation"]["prefabs"]
    if name == "cleanup":
        _add_to_group(prefabs["potential_apple"], "apple", "apples")
        for prefab in ("potential_dirt", "actual_dirt"):
            _add_to_group(prefabs[prefab], "dirt", "dirt")
    for change in find_rule_changes(name, rules):
        change.apply(definition, substrate)
    return definition


def _add_to_group(prefab: Mapping[str, Any], state: str, group: str) -> None:
    """Add a state of a prefab's pieces to a piece group, in place."""
    for config in find_component(prefab, "StateManager")["stateConfigs"]:
        if config["state"] == state:
            config["groups"] = [*config.get("groups", ()), group]
