"""Domains of rooms: their descriptions, the names of their objects, and rules for plans in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from llmrl.teachers.domain import Domain, Scene
from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.rooms.observed_room import BOX, COLORS, DONE, DOOR, KEY, ObservedRoom
from llmrl.teachers.rooms.published import PublishedScene, extract_plan_text, parse_leniently
from llmrl.teachers.rooms.skills import SKILLS, RoomScene

Steps = list[tuple[str, str]]
"""Pairs of a skill and its object."""

_LAST = ("key", "door", "lava")
"""Last words of names with rules; all other objects are to be fetched."""


def room_rule(visible: Sequence[str], carried: str | None) -> tuple[str, Steps]:
    """Return a reason and a plan.

    The rules fetch a key for a door, of the door's color if there are colors; drop a key that does not fit; and behind
    an open door drop the key and fetch other objects. Else they explore. They do not know which of two doors is
    superfluous, how to search, or where lava is.
    """
    keys = [name for name in visible if name.endswith("key")]
    doors = [name for name in visible if name.rstrip("0123456789").endswith("door")]
    locked = [name for name in doors if not name.startswith("open ")]
    other_objects = [name for name in visible if name not in doors and name.split()[-1] not in _LAST]
    if other_objects and len(locked) == 0:
        if carried is not None:
            return "hands must be free", [("drop", carried)]
        return "fetch what there is", [("go to", other_objects[0]), ("pick up", other_objects[0])]
    if carried is not None and locked:
        fitting = [door for door in locked if _fits(carried, door)]
        if fitting:
            return "a door and its key", [("go to", fitting[0]), ("open", fitting[0])]
        return "the key does not fit", [("drop", carried)]
    fitting = [key for key in keys if not locked or any(_fits(key, door) for door in locked)]
    if carried is None and fitting and len(locked) == len(doors):
        return "a key is needed", [("go to", fitting[0]), ("pick up", fitting[0])]
    return "nothing else can be done", [("explore", "")]


def _fits(key: str, door: str) -> bool:
    """Return whether the colors before the last space agree; without colors, all keys fit."""
    return key.rpartition(" ")[0] == door.rpartition(" ")[0]


MAX_CACHED = 20_000
"""Maximum number of cached scenes; the oldest are removed first. About 60 MB for the largest room."""

EXPLORE = PlanStep("explore")
_KIND_NAMES = {KEY: "key", DOOR: "door", BOX: "box"}


class RoomDomain(Domain):
    """Room described as `Agent sees <o1>, <o2>, holds <x>.`, keys first, then doors.

    Args:
        parity: behave as published (see `llmrl.teachers.rooms.published`): positions are remembered during an episode,
            paths cross lava, and exploration follows walls. Otherwise the skills use the present observation and avoid
            lava.
        view_size: side of the agent's view, odd; for the published exploration.

    Attributes:
        described_kinds: kinds of objects that are described, in this order.
        names: names of all possible objects, in the order of the published memory.
    """

    channels = ("grid",)
    skills = SKILLS
    n_actions = 7
    idle = DONE
    fallback = (EXPLORE,)
    described_kinds: ClassVar[tuple[int, ...]] = (KEY, DOOR)
    names: tuple[str, ...] = ("key", "door")
    last_two_words: ClassVar[bool] = False

    def __init__(self, parity: bool = False, view_size: int = 3) -> None:
        self.parity, self.view_size = parity, view_size
        self.memory = 2 * len(self.names) if parity else 0
        self.vocabulary = self.names
        self._scenes: dict[bytes, tuple[Scene, np.ndarray | None]] = {}

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene in channel `grid` [W, H, 4] uint8, cached by observation (and memory)."""
        grid = observation["grid"]
        episode_memory = memory if self.parity else None
        key = grid.tobytes() if episode_memory is None else grid.tobytes() + episode_memory.tobytes()
        if key not in self._scenes:
            new_memory = None if episode_memory is None else np.array(episode_memory)
            self._scenes[key] = self._build_scene(ObservedRoom(grid), new_memory), new_memory
            if len(self._scenes) > MAX_CACHED:
                del self._scenes[next(iter(self._scenes))]
        scene, new_memory = self._scenes[key]
        if episode_memory is not None:
            episode_memory[:] = new_memory
        return scene

    def _build_scene(self, world: ObservedRoom, memory: np.ndarray | None) -> Scene:
        cells_by_name: dict[str, list[int]] = {}
        for name, cell in self.named_cells(world):
            cells_by_name.setdefault(name, []).append(cell)
        carried = "" if world.carried is None else self.name_of(*world.carried)
        visible = ", ".join(f"<{name}>" for name in cells_by_name) or "<nothing>"
        sentence = f"Agent sees {visible}, holds <{carried or 'nothing'}>."
        if memory is None:
            return RoomScene(world, sentence, cells_by_name, carried)
        height = world.geometry.height
        for name, cells in cells_by_name.items():
            start = 2 * self.names.index(name)
            memory[start : start + 2] = np.add(divmod(cells[-1], height), 1)
        last_cells = {
            name: int(memory[2 * i] - 1) * height + int(memory[2 * i + 1] - 1)
            for i, name in enumerate(self.names)
            if memory[2 * i]
        }
        return PublishedScene(world, sentence, last_cells, self.view_size)

    def named_cells(self, world: ObservedRoom) -> list[tuple[str, int]]:
        """Return names and cells of the visible objects, in the order of the sentence: by kind, then by name.

        As published, the order is by kind and position, so that one state has several descriptions.
        """
        objects: list[tuple[str, int]] = []
        for kind in self.described_kinds:
            matches = [(self.name_of(kind, world.colors[cell]), cell) for cell in world.cells(kind)]
            objects += matches if self.parity else sorted(matches)
        return objects

    def name_of(self, kind: int, color: int) -> str:
        """Return the name of an object."""
        return _KIND_NAMES[kind]

    def read_plan(self, text: str, sentence: str) -> Plan:
        if self.parity:
            # In "open door with key" the object is the door.
            names = sorted(self.names, key=lambda name: "door" not in name)
            return parse_leniently(text, names, self.last_two_words)
        return super().read_plan(text, sentence)

    def read_published(self, reply: str, sentence: str) -> Plan:
        # Only the published skills include waiting, which is the meaning of unknown steps.
        return (
            self.read_plan(extract_plan_text(reply), sentence)
            if self.parity
            else super().read_published(reply, sentence)
        )

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan: fetch a key for a visible door and open it, drop a wrong key, or explore."""
        visible, carried = self.parse_sentence(sentence)
        _, steps = room_rule(visible, carried or None)
        return tuple(PlanStep(*step) for step in steps)

    def parse_sentence(self, sentence: str) -> tuple[tuple[str, ...], str]:
        """Return the names of the visible objects, and of the carried one ("": nothing)."""
        visible_text, _, carried_text = sentence.partition(", holds ")
        return self.objects(visible_text), next(iter(self.objects(carried_text)), "")


class SimpleDoorKeyDomain(RoomDomain):
    """Domain with a door and its key: six abstract states."""

    name = prompt = "simple_doorkey"
    tables = str(Path(__file__).with_name("tables") / "simple_doorkey.json")


class LavaDoorKeyDomain(RoomDomain):
    """Domain of `SimpleDoorKeyDomain` with lava, which is not described, as published."""

    name = prompt = "lava_doorkey"
    tables = str(Path(__file__).with_name("tables") / "lava_doorkey.json")


class ColoredDoorKeyDomain(RoomDomain):
    """Domain with colored doors and keys, which must match: 14 abstract states up to colors."""

    name = prompt = "colored_doorkey"
    tables = str(Path(__file__).with_name("tables") / "colored_doorkey.json")
    names = tuple(f"{color} {kind}" for kind in ("door", "key") for color in COLORS)
    last_two_words = True

    def name_of(self, kind: int, color: int) -> str:
        return f"{COLORS[color]} {_KIND_NAMES[kind]}"


class TwoDoorDomain(RoomDomain):
    """Domain with two doors, either of which leads to the goal.

    The door in the western or northern wall is `door1` and the other `door2`. As published, the doors seen so far are
    numbered by position, so that a door's number may change when the other is found.
    """

    name = prompt = "two_door"
    tables = str(Path(__file__).with_name("tables") / "two_door.json")
    names = ("key", "door1", "door2")

    def named_cells(self, world: ObservedRoom) -> list[tuple[str, int]]:
        objects = [("key", cell) for cell in world.cells(KEY)]
        doors = list(world.cells(DOOR))
        if self.parity:
            return objects + [(f"door{i}", cell) for i, cell in enumerate(doors[:2], 1)]
        on_edge = [min(divmod(cell, world.geometry.height)) == 0 for cell in doors]
        return objects + sorted(
            ("door1" if is_on_edge else "door2", cell) for is_on_edge, cell in zip(on_edge, doors, strict=True)
        )
