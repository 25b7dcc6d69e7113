"""The levels of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662) as MiniGrid environments.

A room of 8 x 8 cells, including walls, contains objects sampled with replacement; the agent can reach each of them
without moving another one. Training missions mention no object in `HELD_OUT_OBJECTS`; test missions mention only these.
Importing this module registers these levels and those of MiniGrid with Gymnasium.
"""

# mypy: disallow-untyped-calls=False
# MiniGrid has no types for most of the functions called here.

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from minigrid.core.constants import COLOR_NAMES
from minigrid.core.roomgrid import RoomGrid
from minigrid.core.world_object import Ball, Box, Key
from minigrid.envs.babyai.core.roomgrid_level import RejectSampling, RoomGridLevel
from minigrid.envs.babyai.core.verifier import (
    AfterInstr,
    BeforeInstr,
    GoToInstr,
    Instr,
    ObjDesc,
    OpenInstr,
    PickupInstr,
    PutNextInstr,
    pos_next_to,
)

ObjectName = tuple[str, str]
"""Color and noun of an object."""
Cell = tuple[int, int]
"""Column and row of a cell."""
Sampling = Literal["direct", "rejection"]

MISSION_KINDS = ("goto", "pickup", "open", "putnext", "seq")
HELD_OUT_OBJECTS = frozenset({("yellow", "box"), ("red", "key"), ("red", "door"), ("green", "ball"), ("grey", "door")})
_MAX_OCCUPANCY = 0.6
"""Maximum fraction of a room's cells with objects. Above it, sampled objects are rarely all reachable."""
_OBJECT_CLASSES = {"key": Key, "ball": Ball, "box": Box}
_DOOR_COLORS = {"train": ("yellow", "green", "blue", "purple"), "test": ("red", "grey"), None: tuple(COLOR_NAMES)}


