"""The four rooms of the policy teacher as domains: what is said about each, and how its objects are called."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from llmrl.teachers.domain import Domain, Scene
from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.rooms.observed_room import COLOURS, DONE, DOOR, KEY, LAVA, ObservedRoom
from llmrl.teachers.rooms.published import PublishedScene, plan_part, read_loosely
from llmrl.teachers.rooms.skills import SKILLS, RoomScene

KEPT = 20_000
"""Scenes remembered by their observation; the oldest are forgotten first. Some 60 MB of the largest room's."""

EXPLORE = PlanStep("explore")
_KINDS = {KEY: "key", DOOR: "door", LAVA: "lava"}


class RoomDomain(Domain):
    """A room described as `Agent sees <o1>, <o2>, holds <x>.`, keys first, then doors.

    Args:
        parity: behave as published (see `llmrl.teachers.rooms.published`): coordinates are remembered through an
            episode, paths cross lava, walls are followed. Else the skills use what is seen now, and avoid lava.
        view_size: side of the agent's view, odd; for the published way to explore.

    Attributes:
        spoken: kinds of objects that are told of, in this order.
        names: of all objects there may be; places in the memory of the published version.
    """

    channels = ("grid",)
    skills = SKILLS
    n_actions = 7
    idle = DONE
    fallback = (EXPLORE,)
    spoken: ClassVar[tuple[int, ...]] = (KEY, DOOR)
    names: tuple[str, ...] = ("key", "door")
    last_two_words: ClassVar[bool] = False

    def __init__(self, parity: bool = False, view_size: int = 3) -> None:
        self.parity, self.view_size = parity, view_size
        self.memory = 2 * len(self.names) if parity else 0
        self.vocabulary = self.names
        self._scenes: dict[bytes, tuple[Scene, np.ndarray | None]] = {}

    def scene(self, observation: Mapping[str, np.ndarray], agent: int, memory: np.ndarray | None) -> Scene:
        """The scene in channel `grid` [W, H, 4] uint8; the same object for the same observation (and memory)."""
        grid = observation["grid"]
        remembered = memory if self.parity else None
        key = grid.tobytes() if remembered is None else grid.tobytes() + remembered.tobytes()
        if key not in self._scenes:
            after = None if remembered is None else np.array(remembered)
            self._scenes[key] = self._look(ObservedRoom(grid), after), after
            if len(self._scenes) > KEPT:
                del self._scenes[next(iter(self._scenes))]
        scene, after = self._scenes[key]
        if remembered is not None:
            remembered[:] = after
        return scene

    def _look(self, world: ObservedRoom, memory: np.ndarray | None) -> Scene:
        things: dict[str, list[int]] = {}
        for name, cell in self.named(world):
            things.setdefault(name, []).append(cell)
        held = "" if world.carried is None else self.name_of(*world.carried)
        seen = ", ".join(f"<{name}>" for name in things) or "<nothing>"
        sentence = f"Agent sees {seen}, holds <{held or 'nothing'}>."
        if memory is None:
            return RoomScene(world, sentence, things, held)
        height = world.geometry.height
        for name, cells in things.items():
            place = 2 * self.names.index(name)
            memory[place : place + 2] = np.add(divmod(cells[-1], height), 1)
        places = {
            name: int(memory[2 * i] - 1) * height + int(memory[2 * i + 1] - 1)
            for i, name in enumerate(self.names)
            if memory[2 * i]
        }
        return PublishedScene(world, sentence, places, self.view_size)

    def named(self, world: ObservedRoom) -> list[tuple[str, int]]:
        """Names and cells of the objects seen, in the order of the sentence: by kind, then by name. As published, by
        kind and place, so that one state has several descriptions."""
        named: list[tuple[str, int]] = []
        for kind in self.spoken:
            found = [(self.name_of(kind, world.colours[cell]), cell) for cell in world.cells(kind)]
            named += found if self.parity else sorted(found)
        return named

    def name_of(self, kind: int, colour: int) -> str:
        """What an object is called."""
        return _KINDS[kind]

    def read_plan(self, text: str, sentence: str) -> Plan:
        if self.parity:
            # "open door with key" means the door.
            names = sorted(self.names, key=lambda name: "door" not in name)
            return read_loosely(text, names, self.last_two_words)
        return super().read_plan(text, sentence)

    def read_published(self, reply: str, sentence: str) -> Plan:
        # Only the published skills know the waiting that is read where nothing is understood.
        return self.read_plan(plan_part(reply), sentence) if self.parity else super().read_published(reply, sentence)

    def best_plan(self, sentence: str) -> Plan:
        """Fetch a key that opens a door that was seen, and open it; drop a wrong key; explore otherwise."""
        seen, held = self.told(sentence)
        door = next((name for name in seen if "door" in name), None)
        if held:
            if door is None:
                return (EXPLORE,)
            if not self.fits(held, door):
                return (PlanStep("drop", held),)
            return PlanStep("go to", door), PlanStep("open", door)
        keys = [name for name in seen if "key" in name and (door is None or self.fits(name, door))]
        return (PlanStep("go to", keys[0]), PlanStep("pick up", keys[0])) if keys else (EXPLORE,)

    def fits(self, key: str, door: str) -> bool:
        """Whether the key opens the door, by their names."""
        return True

    def told(self, sentence: str) -> tuple[tuple[str, ...], str]:
        """The names of what is seen, and of what is held ("": nothing)."""
        before, _, after = sentence.partition(", holds ")
        return self.objects(before), next(iter(self.objects(after)), "")


