"""Domain of MiniGrid's UnlockPickup, with the skills of other rooms."""

from __future__ import annotations

from typing import ClassVar

from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.rooms.observed_room import BOX, DOOR, KEY, OPEN, ObservedRoom
from llmrl.teachers.rooms.room_domains import EXPLORE, RoomDomain


class UnlockPickupDomain(RoomDomain):
    """Domain with two rooms, a locked door between them, a key in one room, and a box to pick up in the other.

    Sentences distinguish an `open door` from a `door`, because only a closed door needs the key.
    """

    name = prompt = "unlock_pickup"
    described_kinds: ClassVar[tuple[int, ...]] = (KEY, DOOR, BOX)
    object_names = ("key", "door", "open door", "box")

    def __init__(self) -> None:
        super().__init__()

    def named_cells(self, room: ObservedRoom) -> list[tuple[str, int]]:
        return [
            ("open door" if name == "door" and room.states[cell] == OPEN else name, cell)
            for name, cell in super().named_cells(room)
        ]

    def best_plan(self, sentence: str) -> Plan:
        """Return a good plan: fetch the key, open the door, drop the key, pick up the box."""
        visible, carried = self.parse_sentence(sentence)
        if "box" in visible:
            if carried:
                return (PlanStep("drop", carried),)
            return PlanStep("go to", "box"), PlanStep("pick up", "box")
        if "door" in visible and carried == "key":
            return PlanStep("go to", "door"), PlanStep("open", "door")
        if "open door" not in visible and "key" in visible and not carried:
            return PlanStep("go to", "key"), PlanStep("pick up", "key")
        return (EXPLORE,)
