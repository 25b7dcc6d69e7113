"""The skills of an agent in a room: they act where they can do something, and only there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from llmrl.teachers.plans import PlanStep, Skill
from llmrl.teachers.rooms.exploring import explore
from llmrl.teachers.rooms.observed_room import (
    CLOSED,
    DOOR,
    DROP,
    EMPTY,
    KEY,
    LOCKED,
    PICK_UP,
    TOGGLE,
    WALL,
    ObservedRoom,
)
from llmrl.teachers.rooms.paths import paths_to, walk_until

SKILLS = (
    Skill("explore", False, "walk to where a part of the room comes into view that was not seen yet"),
    Skill("go to", True, "walk until the object is straight ahead, within reach"),
    Skill("pick up", True, "take the object straight ahead; works with empty hands only"),
    Skill("drop", True, "put down the object the agent holds"),
    Skill("open", True, "open the door straight ahead; a locked one needs the key of its colour in the agent's hand"),
)


class RoomScene:
    """One state of a room, with skills that are functions of what was observed of it and of nothing else.

    Args:
        world: the observation.
        sentence: what is said of it.
        things: cells of the objects that can be named.
        held: name of the object the agent holds; "": none.
    """

    def __init__(self, world: ObservedRoom, sentence: str, things: Mapping[str, Sequence[int]], held: str) -> None:
        self.world, self.sentence, self.things, self.held = world, sentence, things, held
        self._acts: dict[PlanStep, int | None] = {}

    def act(self, step: PlanStep) -> int | None:
        try:
            return self._acts[step]
        except KeyError:
            self._acts[step] = action = self._act(step)
            return action

    def _act(self, step: PlanStep) -> int | None:
        world = self.world
        if step.skill == "explore":
            return explore(world)
        if step.skill == "go to":
            return self._go_to(step.object)
        if step.skill == "pick up":
            here = world.front in self.things.get(step.object, ())
            return PICK_UP if here and world.carried is None else None
        if step.skill == "drop":
            return self._drop() if step.object == self.held else None
        if step.skill == "open":
            return TOGGLE if world.front in self.things.get(step.object, ()) and self._opens(world.front) else None
        return None

    def _go_to(self, name: str) -> int | None:
        """Along a shortest path, which crosses no lava; while none is known, by exploring."""
        world = self.world
        cells = self.things.get(name, ())
        if not cells or world.front in cells:
            return None
        searches = [paths_to(world.geometry, world.walkable, cell) for cell in cells]
        distances = [search.distance(world.pose) for search in searches]
        near = [(distance, i) for i, distance in enumerate(distances) if distance is not None]
        return searches[min(near)[1]].action(world.pose) if near else explore(world)

    def _drop(self) -> int | None:
        """Onto the nearest empty cell, if possible not in front of a door."""
        world = self.world
        for worth in (self._clear, self._empty):
            if worth(world.pose):
                return DROP
            action = walk_until(world.geometry, world.walkable, world.pose, worth)
            if action is not None:
                return action
        return None

    def _empty(self, pose: int) -> bool:
        cell = self.world.geometry.ahead[pose]
        return cell >= 0 and self.world.ids[cell] == EMPTY and cell != self.world.cell

    def _clear(self, pose: int) -> bool:
        ids, geometry = self.world.ids, self.world.geometry
        if not self._empty(pose):
            return False
        # The agent's own cell may be an open door: then there are walls on both sides.
        sides = (geometry.ahead[geometry.left[pose]], geometry.ahead[geometry.right[pose]])
        if all(cell >= 0 and ids[cell] == WALL for cell in sides):
            return False
        return all(ids[cell] != DOOR for cell in geometry.beside[geometry.ahead[pose]] if cell >= 0)

    def _opens(self, cell: int) -> bool:
        world = self.world
        if world.ids[cell] != DOOR:
            return False
        if world.states[cell] == LOCKED:
            return world.carried == (KEY, world.colours[cell])
        return world.states[cell] == CLOSED
