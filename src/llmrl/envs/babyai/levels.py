"""The levels of BabyAI-Text on MiniGrid's engine (Carta et al. 2023, arXiv 2302.02662).

A room of 8 x 8 cells, walls included, holds objects drawn with repetition; all of them can be reached without moving
one. Some pairs of colour and noun (`HELD_OUT`) are kept out of the missions of training, and are what those of the test
are made of.
"""

# mypy: disallow-untyped-calls=False
# MiniGrid leaves most of what is called here without types.

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

Named = tuple[str, str]
"""Colour and noun."""
Cell = tuple[int, int]
Sampling = Literal["direct", "rejection"]

KINDS = ("goto", "pickup", "open", "putnext", "seq")
HELD_OUT = frozenset({("yellow", "box"), ("red", "key"), ("red", "door"), ("green", "ball"), ("grey", "door")})
_FULL = 0.6
"""Where objects lie on more of a room's cells than this share, hardly ever can all be reached."""
_THINGS = {"key": Key, "ball": Ball, "box": Box}
_DOORS = {"train": ("yellow", "green", "blue", "purple"), "test": ("red", "grey"), None: tuple(COLOR_NAMES)}


class TextLevel(RoomGridLevel):
    """What the levels of BabyAI-Text share.

    Args:
        kind: what is to be done, one of the class's `kinds`; `per_episode` draws it for each episode.
        sampling: `rejection` draws levels until the mission is allowed, in the order of random numbers of the published
            environment: the same seed gives the same episode as there. `direct` draws what objects there are and which
            of them the mission is about until that is allowed, and places them then; levels are as likely as under
            `rejection`, and found many times faster where few missions are allowed.
        room_size: cells of a room along either axis, walls included.
        num_dists: objects beside those that the mission needs.
        kwargs: whatever else `RoomGridLevel` takes: `max_steps`, `render_mode`.

    Attributes:
        kind: of the episode.

    Raises:
        ValueError: no such kind or sampling.
    """

    kinds: ClassVar[tuple[str, ...]] = KINDS
    split: ClassVar[Literal["train", "test"] | None] = "train"
    orders: ClassVar[tuple[str, ...]] = ("before", "after")
    """Of a sequence: `pick up A, then go to B` and `go to B after you pick up A`."""
    second: ClassVar[type[GoToInstr] | type[PickupInstr]] = GoToInstr
    """What a sequence ends with."""

    def __init__(
        self,
        kind: str = "per_episode",
        sampling: Sampling = "direct",
        room_size: int = 8,
        num_dists: int = 8,
        **kwargs: Any,
    ) -> None:
        if kind not in ("per_episode", *self.kinds):
            raise ValueError(f"kind={kind!r} is none of per_episode, {', '.join(self.kinds)}")
        if sampling not in ("direct", "rejection"):
            raise ValueError(f"sampling={sampling!r} is neither 'direct' nor 'rejection'")
        self._fixed = kind if kind != "per_episode" else self.kinds[0] if len(self.kinds) == 1 else None
        most = int(_FULL * (room_size - 2) ** 2) - 2
        if not 0 <= num_dists <= most:
            raise ValueError(
                f"num_dists={num_dists} is not between 0 and {most}, which a room of {room_size} has space for"
            )
        self._direct, self.num_dists = sampling == "direct", num_dists
        self.kind = self._fixed or self.kinds[0]
        self.instrs: Instr
        super().__init__(room_size=room_size, num_rows=1, num_cols=_rooms(self.kind), **kwargs)

    @property
    def possible(self) -> tuple[str, ...]:
        """Kinds that episodes can have."""
        return self.kinds if self._fixed is None else (self._fixed,)

    @property
    def largest(self) -> tuple[int, int]:
        """Width and height of the largest grid."""
        return (self.room_size - 1) * max(map(_rooms, self.possible)) + 1, self.height

    @property
    def longest(self) -> int:
        """Steps that an episode may have."""
        if self.fixed_max_steps:
            return int(self.max_steps)
        room = self.room_size**2
        return max(room * _rooms(kind) * (2 if kind in ("putnext", "seq") else 1) for kind in self.possible)

    def _gen_grid(self, width: int, height: int) -> None:
        if self._fixed is None:
            self.kind = str(self._rand_elem(self.kinds))
            self.num_cols = _rooms(self.kind)
            self.width = (self.room_size - 1) * self.num_cols + 1
        while True:
            try:
                RoomGrid._gen_grid(self, self.width, self.height)
                self.gen_mission()
                self.validate_instrs(self.instrs)
                break
            except (RecursionError, RejectSampling):  # which MiniGrid prints
                continue
        self.surface = self.mission = self.instrs.surface(self)

    def gen_mission(self) -> None:
        """Draw levels until one is allowed."""
        while True:
            if self._direct and self.kind != "open":
                found = self._place(*self._names())
            else:
                RoomGrid._gen_grid(self, self.width, self.height)
                found = self._open() if self.kind == "open" else self._publish()
            if found:
                return

    def _open(self) -> bool:
        """A locked room, its key beside the agent, and a mission that names the door's colour or does not."""
        colour = self._rand_elem(_DOORS[self.split])
        while True:
            i, j, wall = self._rand_int(0, self.num_cols), self._rand_int(0, self.num_rows), self._rand_int(0, 4)
            locked = self.get_room(i, j)
            if locked.neighbors[wall] is not None:
                break
        self.add_door(i, j, wall, colour, locked=True)
        while True:
            i, j = self._rand_int(0, self.num_cols), self._rand_int(0, self.num_rows)
            if self.get_room(i, j) is not locked:
                break
        self.add_object(i, j, "key", colour)
        self.add_distractors(i, j, self.num_dists, all_unique=False)
        while True:
            self.place_agent()
            if self.room_from_pos(*self.agent_pos) is not locked:
                break
        reachable = self.check_objs_reachable(raise_exc=False)
        named = self.split == "test" or not self._rand_bool()
        self.instrs = OpenInstr(ObjDesc("door", colour if named else None))
        return bool(reachable)

    def _publish(self) -> bool:
        """One level as the published environment draws it; whether it is allowed."""
        self.place_agent()
        objects = self.add_distractors(num_distractors=self._n_objects, all_unique=False)
        reachable = self.check_objs_reachable(raise_exc=False)
        names = [(thing.color, thing.type) for thing in objects]
        chosen = self._choose(names)
        self.instrs = self._instruct(chosen)
        return bool(reachable) and self._allowed(chosen)

    def _names(self) -> tuple[list[Named], list[Named]]:
        """Objects, and those of them that an allowed mission is about."""
        while True:
            drawn = self.np_random.integers(len(_NAMES), size=self._n_objects).tolist()
            names = [_NAMES[k] for k in drawn]
            chosen = self._choose(names)
            # What validation would refuse because of what the objects are called, it refuses here.
            if self._allowed(chosen) and not (self.kind == "putnext" and chosen[0] == chosen[1]):
                return names, chosen

    def _place(self, names: Sequence[Named], chosen: Sequence[Named]) -> bool:
        """Put them into the room so that all can be reached; whether validation allows where they came to lie.

        As MiniGrid places them: the agent anywhere, each object on any free cell that is not beside the agent.
        """
        # Where they lie has nothing to do with what they are, so that those that cannot be reached are laid out anew.
        while True:
            agent, at = self._lay_out(len(names))
            if _reachable(agent, at, self.room_size - 2):
                break
        if self.kind == "putnext":
            moved, fixed = ([place for name, place in zip(names, at, strict=True) if name == one] for one in chosen)
            if any(pos_next_to(a, b) for a in moved for b in fixed):
                return False
        self.agent_pos, self.agent_dir = agent, self._rand_int(0, 4)
        room = self.get_room(0, 0)
        for (colour, noun), place in zip(names, at, strict=True):
            thing = _THINGS[noun](colour)
            self.put_obj(thing, *place)
            room.objs.append(thing)
        self.instrs = self._instruct(chosen)
        return True

    def _lay_out(self, n: int) -> tuple[Cell, list[Cell]]:
        """A cell for the agent and `n` others, none of them beside it."""
        inside = self.room_size - 2
        agent = _cells(inside)[self._rand_int(0, inside**2)]
        free = _apart(inside, agent)
        drawn = self.np_random.permutation(len(free))[:n].tolist()
        return agent, [free[k] for k in drawn]

    @property
    def _n_objects(self) -> int:
        """Objects of a level that is no `open` one."""
        return self.num_dists + (1 if self.kind in ("goto", "pickup") else 2)

    def _choose(self, names: Sequence[Named]) -> list[Named]:
        """Which objects the mission is about; two that are told apart, or of which there are several."""
        first = names[self._rand_int(0, len(names))]
        if self.kind in ("goto", "pickup"):
            return [first]
        second = names[self._rand_int(0, len(names))]
        while second == first and names.count(first) < 2:
            second = names[self._rand_int(0, len(names))]
        return [first, second]

    def _instruct(self, chosen: Sequence[Named]) -> Instr:
        about = [ObjDesc(noun, colour) for colour, noun in chosen]
        if self.kind == "goto":
            return GoToInstr(about[0])
        if self.kind == "pickup":
            return PickupInstr(about[0])
        if self.kind == "putnext":
            return PutNextInstr(*about)
        first, second = PickupInstr(about[0]), self.second(about[1])
        order = self.orders[0] if len(self.orders) == 1 else self._rand_elem(self.orders)
        return BeforeInstr(first, second) if order == "before" else AfterInstr(second, first)

    def _allowed(self, chosen: Sequence[Named]) -> bool:
        """Whether a mission may be about these."""
        if self.split is None:
            return True
        return HELD_OUT.isdisjoint(chosen) if self.split == "train" else HELD_OUT.issuperset(chosen)


