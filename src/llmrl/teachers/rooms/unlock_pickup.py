"""MiniGrid's UnlockPickup as a domain: what another world of rooms takes beside the skills that are there."""

from __future__ import annotations

from typing import ClassVar

from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.rooms.observed_room import BOX, DOOR, KEY, OPEN, ObservedRoom
from llmrl.teachers.rooms.room_domains import EXPLORE, RoomDomain

_KINDS = {KEY: "key", DOOR: "door", BOX: "box"}


class UnlockPickupDomain(RoomDomain):
    """Two rooms with a locked door between them, its key in the one and a box in the other, which is to be picked up.

    An `open door` is told apart from a `door`, as it is what tells whether the key is still needed.
    """

    name = prompt = "unlock_pickup"
    spoken: ClassVar[tuple[int, ...]] = (KEY, DOOR, BOX)
    names = ("key", "door", "open door", "box")

    def __init__(self) -> None:
        super().__init__()

    def name_of(self, kind: int, colour: int) -> str:
        return _KINDS[kind]

    def named(self, world: ObservedRoom) -> list[tuple[str, int]]:
        return [
            ("open door" if name == "door" and world.states[cell] == OPEN else name, cell)
            for name, cell in super().named(world)
        ]

    def best_plan(self, sentence: str) -> Plan:
        """Key, door, hands free, box."""
        seen, held = self.told(sentence)
        if "box" in seen:
            if held:
                return (PlanStep("drop", held),)
            return PlanStep("go to", "box"), PlanStep("pick up", "box")
        if "door" in seen and held == "key":
            return PlanStep("go to", "door"), PlanStep("open", "door")
        if "open door" not in seen and "key" in seen and not held:
            return PlanStep("go to", "key"), PlanStep("pick up", "key")
        return (EXPLORE,)