class TextLevel(RoomGridLevel):
    """Base class of the levels of BabyAI-Text.

    Args:
        kind: kind of mission, one of the class's `kinds`; `per_episode` samples it for each episode.
        sampling: `rejection` samples levels until the mission is allowed, with random numbers in the order of the
            published environment: the same seed gives the same episode. `direct` samples names of objects and a mission
            until the mission is allowed, and then the positions of the objects. The distribution of levels is the same,
            but it is many times faster if few missions are allowed.
        room_size: width and height of a room, in cells with the walls.
        num_dists: number of objects in addition to those that the mission needs.
        kwargs: further arguments of `RoomGridLevel`: `max_steps`, `render_mode`.

    Attributes:
        kind: kind of the current mission.

    Raises:
        ValueError: the kind or sampling does not exist, or there are too many objects.
    """

    kinds: ClassVar[tuple[str, ...]] = MISSION_KINDS
    split: ClassVar[Literal["train", "test"] | None] = "train"  # selects objects of missions; None: all objects
    orders: ClassVar[tuple[str, ...]] = ("before", "after")
    """Orders of a sequence: `pick up A, then go to B` and `go to B after you pick up A`."""
    second_instruction_type: ClassVar[type[GoToInstr] | type[PickupInstr]] = GoToInstr
    """Type of the second instruction of a sequence."""

    def __init__(
        self,
        kind: str = "per_episode",
        sampling: Sampling = "direct",
        room_size: int = 8,
        num_dists: int = 8,
        **kwargs: Any,
    ) -> None:
        if kind not in ("per_episode", *self.kinds):
            raise ValueError(f"kind={kind!r} must be one of per_episode, {', '.join(self.kinds)}")
        if sampling not in ("direct", "rejection"):
            raise ValueError(f"sampling={sampling!r} must be 'direct' or 'rejection'")
        self._fixed_kind = kind if kind != "per_episode" else self.kinds[0] if len(self.kinds) == 1 else None
        max_dists = int(_MAX_OCCUPANCY * (room_size - 2) ** 2) - 2
        if not 0 <= num_dists <= max_dists:
            raise ValueError(
                f"num_dists={num_dists} must be between 0 and {max_dists}, as the room has room_size={room_size}"
            )
        self._samples_directly, self.num_dists = sampling == "direct", num_dists
        self.kind = self._fixed_kind or self.kinds[0]
        self.instrs: Instr
        super().__init__(room_size=room_size, num_rows=1, num_cols=_count_rooms(self.kind), **kwargs)

    @property
    def possible_kinds(self) -> tuple[str, ...]:
        """Kinds that episodes can have."""
        return self.kinds if self._fixed_kind is None else (self._fixed_kind,)

    @property
    def max_grid_size(self) -> tuple[int, int]:
        """Width and height of the largest grid."""
        return (self.room_size - 1) * max(map(_count_rooms, self.possible_kinds)) + 1, self.height

    @property
    def max_episode_steps(self) -> int:
        """Maximum number of steps of an episode."""
        if self.fixed_max_steps:
            return int(self.max_steps)
        factors = (_count_rooms(kind) * (2 if kind in ("putnext", "seq") else 1) for kind in self.possible_kinds)
        return int(self.room_size**2 * max(factors))

    def _gen_grid(self, width: int, height: int) -> None:
        if self._fixed_kind is None:
            self.kind = str(self._rand_elem(self.kinds))
            self.num_cols = _count_rooms(self.kind)
            self.width = (self.room_size - 1) * self.num_cols + 1
        while True:
            try:
                RoomGrid._gen_grid(self, self.width, self.height)
                self.gen_mission()
                self.validate_instrs(self.instrs)
                break
            except (RecursionError, RejectSampling):  # MiniGrid's own method would print these exceptions
                continue
        self.surface = self.mission = self.instrs.surface(self)

    def gen_mission(self) -> None:
        """Sample levels until one is allowed."""
        while True:
            if self._samples_directly and self.kind != "open":
                is_valid = self._place_objects(*self._sample_object_names())
            else:
                RoomGrid._gen_grid(self, self.width, self.height)
                is_valid = self._sample_locked_room() if self.kind == "open" else self._sample_published_level()
            if is_valid:
                return

    def _sample_locked_room(self) -> bool:
        """Sample a level with a locked room, whose key is outside; return whether all objects are reachable.

        In training, the mission mentions the door's color with probability 1/2; in tests, always.
        """
        color = self._rand_elem(_DOOR_COLORS[self.split])
        while True:
            i, j, wall = self._rand_int(0, self.num_cols), self._rand_int(0, self.num_rows), self._rand_int(0, 4)
            locked_room = self.get_room(i, j)
            if locked_room.neighbors[wall] is not None:
                break
        self.add_door(i, j, wall, color, locked=True)
        while True:
            i, j = self._rand_int(0, self.num_cols), self._rand_int(0, self.num_rows)
            if self.get_room(i, j) is not locked_room:
                break
        self.add_object(i, j, "key", color)
        self.add_distractors(i, j, self.num_dists, all_unique=False)
        while True:
            self.place_agent()
            if self.room_from_pos(*self.agent_pos) is not locked_room:
                break
        all_reachable = self.check_objs_reachable(raise_exc=False)
        mentions_color = self.split == "test" or not self._rand_bool()
        self.instrs = OpenInstr(ObjDesc("door", color if mentions_color else None))
        return bool(all_reachable)

    def _sample_published_level(self) -> bool:
        """Sample a level with the random numbers of the published environment; return whether it is allowed."""
        self.place_agent()
        objects = self.add_distractors(num_distractors=self._n_objects, all_unique=False)
        all_reachable = self.check_objs_reachable(raise_exc=False)
        targets = self._choose_targets([(obj.color, obj.type) for obj in objects])
        self.instrs = self._make_instruction(targets)
        return bool(all_reachable) and self._is_allowed(targets)

    def _sample_object_names(self) -> tuple[list[ObjectName], list[ObjectName]]:
        """Return the names of random objects, and of those objects that an allowed mission mentions."""
        while True:
            indices = self.np_random.integers(len(_OBJECT_NAMES), size=self._n_objects).tolist()
            names = [_OBJECT_NAMES[k] for k in indices]
            targets = self._choose_targets(names)
            # Names that validation would reject are rejected here.
            if self._is_allowed(targets) and not (self.kind == "putnext" and targets[0] == targets[1]):
                return names, targets

    def _place_objects(self, names: Sequence[ObjectName], targets: Sequence[ObjectName]) -> bool:
        """Place the objects so that all are reachable; return whether the mission is not already fulfilled.

        As in MiniGrid, the agent is on any cell, and each object on any free cell that is not next to the agent.
        """
        # Reachability depends only on positions, so names are kept while positions are sampled again.
        while True:
            agent, cells = self._sample_cells(len(names))
            if _can_reach_all(agent, cells, self.room_size - 2):
                break
        if self.kind == "putnext":
            movable_cells, fixed_cells = (
                [cell for name, cell in zip(names, cells, strict=True) if name == target_name]
                for target_name in targets
            )
            if any(pos_next_to(cell, other_cell) for cell in movable_cells for other_cell in fixed_cells):
                return False
        self.agent_pos, self.agent_dir = agent, self._rand_int(0, 4)
        for (color, noun), cell in zip(names, cells, strict=True):
            obj = _OBJECT_CLASSES[noun](color)
            self.put_obj(obj, *cell)
            self.get_room(0, 0).objs.append(obj)
        self.instrs = self._make_instruction(targets)
        return True

    def _sample_cells(self, n: int) -> tuple[Cell, list[Cell]]:
        """Return a random cell for the agent and random cells for `n` objects, none of them next to the agent."""
        size = self.room_size - 2
        agent = _list_cells(size)[self._rand_int(0, size**2)]
        free_cells = _list_cells_apart_from(size, agent)
        return agent, [free_cells[k] for k in self.np_random.permutation(len(free_cells))[:n].tolist()]

    @property
    def _n_objects(self) -> int:
        """Number of objects of a level of any kind except `open`."""
        return self.num_dists + (1 if self.kind in ("goto", "pickup") else 2)

    def _choose_targets(self, names: Sequence[ObjectName]) -> list[ObjectName]:
        """Return the names of one or two random objects for the mission; they may be equal if two objects are."""
        target = names[self._rand_int(0, len(names))]
        if self.kind in ("goto", "pickup"):
            return [target]
        other_target = names[self._rand_int(0, len(names))]
        while other_target == target and names.count(target) < 2:
            other_target = names[self._rand_int(0, len(names))]
        return [target, other_target]

    def _make_instruction(self, targets: Sequence[ObjectName]) -> Instr:
        descriptions = [ObjDesc(noun, color) for color, noun in targets]
        if self.kind == "goto":
            return GoToInstr(descriptions[0])
        if self.kind == "pickup":
            return PickupInstr(descriptions[0])
        if self.kind == "putnext":
            return PutNextInstr(*descriptions)
        first, second = PickupInstr(descriptions[0]), self.second_instruction_type(descriptions[1])
        order = self.orders[0] if len(self.orders) == 1 else self._rand_elem(self.orders)
        return BeforeInstr(first, second) if order == "before" else AfterInstr(second, first)

    def _is_allowed(self, targets: Sequence[ObjectName]) -> bool:
        """Return whether a mission may mention these objects."""
        if self.split is None:
            return True
        return HELD_OUT_OBJECTS.isdisjoint(targets) if self.split == "train" else HELD_OUT_OBJECTS.issuperset(targets)


