"""Domains of rooms: sentences, names of objects, and rules for plans."""

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

StepPairs = list[tuple[str, str]]
"""Pairs of a skill and its object."""

_NON_GOAL_NOUNS = ("key", "door", "lava")
"""Last words of the names of objects that the rules do not fetch for their own sake."""


def rule_based_plan(visible_names: Sequence[str], carried_name: str | None) -> tuple[str, StepPairs]:
    """Return a short explanation (for scripted replies) and the steps of a plan.

    Rules in order of priority: if an object other than a key is visible and no closed door is, drop the carried object
    and fetch the other. If a closed door is visible, open it with a fitting key, drop a key that fits no door, or fetch
    a fitting key. Otherwise explore. The rules do not consider which of two doors is needed, and ignore lava.
    """
    keys = [name for name in visible_names if name.endswith("key")]
    doors = [name for name in visible_names if name.rstrip("0123456789").endswith("door")]
    closed_doors = [name for name in doors if not name.startswith("open ")]
    other_objects = [name for name in visible_names if name not in doors and name.split()[-1] not in _NON_GOAL_NOUNS]
    if other_objects and len(closed_doors) == 0:
        if carried_name is not None:
            return "hands must be free", [("drop", carried_name)]
        return "fetch what there is", [("go to", other_objects[0]), ("pick up", other_objects[0])]
    if carried_name is not None and closed_doors:
        fitting_doors = [door for door in closed_doors if _fits_door(carried_name, door)]
        if fitting_doors:
            return "a door and its key", [("go to", fitting_doors[0]), ("open", fitting_doors[0])]
        return "the key does not fit", [("drop", carried_name)]
    fitting_keys = [key for key in keys if not closed_doors or any(_fits_door(key, door) for door in closed_doors)]
    if carried_name is None and fitting_keys and len(closed_doors) == len(doors):
        return "a key is needed", [("go to", fitting_keys[0]), ("pick up", fitting_keys[0])]
    return "nothing else can be done", [("explore", "")]


def _fits_door(key: str, door: str) -> bool:
    """Return whether the names of key and door have the same color or no color."""
    return key.rpartition(" ")[0] == door.rpartition(" ")[0]


MAX_CACHED_SCENES = 20_000
"""Maximum number of cached scenes, of which the oldest is removed first. They need about 60 MB for the largest room."""

EXPLORE = PlanStep("explore")
_NAME_BY_KIND = {KEY: "key", DOOR: "door", BOX: "box"}


