"""Skills and plan parser of LLM4Teach (Zhou et al., IJCAI 2024, arXiv 2311.13373) as released, including its errors.

The skills walk into lava, go to the last known position of an object, take actions without effect, explore along walls,
and wait in unknown steps. They are used only for comparisons with published numbers.

The only difference from the released code is the choice among shortest paths of equal length. There it depends on the
order of a Python hash table of poses; here steps forward precede turns (`llmrl.teachers.rooms.observed_room`).
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
    get_shortest_paths,
)

WAIT_SKILL = "wait"
_ACTION_BY_SKILL = {"pick up": PICK_UP, "drop": DROP, "open": TOGGLE, WAIT_SKILL: DONE}
_SKILL_NAMES = ("explore", "go to", "pick up", "drop", "open")
"""Names of skills in order of priority: the skill of a text is the first of these that the text contains."""


class PublishedScene:
    """State of a room and the last known positions of its objects.

    Args:
        room: the room as observed.
        sentence: description of the state.
        last_seen_cells: name of an object -> cell in which it was last seen in this episode.
        view_size: width and height of the agent's view, in cells, odd.
    """

    def __init__(self, room: ObservedRoom, sentence: str, last_seen_cells: Mapping[str, int], view_size: int) -> None:
        self.room, self.sentence, self.last_seen_cells, self.view_size = room, sentence, last_seen_cells, view_size
        self._action_by_step: dict[PlanStep, int | None] = {}

    def act(self, step: PlanStep) -> int | None:
        if step not in self._action_by_step:
            self._action_by_step[step] = self._choose_action(step)
        return self._action_by_step[step]

    def _choose_action(self, step: PlanStep) -> int | None:
        if step.skill == "explore":
            return explore(self.room, self.view_size)
        if step.skill != WAIT_SKILL and step.object not in self.last_seen_cells:
            return DONE
        if step.skill == "go to":
            walkable = self.room.compute_walkable(include_lava=True)
            paths = get_shortest_paths(self.room.geometry, walkable, self.last_seen_cells[step.object])
            # Without a path the skill returns an action without effect, so that later steps are not used.
            return DONE if paths.distance(self.room.pose) is None else paths.action(self.room.pose)
        return _ACTION_BY_SKILL[step.skill]


_ACTION_PATTERN = re.compile(r"actions?:\s*\{([\w\s<>,]*)\}", re.IGNORECASE)


def extract_plan_text(reply: str) -> str:
    """Return the part of a model's reply that the released code parses as the plan.

    It is the text in the first braces after `Action:` or `Actions:`, if that contains only words, angle brackets and
    commas; else the whole reply, so that no reply is invalid.

    >>> extract_plan_text("3. Act. Action: {go to <key>, pick up <key>}")
    'go to <key>, pick up <key>'
    """
    match = _ACTION_PATTERN.search(reply)
    return reply if match is None else match.group(1)


def parse_leniently(text: str, object_names: Sequence[str], match_last_two_words: bool = False) -> Plan:
    """Return a plan by a search for key words: no text is invalid, and unknown steps become waiting.

    Args:
        text: steps separated by commas.
        object_names: names in order of priority: the object of a step is the first of these that the step contains.
        match_last_two_words: whether the object is searched only in the last two words of a step.
    """
    plan = []
    for step_text in text.lower().replace("<", " ").replace(">", " ").split(","):
        step_words = " ".join(step_text.split())
        skill = next((skill for skill in _SKILL_NAMES if skill in step_words), WAIT_SKILL)
        object_text = " ".join(step_words.split()[-2:]) if match_last_two_words else step_words
        target = next((name for name in object_names if name in object_text), "")
        if skill == "explore":
            plan.append(PlanStep(skill))
        else:
            plan.append(PlanStep(skill, target) if target and skill != WAIT_SKILL else PlanStep(WAIT_SKILL))
    return tuple(plan)


def explore(room: ObservedRoom, view_size: int) -> int | None:
    """Return the action forward while there are unseen cells ahead, else a turn to a side with unseen cells.

    None: there are none. The agent first turns away from a key, ball or box in front. Ahead, left, right and behind are
    the parts of the room at least `view_size // 2 + 1` cells away in a direction.
    """
    geometry = room.geometry
    front, left = room.front_cell, geometry.ahead[geometry.left[room.pose]]
    if front >= 0 and room.object_ids[front] in (KEY, BALL, BOX):
        return RIGHT if left >= 0 and room.object_ids[left] in (WALL, DOOR, KEY, BALL, BOX) else LEFT
    bounds, direction, distance = _find_bounds(room), room.pose & 3, view_size // 2 + 1
    x, y = divmod(room.cell, geometry.height)
    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    # Position, direction relative to the heading, and action; as in released code, the last check starts a cell ahead.
    checks = ((x, y, 0, FORWARD), (x, y, -1, LEFT), (x, y, 1, RIGHT), (x + dx, y + dy, 2, LEFT))
    for i, j, turn, action in checks:
        if _has_unseen_cell(room, bounds, i, j, (direction + turn) & 3, distance):
            return action
    return None


def _has_unseen_cell(
    room: ObservedRoom, bounds: tuple[int, int, int, int], x: int, y: int, direction: int, distance: int
) -> bool:
    """Return whether a cell of the room is unseen, `distance` or more cells from (x, y) in a direction."""
    low_x, low_y, high_x, high_y = bounds
    if direction == 0:
        low_x = max(low_x, x + distance)
    elif direction == 1:
        low_y = max(low_y, y + distance)
    elif direction == 2:
        high_x = min(high_x, x - distance)
    else:
        high_y = min(high_y, y - distance)
    if low_y > high_y:
        return False
    height, find = room.geometry.height, room.object_ids.find
    return any(find(UNSEEN, i * height + low_y, i * height + high_y + 1) >= 0 for i in range(low_x, high_x + 1))


def _find_bounds(room: ObservedRoom) -> tuple[int, int, int, int]:
    """Return (x, y) of two opposite corners of the room, which are corners of the grid unless walls were seen.

    The eastern and southern walls are recognized by two adjacent cells with a wall or door. As in the released code,
    the first cell of such a pair must not be in row 0 (eastern wall) or column 0 (southern wall). In the west and north
    the room ends at the edge of the grid.
    """
    width, height = room.geometry.width, room.geometry.height
    is_solid = bytes(object_id in (WALL, DOOR) for object_id in room.object_ids)
    inner_x, inner_y = range(1, width - 1), range(1, height - 1)
    wall_columns = (i for i in inner_x if b"\1\1" in is_solid[i * height + 1 : (i + 1) * height])
    wall_rows = (j for j in inner_y if b"\1\1" in is_solid[height + j :: height])
    return 0, 0, next(wall_columns, width - 1), next(wall_rows, height - 1)