class MixedTrainLocal(TextLevel):
    """## Description

    A task of one of five kinds in a single room (two rooms if a door is to be opened): go to an object, pick one up,
    open a locked door, put one object next to another, or pick one up and then go to another. Missions are never about
    a yellow box, a red key, a red door, a green ball or a grey door.

    ## Mission Space

    "go to {a/the} {color} {type}", "pick up {a/the} {color} {type}", "open the door", "open the {color} door",
    "put {a/the} {color} {type} next to {a/the} {color} {type}",
    "pick up {a/the} {color} {type}, then go to {a/the} {color} {type}" and
    "go to {a/the} {color} {type} after you pick up {a/the} {color} {type}"

    ## Rewards

    A reward of '1 - 0.9 * (step_count / max_steps)' is given for success, and '0' for failure.

    ## Termination

    The episode ends if any one of the following conditions is met:

    1. The agent fulfills the mission.
    2. Timeout (see `max_steps`): 64 steps for goto and pickup, 128 for the other kinds.

    ## Registered Configurations

    - `BabyAI-MixedTrainLocal-v0`

    ## Options

    See `TextLevel`.
    """


class MixedTestLocal(TextLevel):
    """The test level of `MixedTrainLocal`, whose missions name only held-out objects.

    These are yellow boxes, red keys, red doors, green balls and grey doors. Registered as `BabyAI-MixedTestLocal-v0`.
    """

    split = "test"


class PickUpSeqGoToLocal(TextLevel):
    """Pick up one object, then go to another; the mission names them in either order.

    `BabyAI-PickUpSeqGoToLocal-v0`.
    """

    kinds = ("seq",)


class PickUpThenGoToLocal(PickUpSeqGoToLocal):
    """Missions `pick up A, then go to B` only. `BabyAI-PickUpThenGoToLocal-v0`."""

    orders = ("before",)