class RoomDomain(Domain):
    """Base class of domains with sentences of the form `Agent sees <o1>, <o2>, holds <x>.`, keys first, then doors.

    Args:
        parity: whether skills are those of the released code (see `llmrl.teachers.rooms.published`): positions are
            stored during an episode, paths cross lava, and exploration follows walls. Otherwise skills use only the
            current observation and avoid lava.
        view_size: width and height of the agent's view, in cells, odd; for the exploration of the released code.

    Attributes:
        described_kinds: kinds of objects in sentences, in this order.
        object_names: names of all possible objects, in the order of the domain's memory.
        match_last_two_words: see `parse_leniently`.
    """

    channels = ("grid",)
    skills = SKILLS
    n_actions = 7
    idle = DONE
    fallback = (EXPLORE,)
    described_kinds: ClassVar[tuple[int, ...]] = (KEY, DOOR)
    object_names: tuple[str, ...] = ("key", "door")
    match_last_two_words: ClassVar[bool] = False

    def __init__(self, parity: bool = False, view_size: int = 3) -> None:
        self.parity, self.view_size = parity, view_size
        self.memory_size = 2 * len(self.object_names) if parity else 0
        self.vocabulary = self.object_names
        self._scenes: dict[bytes, tuple[Scene, np.ndarray | None]] = {}

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """Return the scene for the channel `grid` [W, H, 4] uint8; scenes are cached by grid and memory."""
        grid = observation["grid"]
        episode_memory = memory if self.parity else None
        key = grid.tobytes() if episode_memory is None else grid.tobytes() + episode_memory.tobytes()
        if key not in self._scenes:
            new_memory = None if episode_memory is None else np.array(episode_memory)
            self._scenes[key] = self._build_scene(ObservedRoom(grid), new_memory), new_memory
            if len(self._scenes) > MAX_CACHED_SCENES:
                del self._scenes[next(iter(self._scenes))]
        scene, new_memory = self._scenes[key]
        if episode_memory is not None:
            episode_memory[:] = new_memory
        return scene

    def _build_scene(self, room: ObservedRoom, memory: np.ndarray | None) -> Scene:
        cells_by_name: dict[str, list[int]] = {}
        for name, cell in self.named_cells(room):
            cells_by_name.setdefault(name, []).append(cell)
        carried_name = "" if room.carried is None else self.get_object_name(*room.carried)
        visible_text = ", ".join(f"<{name}>" for name in cells_by_name) or "<nothing>"
        sentence = f"Agent sees {visible_text}, holds <{carried_name or 'nothing'}>."
        if memory is None:
            return RoomScene(room, sentence, cells_by_name, carried_name)
        height = room.geometry.height
        for name, cells in cells_by_name.items():
            start = 2 * self.object_names.index(name)
            # Coordinates are stored plus 1; 0: the object was not seen yet.
            memory[start : start + 2] = np.add(divmod(cells[-1], height), 1)
        last_seen_cells = {
            name: int(memory[2 * i] - 1) * height + int(memory[2 * i + 1] - 1)
            for i, name in enumerate(self.object_names)
            if memory[2 * i]
        }
        return PublishedScene(room, sentence, last_seen_cells, self.view_size)

    def named_cells(self, room: ObservedRoom) -> list[tuple[str, int]]:
        """Return names and cells of the visible objects, in the order of the sentence: by kind, then by name.

        With `parity`, the order is by kind, then by position, so that similar states may have different sentences.
        """
        objects: list[tuple[str, int]] = []
        for kind in self.described_kinds:
            matches = [(self.get_object_name(kind, room.colors[cell]), cell) for cell in room.find_cells(kind)]
            objects += matches if self.parity else sorted(matches)
        return objects

    def get_object_name(self, kind: int, color: int) -> str:
        """Return the name of an object."""
        return _NAME_BY_KIND[kind]

    def read_plan(self, text: str, sentence: str) -> Plan:
        if self.parity:
            # Doors have priority: in "open door with key" the object is the door.
            names = sorted(self.object_names, key=lambda name: "door" not in name)
            return parse_leniently(text, names, self.match_last_two_words)
        return super().read_plan(text, sentence)

    def read_published(self, reply: str, sentence: str) -> Plan:
        # The parser converts unknown steps to waiting, which only the skills of the released code include.
        return (
            self.read_plan(extract_plan_text(reply), sentence)
            if self.parity
            else super().read_published(reply, sentence)
        )

    def best_plan(self, sentence: str) -> Plan:
        """Return the plan of a hand-written heuristic (`rule_based_plan`)."""
        visible_names, carried_name = self.parse_sentence(sentence)
        _, steps = rule_based_plan(visible_names, carried_name or None)
        return tuple(PlanStep(*step) for step in steps)

    def parse_sentence(self, sentence: str) -> tuple[tuple[str, ...], str]:
        """Return the names of the visible objects, and of the carried one ("": nothing)."""
        visible_text, _, carried_text = sentence.partition(", holds ")
        return self.objects(visible_text), next(iter(self.objects(carried_text)), "")


class SimpleDoorKeyDomain(RoomDomain):
    """Domain with a door and its key; it has six abstract states."""

    name = prompt = "simple_doorkey"
    tables = str(Path(__file__).with_name("tables") / "simple_doorkey.json")


class LavaDoorKeyDomain(RoomDomain):
    """Domain with a door, its key and lava, which sentences do not mention, as in the released code."""

    name = prompt = "lava_doorkey"
    tables = str(Path(__file__).with_name("tables") / "lava_doorkey.json")


class ColoredDoorKeyDomain(RoomDomain):
    """Domain with colored doors and keys, whose colors must match; it has 14 abstract states up to colors."""

    name = prompt = "colored_doorkey"
    tables = str(Path(__file__).with_name("tables") / "colored_doorkey.json")
    object_names = tuple(f"{color} {kind}" for kind in ("door", "key") for color in COLORS)
    match_last_two_words = True

    def get_object_name(self, kind: int, color: int) -> str:
        return f"{COLORS[color]} {_NAME_BY_KIND[kind]}"


class TwoDoorDomain(RoomDomain):
    """Domain with two doors, of which either one must be opened.

    The door in the western or northern wall is `door1`, the other one `door2`. With `parity`, doors that were seen are
    numbered by position, so that a door's number may change when the other one is seen.
    """

    name = prompt = "two_door"
    tables = str(Path(__file__).with_name("tables") / "two_door.json")
    object_names = ("key", "door1", "door2")

    def named_cells(self, room: ObservedRoom) -> list[tuple[str, int]]:
        objects = [("key", cell) for cell in room.find_cells(KEY)]
        doors = list(room.find_cells(DOOR))
        if self.parity:
            return objects + [(f"door{i}", cell) for i, cell in enumerate(doors[:2], 1)]
        in_west_or_north_wall = [min(divmod(cell, room.geometry.height)) == 0 for cell in doors]
        return objects + sorted(
            ("door1" if is_first else "door2", cell)
            for is_first, cell in zip(in_west_or_north_wall, doors, strict=True)
        )