class MixedTrainLocal(TextLevel):
    """
    ## Description

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

    1. The agent fulfils the mission.
    2. Timeout (see `max_steps`): 64 steps for goto and pickup, 128 for the other kinds.

    ## Registered Configurations

    - `BabyAI-MixedTrainLocal-v0`

    ## Options

    See `TextLevel`.
    """


class MixedTestLocal(TextLevel):
    """`MixedTrainLocal` with missions that are about nothing but yellow boxes, red keys, red doors, green balls and
    grey doors. Registered as `BabyAI-MixedTestLocal-v0`."""

    split = "test"


class PickUpSeqGoToLocal(TextLevel):
    """Pick up one object, then go to another; told in either order. `BabyAI-PickUpSeqGoToLocal-v0`."""

    kinds = ("seq",)


class PickUpThenGoToLocal(PickUpSeqGoToLocal):
    """`pick up A, then go to B` alone. `BabyAI-PickUpThenGoToLocal-v0`."""

    orders = ("before",)


class GoToAfterPickUpLocal(PickUpSeqGoToLocal):
    """`go to B after you pick up A` alone. `BabyAI-GoToAfterPickUpLocal-v0`."""

    orders = ("after",)


class PickUpSeqPickUpLocal(PickUpSeqGoToLocal):
    """Pick up one object, then another; told in either order. `BabyAI-PickUpSeqPickUpLocal-v0`."""

    second = PickupInstr