class GoToAfterPickUpLocal(PickUpSeqGoToLocal):
    """Missions `go to B after you pick up A` only. `BabyAI-GoToAfterPickUpLocal-v0`."""

    orders = ("after",)


class PickUpSeqPickUpLocal(PickUpSeqGoToLocal):
    """Pick up one object, then another; the mission names them in either order. `BabyAI-PickUpSeqPickUpLocal-v0`."""

    second_instruction_type = PickupInstr


class GoToLocal(TextLevel):
    """BabyAI's GoToLocal: go to one of `num_dists` objects.

    `BabyAI-GoToLocalS8N16-v0` has 16 objects. Its resets are slow, because sampled objects are rarely all reachable.
    For other numbers of objects, use MiniGrid's level.
    """

    kinds = ("goto",)
    split = None

    @property
    def _n_objects(self) -> int:
        return self.num_dists

    def _sample_published_level(self) -> bool:
        self.place_agent()
        objects = self.add_distractors(num_distractors=self._n_objects, all_unique=False)
        if not self.check_objs_reachable(raise_exc=False):
            return False
        self.instrs = self._make_instruction(self._choose_targets([(obj.color, obj.type) for obj in objects]))
        return True


def _count_rooms(kind: str) -> int:
    return 2 if kind == "open" else 1


@functools.cache
def _list_cells(size: int) -> tuple[Cell, ...]:
    """Return the `size` x `size` cells inside the walls of a room."""
    return tuple((i, j) for i in range(1, size + 1) for j in range(1, size + 1))


@functools.cache
def _list_cells_apart_from(size: int, agent: Cell) -> tuple[Cell, ...]:
    """Return the cells of a room that are neither the agent's cell nor next to it."""
    return tuple((i, j) for i, j in _list_cells(size) if abs(i - agent[0]) + abs(j - agent[1]) > 1)


def _can_reach_all(agent: Cell, objects: Sequence[Cell], size: int) -> bool:
    """Return whether the agent can walk to a cell next to each object, without passing through objects.

    Sets of cells are integers with one bit per cell (`_map_cells_to_bits`).
    """
    width, bit_by_cell = size + 2, _map_cells_to_bits(size)
    object_cells = sum([bit_by_cell[cell] for cell in objects])
    empty_cells, reached = bit_by_cell[0, 0] & ~object_cells, bit_by_cell[agent]
    while True:
        neighbors = (reached << 1) | (reached >> 1) | (reached << width) | (reached >> width)
        if not object_cells & ~neighbors:
            return True
        extended = reached | (neighbors & empty_cells)
        if extended == reached:
            return False
        reached = extended


@functools.cache
def _map_cells_to_bits(size: int) -> dict[Cell, int]:
    """Return the bit of each cell of a room; the key (0, 0), a corner of the wall, has the bits of all cells."""
    bit_by_cell = {(i, j): 1 << (j * (size + 2) + i) for i, j in _list_cells(size)}
    return {**bit_by_cell, (0, 0): sum(bit_by_cell.values())}


_OBJECT_NAMES = tuple((color, noun) for color in COLOR_NAMES for noun in _OBJECT_CLASSES)

_TEXT_LEVELS = (
    *(MixedTrainLocal, MixedTestLocal, PickUpSeqGoToLocal, PickUpThenGoToLocal, GoToAfterPickUpLocal),
    PickUpSeqPickUpLocal,
)
_REGISTRATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"BabyAI-{level.__name__}-v0": (f"{__name__}:{level.__name__}", {}) for level in _TEXT_LEVELS},
    "BabyAI-GoToLocalS8N16-v0": (f"{__name__}:GoToLocal", {"num_dists": 16}),
    "BabyAI-GoToFrench-v0": ("minigrid.envs.babyai:GoToLocal", {"num_dists": 8}),
}
"""Gymnasium id -> entry point and arguments."""
IDS = tuple(_REGISTRATIONS)


def register() -> None:
    """Register the levels with Gymnasium; later calls do nothing.

    `gymnasium.make("llmrl.envs.babyai.levels:BabyAI-MixedTrainLocal-v0")` imports this module, which calls this.
    """
    import gymnasium
    import minigrid  # noqa: F401 (registers MiniGrid's levels)

    for name, (entry_point, kwargs) in _REGISTRATIONS.items():
        spec = gymnasium.registry.get(name)
        if spec is None or spec.entry_point != entry_point:
            gymnasium.registry.pop(name, None)
            gymnasium.register(name, entry_point=entry_point, kwargs=kwargs)


register()
