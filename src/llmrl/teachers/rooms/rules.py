"""Rules for plans in rooms, from the names of the visible objects and of the carried one."""

from __future__ import annotations

from collections.abc import Sequence

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
    goods = [name for name in visible if name not in doors and name.split()[-1] not in _LAST]
    if goods and len(locked) == 0:
        if carried is not None:
            return "hands must be free", [("drop", carried)]
        return "fetch what there is", [("go to", goods[0]), ("pick up", goods[0])]
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