class GoToLocal(TextLevel):
    """BabyAI's GoToLocal: go to any of `num_dists` objects. `BabyAI-GoToLocalS8N16-v0` has 16, whose levels are hard to
    draw: in hardly any can all be reached. The level with other numbers is MiniGrid's own."""

    kinds = ("goto",)
    split = None

    @property
    def _n_objects(self) -> int:
        return self.num_dists

    def _publish(self) -> bool:
        self.place_agent()
        objects = self.add_distractors(num_distractors=self._n_objects, all_unique=False)
        if not self.check_objs_reachable(raise_exc=False):
            return False
        self.instrs = self._instruct(self._choose([(thing.color, thing.type) for thing in objects]))
        return True


def _rooms(kind: str) -> int:
    return 2 if kind == "open" else 1


@functools.cache
def _cells(inside: int) -> tuple[Cell, ...]:
    """The cells of a room between its walls."""
    return tuple((i, j) for i in range(1, inside + 1) for j in range(1, inside + 1))


@functools.cache
def _apart(inside: int, agent: Cell) -> tuple[Cell, ...]:
    """Those of them that are neither the agent's nor beside it."""
    return tuple((i, j) for i, j in _cells(inside) if abs(i - agent[0]) + abs(j - agent[1]) > 1)


def _reachable(agent: Cell, things: Sequence[Cell], inside: int) -> bool:
    """Whether the agent can walk up to all things in a room, none of which it can walk through."""
    width, bits = inside + 2, _bits(inside)
    wanted = sum([bits[thing] for thing in things])
    empty, reached = bits[0, 0] & ~wanted, bits[agent]
    while True:
        beside = (reached << 1) | (reached >> 1) | (reached << width) | (reached >> width)
        if not wanted & ~beside:
            return True
        further = reached | (beside & empty)
        if further == reached:
            return False
        reached = further


@functools.cache
def _bits(inside: int) -> dict[Cell, int]:
    """The cells of a room as bits; all of them together under (0, 0)."""
    single = {(i, j): 1 << (j * (inside + 2) + i) for i, j in _cells(inside)}
    return {**single, (0, 0): sum(single.values())}


_NAMES = tuple((colour, noun) for colour in COLOR_NAMES for noun in _THINGS)
