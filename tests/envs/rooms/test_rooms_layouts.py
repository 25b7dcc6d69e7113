"""Layouts follow the published rules and are solvable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.grid_world import BLUE, DOOR, EMPTY, GRAY, KEY, LAVA, LOCKED, RED, STEP_OFFSETS, WALL, RoomLayout
from llmrl.envs.rooms.tasks import (
    ColoredDoorKey,
    DoorKey,
    LavaDoorKey,
    OneRoom,
    RoomTask,
    SimpleDoorKey,
    TwoDoor,
    UnlockPickup,
)
from room_games import make_world, solve

ROOMS = {"simple": SimpleDoorKey, "lava": LavaDoorKey, "colored": ColoredDoorKey, "two": TwoDoor}


def find_objects(layout: RoomLayout, kind: int) -> list[tuple[int, int]]:
    return [(int(x), int(y)) for x, y in np.argwhere(layout.cells[..., 0] == kind)]


def measure_size(layout: RoomLayout) -> tuple[int, int]:
    """Return width and height of the room, to which its walls and doors extend from the corner."""
    x, y = np.nonzero(np.isin(layout.cells[..., 0], (WALL, DOOR)))
    return int(x.max()) + 1, int(y.max()) + 1


def fronts(layout: RoomLayout) -> list[tuple[int, int]]:
    """Return the cells inside the room next to its doors."""
    w, h = measure_size(layout)
    neighbors = [(x + dx, y + dy) for x, y in find_objects(layout, DOOR) for dx, dy in STEP_OFFSETS.tolist()]
    return [(x, y) for x, y in neighbors if 0 < x < w - 1 and 0 < y < h - 1]


@settings(max_examples=150)
@given(kind=st.sampled_from(sorted(ROOMS)), low=st.integers(4, 9), extra=st.integers(0, 5), seed=st.integers(0, 10**6))
def test_rooms_follow_rules(kind: str, low: int, extra: int, seed: int) -> None:
    task: OneRoom = ROOMS[kind](low, low + extra)
    layout = task.sample_layout(np.random.default_rng(seed))
    cells, (w, h) = layout.cells, measure_size(layout)
    assert cells.shape == (low + extra, low + extra, 3)
    assert low <= w <= low + extra
    assert low <= h <= low + extra
    outside = np.ones(cells.shape[:2], dtype=bool)
    outside[:w, :h] = False
    assert (cells[outside] == (EMPTY, 0, 0)).all()
    rim = ~outside
    rim[1 : w - 1, 1 : h - 1] = False
    assert np.isin(cells[rim][:, 0], (WALL, DOOR)).all()
    assert not np.isin(cells[~rim][:, 0], (WALL, DOOR)).any()
    assert (cells[cells[..., 0] == WALL] == (WALL, GRAY, 0)).all()

    doors, keys, lava = find_objects(layout, DOOR), find_objects(layout, KEY), find_objects(layout, LAVA)
    colors = {int(cells[cell][1]) for cell in doors}
    assert all(cells[door][2] == LOCKED for door in doors)
    assert len(colors) == 1
    assert len(fronts(layout)) == len(doors) == (2 if kind == "two" else 1)
    key_colors = sorted(int(cells[key][1]) for key in keys)
    assert key_colors == ([RED, BLUE] if kind == "colored" else sorted(colors))
    assert len(lava) == (kind == "lava")
    assert not set(lava) & set(fronts(layout))
    if kind == "colored":
        assert colors == {BLUE}
        assert not set(keys) & set(fronts(layout))
    if kind == "two":
        (x1, y1), (x2, y2) = doors
        assert {x1, x2} == {0, w - 1} or {y1, y2} == {0, h - 1}
        assert keys[0][0] in (w // 2 - 1, w // 2)
        assert keys[0][1] in (h // 2 - 1, h // 2)
    x, y = layout.position
    assert 0 < x < w - 1
    assert 0 < y < h - 1
    assert tuple(cells[x, y]) == (EMPTY, 0, 0)
    assert layout.heading in range(4)


def test_all_layouts_are_reachable() -> None:
    rng = np.random.default_rng(0)
    layouts = [SimpleDoorKey().sample_layout(rng) for _ in range(1500)]
    assert {measure_size(layout) for layout in layouts} == {(w, h) for w in range(5, 11) for h in range(5, 11)}
    assert {layout.heading for layout in layouts} == {0, 1, 2, 3}
    assert {int(layout.cells[find_objects(layout, DOOR)[0]][1]) for layout in layouts} == set(range(6))
    small = [layout for layout in layouts if measure_size(layout) == (5, 5)]
    assert len({find_objects(layout, DOOR)[0] for layout in small}) == 12
    assert (
        {layout.position for layout in small}
        == {find_objects(layout, KEY)[0] for layout in small}
        == set(np.ndindex(5, 5)) - {cell for cell in np.ndindex(5, 5) if 0 in cell or 4 in cell}
    )
    doors = [find_objects(TwoDoor().sample_layout(rng), DOOR) for _ in range(50)]
    assert {first_door[0] == 0 and last_door[0] == 19 for first_door, last_door in doors} == {True, False}


@pytest.mark.parametrize(
    ("task", "layouts"),
    [
        (SimpleDoorKey(4, 10), 25),
        (LavaDoorKey(4, 5), 60),
        (LavaDoorKey(), 15),
        (ColoredDoorKey(4, 8), 25),
        (ColoredDoorKey(5, 5, n_keys=8), 10),
        (TwoDoor(), 2),
        (DoorKey(5), 10),
        (DoorKey(8), 10),
        (UnlockPickup(), 5),
    ],
    ids=lambda value: value.name if isinstance(value, RoomTask) else "",
)
def test_layouts_are_solvable_within_horizon(task: RoomTask, layouts: int) -> None:
    for k in range(layouts):
        plan = solve(make_world(task.sample_layout(Seeds(3).numpy(k))), task)
        assert plan is not None
        assert len(plan) < task.horizon


def test_full_room_keys() -> None:
    layout = ColoredDoorKey(5, 5, n_keys=8).sample_layout(np.random.default_rng(0))
    assert len(find_objects(layout, KEY)) == 8
    assert layout.position == fronts(layout)[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimpleDoorKey(3, 5), "min_size=3.*4"),
        (lambda: LavaDoorKey(6, 5), "max_size=5.*min_size=6"),
        (lambda: ColoredDoorKey(5, 10, n_keys=9), "colored_doorkey.*min_size=5.*6"),
        (lambda: DoorKey(4), "size=4"),
    ],
)
def test_rejects_impossible_rooms(make, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
