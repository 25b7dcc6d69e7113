"""What an agent of MiniGrid sees, in sentences.

The words, their order and what is left out are those of BabyAI-Text (Carta et al. 2023, arXiv 2302.02662), so that
models trained there read the same here; the article is always "a", as there.
"""

from __future__ import annotations

import numpy as np

TYPES = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
DOOR_STATES = ("open", "closed", "locked")
_UNSEEN, _EMPTY, _WALL = TYPES.index("unseen"), TYPES.index("empty"), TYPES.index("wall")


def sentences(image: np.ndarray) -> list[str]:
    """What is carried, the nearest walls ahead, left and right, and every object in view, as sentences.

    Args:
        image: [width, height, 3] codes (type, colour, state); x from left to right, y from far to near. The agent
            stands in the middle of the nearest row and looks away from it.
    """
    width, height = image.shape[:2]
    ax, ay = width // 2, height - 1
    said = []
    if thing := carried(image):
        said.append(f"You carry a {thing}")
    ways = {
        "forward": [(ax, y) for y in range(ay - 1, -1, -1)],
        "left": [(x, ay) for x in range(ax - 1, -1, -1)],
        "right": [(x, ay) for x in range(ax + 1, width)],
    }
    for way, cells in ways.items():
        distance = _wall(image, cells)
        if distance:
            said.append(f"You see a wall {_steps(distance)} {way}")
    for x in range(width):
        for y in range(height):
            kind = int(image[x, y, 0])
            if kind in (_UNSEEN, _EMPTY, _WALL) or (x, y) == (ax, ay):
                continue
            said.append(f"You see a {_name(image[x, y])} {_place(x - ax, ay - y)}")
    return said


def carried(image: np.ndarray) -> str:
    """What the agent holds, `red key`; empty if nothing. The view shows it in the agent's own cell."""
    width, height = image.shape[:2]
    cell = image[width // 2, height - 1]
    kind = TYPES[int(cell[0])]
    return f"{COLOURS[int(cell[1])]} {kind}" if kind in ("key", "ball", "box") else ""


def _wall(image: np.ndarray, cells: list[tuple[int, int]]) -> int:
    """Steps to the wall along `cells`; 0 if there is none, or something before it."""
    for distance, (x, y) in enumerate(cells, start=1):
        kind = int(image[x, y, 0])
        if kind not in (_UNSEEN, _EMPTY):
            return distance if kind == _WALL else 0
    return 0


def _name(cell: np.ndarray) -> str:
    kind, colour, state = (int(number) for number in cell)
    name = f"{COLOURS[colour]} {TYPES[kind]}"
    return f"{DOOR_STATES[state]} {name}" if TYPES[kind] == "door" else name


def _place(right: int, forward: int) -> str:
    parts = []
    if right:
        parts.append(f"{_steps(abs(right))} {'right' if right > 0 else 'left'}")
    if forward or not right:
        parts.append(f"{_steps(forward)} forward")
    return " and ".join(parts)


def _steps(n: int) -> str:
    return f"{n} step" if n == 1 else f"{n} steps"
