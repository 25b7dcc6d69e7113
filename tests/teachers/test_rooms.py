"""Descriptions of rooms, and skills in them."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_rooms import draw
from llmrl.teachers.plans import PlanStep
from llmrl.teachers.rooms.observed_room import (
    COLORS,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    KEY,
    LEFT,
    OPEN,
    PICK_UP,
    RIGHT,
    TOGGLE,
    UNSEEN,
    WALL,
    ShortestPaths,
    get_geometry,
)
from llmrl.teachers.teacher_factory import find_domain

DONE = 6
EXPLORE = PlanStep("explore")


def scene(task, grid, memory=None, **options):
    return find_domain(task, **options).scene({"grid": grid}, 0, memory)


def colored(grid, **cells):
    """With the colors of some cells, red_3_1=KEY and so on: kind of the object at (3, 1)."""
    for name, kind in cells.items():
        color, x, y = name.split("_")
        grid[int(x), int(y), :3] = (kind, COLORS.index(color), 2 if kind == DOOR else 0)
    return grid


def carrying(grid, kind=KEY, color="grey"):
    x, y = np.argwhere(grid[..., 3] != 4)[0]
    grid[x, y, :2] = (kind, COLORS.index(color))
    return grid


def open_doors(grid):
    grid[..., 2][grid[..., 0] == DOOR] = OPEN
    return grid


PLAIN = ("#####", "#>..#", "#...#", "#..K#", "##D##")


class TestSentences:
    @pytest.mark.parametrize("parity", [False, True])
    @pytest.mark.parametrize("task", ["simple_doorkey", "lava_doorkey"])
    def test_single_door(self, task, parity):
        def sentence(grid):
            domain = find_domain(task, parity)
            return domain.scene({"grid": grid}, 0, np.zeros(domain.memory_size)).sentence

        assert sentence(draw("????", "?>.?", "????")) == "Agent sees <nothing>, holds <nothing>."
        assert sentence(draw(*PLAIN)) == "Agent sees <key>, <door>, holds <nothing>."
        assert sentence(carrying(draw("#####", "#>..#", "#D###"))) == "Agent sees <door>, holds <key>."
        assert sentence(carrying(draw("?>.?"))) == "Agent sees <nothing>, holds <key>."
        # Keys come first, wherever they are.
        assert sentence(draw("#D###", "#>..#", "#..K#")) == "Agent sees <key>, <door>, holds <nothing>."

    def test_description_order_is_fixed(self):
        """By name; as published in the order of x, then y, so that one state is told in two ways."""
        room = ("#####", "#>..#", "#...#", "#####")
        first = colored(draw(*room), blue_3_1=KEY, red_2_2=KEY, blue_4_1=DOOR)
        second = colored(draw(*room), red_3_1=KEY, blue_2_2=KEY, blue_4_1=DOOR)
        description = "Agent sees <blue key>, <red key>, <blue door>, holds <nothing>."
        assert scene("colored_doorkey", first).sentence == scene("colored_doorkey", second).sentence == description
        descriptions = [
            scene(
                "colored_doorkey", x, np.zeros(find_domain("colored_doorkey", True).memory_size), parity=True
            ).sentence
            for x in (first, second)
        ]
        assert descriptions == [description.replace("<blue key>, <red key>", "<red key>, <blue key>"), description]
        grid = second
        assert scene("colored_doorkey", carrying(grid, KEY, "red")).sentence.endswith("holds <red key>.")

    def test_duplicate_names_are_merged(self):
        grid = colored(draw("#####", "#>..#", "#####"), red_3_1=KEY, red_2_1=KEY)
        assert scene("colored_doorkey", grid).sentence == "Agent sees <red key>, holds <nothing>."

    def test_two_doors_keep_numbers(self):
        rows = ("#######", "D>...?D", "#######")
        half = (rows[0], rows[1][:-2] + "??", rows[2])
        second = (rows[0], "?" + rows[1][1:], rows[2])
        assert scene("two_door", draw(*half)).sentence == "Agent sees <door1>, holds <nothing>."
        assert scene("two_door", draw(*second)).sentence == "Agent sees <door2>, holds <nothing>."
        assert scene("two_door", draw(*rows)).sentence == "Agent sees <door1>, <door2>, holds <nothing>."
        # As published the only one that is seen is the first, and its number changes when the other is found.
        places = []
        memory = np.zeros(6)
        domain = find_domain("two_door", parity=True)
        for grid in (draw(*second), draw(*rows)):
            places.append(domain.scene({"grid": grid}, 0, memory).last_seen_cells)
        assert places[0] == {"door1": 19} and places[1] == {"door1": 1, "door2": 19}

    def test_lava_is_not_described(self):
        grid = draw("#####", "#>.~#", "#####")
        assert scene("lava_doorkey", grid).sentence == "Agent sees <nothing>, holds <nothing>."

    def test_open_door_description(self):
        rows = ("#######", "#>.D.B#", "#######")
        assert scene("unlock_pickup", draw(*rows)).sentence == "Agent sees <door>, <box>, holds <nothing>."
        assert (
            scene("unlock_pickup", open_doors(draw(*rows))).sentence
            == "Agent sees <open door>, <box>, holds <nothing>."
        )

    def test_grid_lacking_agent_raises(self):
        with pytest.raises(ValueError, match="no agent"):
            scene("simple_doorkey", draw("###", "#.#", "###"))


def act(grid, skill, object_="", task="simple_doorkey"):
    return scene(task, grid).act(PlanStep(skill, object_))


class TestSkills:
    def test_go_to_uses_shortest_path(self):
        assert act(draw("#####", "#>.K#", "#####"), "go to", "key") == FORWARD
        assert act(draw("#####", "#K.>#", "#####"), "go to", "key") in (LEFT, RIGHT)
        assert act(draw("#####", "#v..#", "#..K#", "#####"), "go to", "key") == FORWARD
        assert act(draw("#####", "#^..#", "#..K#", "#####"), "go to", "key") in (LEFT, RIGHT)
        assert act(draw("#####", "#..^#", "#..K#", "#####"), "go to", "key") in (LEFT, RIGHT)

    def test_go_to_ends_facing_object(self):
        assert act(draw("#####", "#.>K#", "#####"), "go to", "key") is None
        assert act(draw("#####", "#.^K#", "#####"), "go to", "key") == RIGHT

    def test_go_to_missing_object(self):
        assert act(draw("#####", "#.>.#", "#####"), "go to", "key") is None

    def test_go_to_goes_round_lava(self):
        assert act(draw("#####", "#>~K#", "#...#", "#####"), "go to", "key") == RIGHT
        parity_scene = scene("lava_doorkey", draw("#####", "#>~K#", "#...#", "#####"), np.zeros(4), parity=True)
        assert parity_scene.act(PlanStep("go to", "key")) == FORWARD

    def test_go_to_explores_when_path_is_missing(self):
        # The key is seen behind a cell of lava, with the way round it unseen.
        assert act(draw("#####", "#>~K#", "#???#", "?????"), "go to", "key") == RIGHT
        parity_scene = scene("lava_doorkey", draw("#####", "#>#K#", "#???#"), np.zeros(4), parity=True)
        assert parity_scene.act(PlanStep("go to", "key")) == DONE

    def test_go_to_nearest_duplicate(self):
        grid = colored(draw("#######", "#...>.#", "#.....#", "#######"), red_1_1=KEY, red_4_2=KEY)
        assert act(grid, "go to", "red key", "colored_doorkey") == RIGHT
        keys = colored(draw("########", "#....>.#", "########"), red_1_1=KEY, red_6_1=KEY)
        assert act(keys, "go to", "red key", "colored_doorkey") is None

    def test_pick_up(self):
        assert act(draw("#####", "#.>K#", "#####"), "pick up", "key") == PICK_UP
        assert act(draw("#####", "#>.K#", "#####"), "pick up", "key") is None
        assert act(carrying(draw("#####", "#.>K#", "#####")), "pick up", "key") is None
        grid = colored(draw("#####", "#.>.#", "#####"), red_3_1=KEY)
        assert act(grid, "pick up", "blue key", "colored_doorkey") is None
        parity_scene = scene("simple_doorkey", draw("#####", "#>.K#", "#####"), np.zeros(4), parity=True)
        assert parity_scene.act(PlanStep("pick up", "key")) == PICK_UP

    def test_open(self):
        def door(state, color="grey", held="grey"):
            grid = colored(draw("###", "#>.", "###"), **{f"{color}_2_1": DOOR})
            grid[2, 1, 2] = state
            return scene("simple_doorkey", carrying(grid, KEY, held) if held else grid).act(PlanStep("open", "door"))

        assert door(2) == TOGGLE  # locked
        assert door(2, held="red") is None
        assert door(2, held=None) is None
        assert door(1, held=None) == TOGGLE  # only closed
        assert door(0) is None  # open: it would be closed
        assert act(carrying(draw("####", "#>.D", "####")), "open", "door") is None

    def test_drop(self):
        assert act(carrying(draw("#####", "#>..#", "#####")), "drop", "key") == DROP
        assert act(draw("#####", "#>..#", "#####"), "drop", "key") is None
        # Against a wall: turn to where there is space.
        assert act(carrying(draw("#####", "#^..#", "#####")), "drop", "key") == RIGHT
        # Not in front of a door: go on first.
        grid = carrying(draw("##D##", "#>..#", "#...#", "#####"))
        assert act(grid, "drop", "key") == FORWARD
        # Only if there is no other place.
        assert act(carrying(draw("##D#", "#>.#", "####")), "drop", "key") == DROP

    def test_drop_outside_doorway(self):
        """The key would block the way; the agent hides the open door in which it stands."""
        grid = carrying(draw("#######", "#..#..#", "#..>..#", "#..#..#", "#######"))
        assert act(grid, "drop", "key", "unlock_pickup") == FORWARD

    def test_invalid_skills_have_no_effect(self):
        assert act(draw("#>K#"), "wait") is None


class TestExploring:
    @pytest.mark.parametrize(
        ("rows", "action"),
        [
            (("?????", "?>..?", "?????"), FORWARD),
            (("######", "#>..??", "######"), FORWARD),
            (("######", "??..>#", "######"), LEFT),
            (("??????", "#.v..#", "#....#", "######"), LEFT),
            (("??????", "#.v.D?", "#....#", "######"), LEFT),
        ],
    )
    def test_explore_approaches_unseen_cells(self, rows, action):
        assert act(draw(*rows), "explore") == action

    def test_explore_ends_when_map_is_complete(self):
        assert act(draw(*PLAIN), "explore") is None
        # Corners of the room and what is outside it need not be seen.
        assert act(draw("?###?", "#>..#", "#...#", "?###?", size=(8, 8)), "explore") is None

    def test_explore_avoids_lava(self):
        assert act(draw("?????", "#>~.?", "#...?", "?????"), "explore") != FORWARD

    def test_closed_doors_block_view(self):
        rows = ("#####??", "#>.D???", "#####??")
        assert act(draw(*rows), "explore", task="unlock_pickup") is None
        assert act(open_doors(draw(*rows)), "explore", task="unlock_pickup") == FORWARD


def brute_force(geometry_, walkable, target, start):
    """Fewest actions from `start` to a pose that faces `target`, forwards from the start."""
    height = geometry_.height
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    is_inside = lambda x, y: 0 <= x < geometry_.width and 0 <= y < height  # noqa: E731
    x, y = divmod(start >> 2, height)
    queue, visited = deque([(x, y, start & 3, 0)]), {(x, y, start & 3)}
    while queue:
        x, y, d, distance = queue.popleft()
        fx, fy = x + moves[d][0], y + moves[d][1]
        if (fx, fy) == divmod(target, height):
            return distance
        following = [(x, y, (d + 1) % 4), (x, y, (d - 1) % 4)]
        if is_inside(fx, fy) and walkable[fx * height + fy]:
            following.append((fx, fy, d))
        for pose in following:
            if pose not in visited:
                visited.add(pose)
                queue.append((*pose, distance + 1))
    return None


@settings(max_examples=150)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_paths_against_brute_force(width, height, data):
    n = width * height
    walkable = bytes(data.draw(st.lists(st.sampled_from([0, 1, 1]), min_size=n, max_size=n)))
    target = data.draw(st.integers(0, n - 1))
    walkable = walkable[:target] + b"\0" + walkable[target + 1 :]
    places = get_geometry(width, height)
    paths = ShortestPaths(places, walkable, target)
    for cell in np.flatnonzero(np.frombuffer(walkable, np.uint8)).tolist():
        for pose in range(4 * cell, 4 * cell + 4):
            reference = brute_force(places, walkable, target, pose)
            assert paths.distance(pose) == reference
            action = paths.action(pose)
            if not reference:
                assert action is None
                continue
            next_pose = 4 * places.ahead[pose] + (pose & 3)
            after = {FORWARD: next_pose, LEFT: places.left[pose], RIGHT: places.right[pose]}
            shortest = [turn for turn, pose in after.items() if paths.distance(pose) == reference - 1]
            if places.ahead[pose] < 0 or not walkable[places.ahead[pose]]:
                shortest = [turn for turn in shortest if turn != FORWARD]
            # Of several, always the same one: forward before left before right.
            assert action == shortest[0]


class TestPaperVariant:
    def test_go_to_remembers_key_location(self):
        """A key that was picked up keeps its old place until it is seen again."""
        domain, memory = find_domain("simple_doorkey", parity=True), np.zeros(4)
        domain.scene({"grid": draw("######", "#>.K.#", "######")}, 0, memory)
        assert memory.tolist() == [4, 2, 0, 0]
        held = domain.scene({"grid": carrying(draw("######", "#<...#", "######"))}, 0, memory)
        assert held.act(PlanStep("go to", "key")) in (LEFT, RIGHT)
        assert memory.tolist() == [4, 2, 0, 0]

    def test_scenes_depend_on_memory(self):
        domain, grid = find_domain("simple_doorkey", parity=True), carrying(draw("######", "#<...#", "######"))
        acts = []
        for start in ([0, 0, 0, 0], [5, 2, 0, 0], [0, 0, 0, 0]):
            memory = np.array(start, dtype=float)
            acts.append(domain.scene({"grid": grid}, 0, memory).act(PlanStep("go to", "key")))
            assert memory.tolist() == start
        assert acts[0] == acts[2] == DONE and acts[1] in (LEFT, RIGHT)

    @pytest.mark.parametrize(
        ("text", "plan"),
        [
            ("go to <door>, open <door> with <key>", [("go to", "door"), ("open", "door")]),
            ("go to <door>, pick up <handle>, use <key>", [("go to", "door"), ("wait", ""), ("wait", "")]),
            ("explore, GO TO key", [("explore", ""), ("go to", "key")]),
            ("nonsense", [("wait", "")]),
        ],
    )
    def test_the_lenient_parser(self, text, plan):
        domain = find_domain("simple_doorkey", parity=True)
        assert domain.read_plan(text, "") == tuple(PlanStep(*step) for step in plan)

    def test_the_last_two_words(self):
        domain = find_domain("colored_doorkey", parity=True)
        plan = domain.read_plan("go to <blue door>, open <blue door> with <blue key>, go to <east>", "")
        assert plan == (PlanStep("go to", "blue door"), PlanStep("open", "blue key"), PlanStep("wait"))

    def test_unseen_objects_make_agent_wait(self):
        scene_ = scene("simple_doorkey", draw("#####", "#>..#", "#####"), np.zeros(4), parity=True)
        assert [scene_.act(PlanStep(skill, "key")) for skill in ("go to", "pick up", "drop")] == [DONE] * 3
        assert scene_.act(PlanStep("wait")) == DONE

    @pytest.mark.parametrize(
        ("rows", "action"),
        [
            (("??????", "??.>.?", "??????"), FORWARD),
            (("????##", "????.#", "?.>..#", "######"), LEFT),
            (("######", "#..>.#", "#....#", "?????#", "?????#"), RIGHT),
            (("####", "?.>#", "####"), LEFT),  # what is behind
            (("#####", "#>K.?", "#...?"), RIGHT),  # a wall on the left of an agent before a key
            (PLAIN, None),
            (("?###??", "?.>#??", "??????"), FORWARD),  # rows 0 and 1 alone say nothing of an eastern wall
            (("?.>#??", "?..#??", "??????"), FORWARD),
            (("??????", "?.>#??", "?..#??", "??..??"), RIGHT),
            (("#?????", "#v????", "##????", "??????"), FORWARD),  # nor columns 0 and 1 of a southern one
            (("???...", "?v....", "?##...", "??????"), LEFT),
        ],
    )
    def test_exploring_half_planes(self, rows, action):
        scene_ = scene("simple_doorkey", draw(*rows), np.zeros(4), parity=True)
        assert scene_.act(EXPLORE) == action

    @settings(max_examples=300)
    @given(st.data())
    def test_explore_matches_brute_force(self, data):
        """Rooms in the corner of a larger array, of which any cells were seen."""
        side, width, height = 8, data.draw(st.integers(4, 8)), data.draw(st.integers(4, 8))
        grid = np.zeros((side, side, 4), dtype=np.uint8)
        for x, y in np.ndindex(width, height):
            grid[x, y, 0] = WALL if x in (0, width - 1) or y in (0, height - 1) else EMPTY
        visible = np.array(data.draw(st.lists(st.booleans(), min_size=side**2, max_size=side**2))).reshape(side, side)
        grid[~visible] = UNSEEN
        x, y = data.draw(st.integers(1, width - 2)), data.draw(st.integers(1, height - 2))
        direction = data.draw(st.integers(0, 3))
        grid[..., 3] = 4
        grid[x, y] = (EMPTY, 0, 0, direction)
        assert scene("simple_doorkey", grid, np.zeros(4), parity=True).act(EXPLORE) == explored(
            grid[..., 0], x, y, direction
        )


def explored(kinds, x, y, direction):
    """Return the action of the released explorer.

    It finds bounds of the room by a look at each inner cell, then counts unseen cells.
    """
    side = len(kinds)
    inner = [(i, j) for i in range(1, side - 1) for j in range(1, side - 1) if kinds[i, j] == WALL]
    east = next((i for i, j in inner if kinds[i, j + 1] == WALL), side - 1)
    south = next((j for i, j in inner if kinds[i + 1, j] == WALL), side - 1)

    def unseen(direction, x, y):
        unexplored = {
            0: lambda i, j: i >= x + 2, 1: lambda i, j: j >= y + 2,
            2: lambda i, j: i <= x - 2, 3: lambda i, j: j <= y - 2,
        }[direction]  # fmt: skip
        cells = ((i, j) for i in range(east + 1) for j in range(south + 1))
        return any(kinds[cell] == UNSEEN for cell in cells if unexplored(*cell))

    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    for turn, action in ((0, FORWARD), (3, LEFT), (1, RIGHT)):
        if unseen((direction + turn) % 4, x, y):
            return action
    return LEFT if unseen((direction + 2) % 4, x + dx, y + dy) else None


def test_scene_cache_is_bounded(monkeypatch):
    from llmrl.teachers.rooms import room_domains

    monkeypatch.setattr(room_domains, "MAX_CACHED_SCENES", 2)
    domain = find_domain("simple_doorkey")
    grids = [draw("#####", row, "#####") for row in ("#>..#", "#.>.#", "#..>#")]
    first = domain.scene({"grid": grids[0]}, 0, None)
    assert domain.scene({"grid": grids[0].copy()}, 0, None) is first
    for grid in grids:
        domain.scene({"grid": grid}, 0, None)
    assert domain.scene({"grid": grids[0]}, 0, None) is not first
    assert len(domain._scenes) == 2