class SimpleDoorKeyDomain(RoomDomain):
    """A door and its key: six abstract states."""

    name = prompt = "simple_doorkey"
    tables = str(Path(__file__).with_name("tables") / "simple_doorkey.json")


class LavaDoorKeyDomain(RoomDomain):
    """As `SimpleDoorKeyDomain`, with lava.

    Args:
        parity, view_size: as in `RoomDomain`.
        describe_lava: whether lava that is seen is told of; as published it is not.
    """

    name = prompt = "lava_doorkey"
    tables = str(Path(__file__).with_name("tables") / "lava_doorkey.json")

    def __init__(self, parity: bool = False, view_size: int = 3, describe_lava: bool = False) -> None:
        self.describe_lava = describe_lava
        if describe_lava:
            self.names = ("key", "door", "lava")
        super().__init__(parity, view_size)

    def named(self, world: ObservedRoom) -> list[tuple[str, int]]:
        lava = [("lava", cell) for cell in world.cells(LAVA)] if self.describe_lava else []
        return super().named(world) + lava


class ColoredDoorKeyDomain(RoomDomain):
    """Doors and keys have colours, and a key opens the door of its own: 14 abstract states but for the colours."""

    name = prompt = "colored_doorkey"
    tables = str(Path(__file__).with_name("tables") / "colored_doorkey.json")
    names = tuple(f"{colour} {kind}" for kind in ("door", "key") for colour in COLOURS)
    last_two_words = True

    def name_of(self, kind: int, colour: int) -> str:
        return f"{COLOURS[colour]} {_KINDS[kind]}"

    def fits(self, key: str, door: str) -> bool:
        return key.split()[0] == door.split()[0]


class TwoDoorDomain(RoomDomain):
    """Two doors, either of which will do.

    The door in the western or northern wall is `door1` and the other `door2`. As published, they are numbered in the
    order in which those seen so far stand, so that a door's number may change when the other is found.
    """

    name = prompt = "two_door"
    tables = str(Path(__file__).with_name("tables") / "two_door.json")
    names = ("key", "door1", "door2")

    def named(self, world: ObservedRoom) -> list[tuple[str, int]]:
        named = [("key", cell) for cell in world.cells(KEY)]
        doors = list(world.cells(DOOR))
        if self.parity:
            return named + [(f"door{i}", cell) for i, cell in enumerate(doors[:2], 1)]
        first = [min(divmod(cell, world.geometry.height)) == 0 for cell in doors]
        return named + sorted(
            ("door1" if is_first else "door2", cell) for is_first, cell in zip(first, doors, strict=True)
        )
