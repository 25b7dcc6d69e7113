"""The skills and the plan parser of LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373) as released, flaws included.

They walk into lava, go to where an object once was, act where it has no effect, explore along the walls, and take what
they cannot read for waiting. What a comparison with published numbers needs, and nothing else does.

Not as released: which of several shortest paths is gone. There it is the order in which Python's hash table of poses
happens to be gone through; here steps forward come before turns (`llmrl.teachers.rooms.paths`). Both are as long.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.rooms.observed_room import (
    BALL,
    BOX,
    DONE,
    DOOR,
    DROP,
    FORWARD,
    KEY,
    LEFT,
    PICK_UP,
    RIGHT,
    TOGGLE,
    UNSEEN,
    WALL,
    ObservedRoom,
)
from llmrl.teachers.rooms.paths import paths_to

WAIT = "wait"
_INTERACTIONS = {"pick up": PICK_UP, "drop": DROP, "open": TOGGLE, WAIT: DONE}
_VERBS = ("explore", "go to", "pick up", "drop", "open")
"""In the order in which they are looked for; the first that a text contains is meant."""


class PublishedScene:
    """One state of a room and where its objects were seen last.

    Args:
        world: the observation.
        sentence: what is said of it.
        places: the cell in which each object was seen last in this episode.
        view_size: of the agent's view, odd.
    """

    def __init__(self, world: ObservedRoom, sentence: str, places: Mapping[str, int], view_size: int) -> None:
        self.world, self.sentence, self.places, self.view_size = world, sentence, places, view_size
        self._acts: dict[PlanStep, int | None] = {}

    def act(self, step: PlanStep) -> int | None:
        if step not in self._acts:
            self._acts[step] = self._act(step)
        return self._acts[step]

    def _act(self, step: PlanStep) -> int | None:
        if step.skill == "explore":
            return explore(self.world, self.view_size)
        if step.skill != WAIT and step.object not in self.places:
            return DONE
        if step.skill == "go to":
            search = paths_to(self.world.geometry, self.world.walkable_with_lava(), self.places[step.object])
            # Without a path the skill neither acts nor ends, so none after it is tried.
            return DONE if search.distance(self.world.pose) is None else search.action(self.world.pose)
        return _INTERACTIONS[step.skill]


_ACTION = re.compile(r"actions?:\s*\{([\w\s<>,]*)\}", re.IGNORECASE)


def plan_part(reply: str) -> str:
    """Return the part of a model's reply that the released code takes for the plan.

    That is what stands in the first braces after `Action:` or `Actions:`, if it holds words, brackets and commas
    alone; else all of the reply, so that no reply is invalid.

    >>> plan_part("3. Act. Action: {go to <key>, pick up <key>}")
    'go to <key>, pick up <key>'
    """
    found = _ACTION.search(reply)
    return reply if found is None else found.group(1)


def read_loosely(text: str, names: Sequence[str], last_two_words: bool = False) -> Plan:
    """A plan by key words: nothing is invalid, what is not understood is waiting.

    Args:
        text: items with commas between.
        names: objects; the first that an item contains is meant.
        last_two_words: look for the object in the last two words of an item only.
    """
    plan = []
    for item in text.lower().replace("<", " ").replace(">", " ").split(","):
        words = " ".join(item.split())
        verb = next((verb for verb in _VERBS if verb in words), WAIT)
        place = " ".join(words.split()[-2:]) if last_two_words else words
        thing = next((name for name in names if name in place), "")
        if verb == "explore":
            plan.append(PlanStep(verb))
        else:
            plan.append(PlanStep(verb, thing) if thing and verb != WAIT else PlanStep(WAIT))
    return tuple(plan)


def explore(world: ObservedRoom, view_size: int) -> int | None:
    """Forward while anything beyond the view ahead is unseen, else a turn to the side where something is.

    Looked at is the whole half of the room ahead, left, right and behind, from `view_size // 2 + 1` cells away.
    """
    geometry = world.geometry
    front, left = world.front, geometry.ahead[geometry.left[world.pose]]
    if front >= 0 and world.ids[front] in (KEY, BALL, BOX):
        return RIGHT if left >= 0 and world.ids[left] in (WALL, DOOR, KEY, BALL, BOX) else LEFT
    bounds = _bounds(world)
    direction = world.pose & 3
    x, y = divmod(world.cell, geometry.height)
    away = view_size // 2 + 1
    ahead_x, ahead_y = _step(x, y, direction)
    if _unseen(world, bounds, x, y, direction, away):
        return FORWARD
    if _unseen(world, bounds, x, y, (direction - 1) & 3, away):
        return LEFT
    if _unseen(world, bounds, x, y, (direction + 1) & 3, away):
        return RIGHT
    if _unseen(world, bounds, ahead_x, ahead_y, (direction + 2) & 3, away):
        return LEFT
    return None


_DIRECTIONS = ((1, 0), (0, 1), (-1, 0), (0, -1))


def _step(x: int, y: int, direction: int) -> tuple[int, int]:
    return x + _DIRECTIONS[direction][0], y + _DIRECTIONS[direction][1]


def _unseen(world: ObservedRoom, bounds: tuple[int, int, int, int], x: int, y: int, direction: int, away: int) -> bool:
    """Whether a cell of the room is unseen that lies `away` cells or more from (x, y) in a direction."""
    low_x, low_y, high_x, high_y = bounds
    if direction == 0:
        low_x = max(low_x, x + away)
    elif direction == 1:
        low_y = max(low_y, y + away)
    elif direction == 2:
        high_x = min(high_x, x - away)
    else:
        high_y = min(high_y, y - away)
    if low_y > high_y:
        return False
    height = world.geometry.height
    return any(
        world.ids.find(UNSEEN, i * height + low_y, i * height + high_y + 1) >= 0 for i in range(low_x, high_x + 1)
    )


def _bounds(world: ObservedRoom) -> tuple[int, int, int, int]:
    """Of the room, (x, y) of two corners: those of the array, but for walls that were seen in a run.

    A run is two cells of wall or door side by side. The released code looks for the first cell of a run neither in the
    outermost columns nor in the outermost rows, so an eastern wall of which only the cells in rows 0 and 1 were seen
    counts as unseen, and so does a southern wall seen in columns 0 and 1 alone. For the west and the north it takes the
    array's own bounds: rooms stand in its corner.
    """
    width, height = world.geometry.width, world.geometry.height
    solid = bytes(kind in (WALL, DOOR) for kind in world.ids)
    inner_x, inner_y = range(1, width - 1), range(1, height - 1)
    upright = (i for i in inner_x if b"\1\1" in solid[i * height + 1 : (i + 1) * height])
    level = (j for j in inner_y if b"\1\1" in solid[height + j :: height])
    return 0, 0, next(upright, width - 1), next(level, height - 1)
