"""What is said of rooms, and what skills do in them."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drawn_rooms import draw
from llmrl.teachers.domain_registry import find_domain
from llmrl.teachers.plans import PlanStep
from llmrl.teachers.rooms.observed_room import (
    COLOURS,
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
    geometry,
)
from llmrl.teachers.rooms.paths import PathsTo
from llmrl.teachers.rooms.room_domains import LavaDoorKeyDomain

DONE = 6
EXPLORE = PlanStep("explore")


def scene(task, grid, memory=None, **options):
    return find_domain(task, **options).scene({"grid": grid}, 0, memory)


def coloured(grid, **cells):
    """With the colours of some cells, red_3_1=KEY and so on: kind of the object at (3, 1)."""
    for name, kind in cells.items():
        colour, x, y = name.split("_")
        grid[int(x), int(y), :3] = (kind, COLOURS.index(colour), 2 if kind == DOOR else 0)
    return grid


def carrying(grid, kind=KEY, colour="grey"):
    x, y = np.argwhere(grid[..., 3] != 4)[0]
    grid[x, y, :2] = (kind, COLOURS.index(colour))
    return grid


def opened(grid):
    grid[..., 2][grid[..., 0] == DOOR] = OPEN
    return grid


PLAIN = ("#####", "#>..#", "#...#", "#..K#", "##D##")


class TestSentences:
    @pytest.mark.parametrize("parity", [False, True])
    @pytest.mark.parametrize("task", ["simple_doorkey", "lava_doorkey"])
    def test_one_door(self, task, parity):
        def said(grid):
            domain = find_domain(task, parity)
            return domain.scene({"grid": grid}, 0, np.zeros(domain.memory)).sentence

        assert said(draw("????", "?>.?", "????")) == "Agent sees <nothing>, holds <nothing>."
        assert said(draw(*PLAIN)) == "Agent sees <key>, <door>, holds <nothing>."
        assert said(carrying(draw("#####", "#>..#", "#D###"))) == "Agent sees <door>, holds <key>."
        assert said(carrying(draw("?>.?"))) == "Agent sees <nothing>, holds <key>."
        # Keys come first, wherever they are.
        assert said(draw("#D###", "#>..#", "#..K#")) == "Agent sees <key>, <door>, holds <nothing>."

    def test_one_order_whatever_lies_where(self):
        """By name; as published in the order of x, then y, so that one state is told in two ways."""
        room = ("#####", "#>..#", "#...#", "#####")
        one = coloured(draw(*room), blue_3_1=KEY, red_2_2=KEY, blue_4_1=DOOR)
        other = coloured(draw(*room), red_3_1=KEY, blue_2_2=KEY, blue_4_1=DOOR)
        told = "Agent sees <blue key>, <red key>, <blue door>, holds <nothing>."
        assert scene("colored_doorkey", one).sentence == scene("colored_doorkey", other).sentence == told
        published = [
            scene("colored_doorkey", x, np.zeros(find_domain("colored_doorkey", True).memory), parity=True).sentence
            for x in (one, other)
        ]
        assert published == [told.replace("<blue key>, <red key>", "<red key>, <blue key>"), told]
        grid = other
        assert scene("colored_doorkey", carrying(grid, KEY, "red")).sentence.endswith("holds <red key>.")

    def test_things_with_one_name_are_named_once(self):
        grid = coloured(draw("#####", "#>..#", "#####"), red_3_1=KEY, red_2_1=KEY)
        assert scene("colored_doorkey", grid).sentence == "Agent sees <red key>, holds <nothing>."

    def test_two_doors_keep_their_numbers(self):
        rows = ("#######", "D>...?D", "#######")
        half = (rows[0], rows[1][:-2] + "??", rows[2])
        other = (rows[0], "?" + rows[1][1:], rows[2])
        assert scene("two_door", draw(*half)).sentence == "Agent sees <door1>, holds <nothing>."
        assert scene("two_door", draw(*other)).sentence == "Agent sees <door2>, holds <nothing>."
        assert scene("two_door", draw(*rows)).sentence == "Agent sees <door1>, <door2>, holds <nothing>."
        # As published the only one that is seen is the first, and its number changes when the other is found.
        places = []
        memory = np.zeros(6)
        domain = find_domain("two_door", parity=True)
        for grid in (draw(*other), draw(*rows)):
            places.append(domain.scene({"grid": grid}, 0, memory).places)
        assert places[0] == {"door1": 19} and places[1] == {"door1": 1, "door2": 19}

    def test_lava_is_told_of_if_wished(self):
        grid = draw("#####", "#>.~#", "#####")
        assert scene("lava_doorkey", grid).sentence == "Agent sees <nothing>, holds <nothing>."
        telling = LavaDoorKeyDomain(describe_lava=True).scene({"grid": grid}, 0, None)
        assert telling.sentence == "Agent sees <lava>, holds <nothing>."

    def test_an_open_door_is_called_so(self):
        rows = ("#######", "#>.D.B#", "#######")
        assert scene("unlock_pickup", draw(*rows)).sentence == "Agent sees <door>, <box>, holds <nothing>."
        assert scene("unlock_pickup", opened(draw(*rows))).sentence == "Agent sees <open door>, <box>, holds <nothing>."

    def test_a_grid_without_an_agent_is_refused(self):
        with pytest.raises(ValueError, match="no agent"):
            scene("simple_doorkey", draw("###", "#.#", "###"))


def act(grid, skill, thing="", task="simple_doorkey"):
    return scene(task, grid).act(PlanStep(skill, thing))


class TestSkills:
    def test_go_to_takes_a_shortest_path(self):
        assert act(draw("#####", "#>.K#", "#####"), "go to", "key") == FORWARD
        assert act(draw("#####", "#K.>#", "#####"), "go to", "key") in (LEFT, RIGHT)
        assert act(draw("#####", "#v..#", "#..K#", "#####"), "go to", "key") == FORWARD
        assert act(draw("#####", "#^..#", "#..K#", "#####"), "go to", "key") in (LEFT, RIGHT)
        assert act(draw("#####", "#..^#", "#..K#", "#####"), "go to", "key") in (LEFT, RIGHT)

    def test_go_to_is_done_beside_the_object_and_facing_it(self):
        assert act(draw("#####", "#.>K#", "#####"), "go to", "key") is None
        assert act(draw("#####", "#.^K#", "#####"), "go to", "key") == RIGHT

    def test_go_to_what_is_not_there(self):
        assert act(draw("#####", "#.>.#", "#####"), "go to", "key") is None

    def test_go_to_goes_round_lava(self):
        assert act(draw("#####", "#>~K#", "#...#", "#####"), "go to", "key") == RIGHT
        published = scene("lava_doorkey", draw("#####", "#>~K#", "#...#", "#####"), np.zeros(4), parity=True)
        assert published.act(PlanStep("go to", "key")) == FORWARD

    def test_go_to_looks_for_a_way_where_none_is_known(self):
        # The key is seen behind a cell of lava, with the way round it unseen.
        assert act(draw("#####", "#>~K#", "#???#", "?????"), "go to", "key") == RIGHT
        published = scene("lava_doorkey", draw("#####", "#>#K#", "#???#"), np.zeros(4), parity=True)
        assert published.act(PlanStep("go to", "key")) == DONE

    def test_go_to_the_nearer_of_two_with_one_name(self):
        grid = coloured(draw("#######", "#...>.#", "#.....#", "#######"), red_1_1=KEY, red_4_2=KEY)
        assert act(grid, "go to", "red key", "colored_doorkey") == RIGHT
        near = coloured(draw("########", "#....>.#", "########"), red_1_1=KEY, red_6_1=KEY)
        assert act(near, "go to", "red key", "colored_doorkey") is None

    def test_pick_up(self):
        assert act(draw("#####", "#.>K#", "#####"), "pick up", "key") == PICK_UP
        assert act(draw("#####", "#>.K#", "#####"), "pick up", "key") is None
        assert act(carrying(draw("#####", "#.>K#", "#####")), "pick up", "key") is None
        grid = coloured(draw("#####", "#.>.#", "#####"), red_3_1=KEY)
        assert act(grid, "pick up", "blue key", "colored_doorkey") is None
        published = scene("simple_doorkey", draw("#####", "#>.K#", "#####"), np.zeros(4), parity=True)
        assert published.act(PlanStep("pick up", "key")) == PICK_UP

    def test_open(self):
        def door(state, colour="grey", held="grey"):
            grid = coloured(draw("###", "#>.", "###"), **{f"{colour}_2_1": DOOR})
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

    def test_drop_not_from_a_doorway(self):
        """Where the key would lie in the way; the agent hides the open door it stands in."""
        grid = carrying(draw("#######", "#..#..#", "#..>..#", "#..#..#", "#######"))
        assert act(grid, "drop", "key", "unlock_pickup") == FORWARD

    def test_skills_there_are_none_of_do_nothing(self):
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
    def test_towards_what_is_unseen(self, rows, action):
        assert act(draw(*rows), "explore") == action

    def test_ends_when_everything_was_seen(self):
        assert act(draw(*PLAIN), "explore") is None
        # Corners of the room and what is outside it need not be seen.
        assert act(draw("?###?", "#>..#", "#...#", "?###?", size=(8, 8)), "explore") is None

    def test_never_into_lava(self):
        assert act(draw("?????", "#>~.?", "#...?", "?????"), "explore") != FORWARD

    def test_does_not_look_through_doors_but_goes_through_open_ones(self):
        rows = ("#####??", "#>.D???", "#####??")
        assert act(draw(*rows), "explore", task="unlock_pickup") is None
        assert act(opened(draw(*rows)), "explore", task="unlock_pickup") == FORWARD


def brute_force(geometry_, walkable, target, start):
    """Fewest actions from `start` to a pose that faces `target`, forwards from the start."""
    height = geometry_.height
    moves = ((1, 0), (0, 1), (-1, 0), (0, -1))
    inside = lambda x, y: 0 <= x < geometry_.width and 0 <= y < height  # noqa: E731
    x, y = divmod(start >> 2, height)
    queue, known = deque([(x, y, start & 3, 0)]), {(x, y, start & 3)}
    while queue:
        x, y, d, far = queue.popleft()
        fx, fy = x + moves[d][0], y + moves[d][1]
        if (fx, fy) == divmod(target, height):
            return far
        following = [(x, y, (d + 1) % 4), (x, y, (d - 1) % 4)]
        if inside(fx, fy) and walkable[fx * height + fy]:
            following.append((fx, fy, d))
        for pose in following:
            if pose not in known:
                known.add(pose)
                queue.append((*pose, far + 1))
    return None


@settings(max_examples=150)
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_paths_against_brute_force(width, height, data):
    n = width * height
    walkable = bytes(data.draw(st.lists(st.sampled_from([0, 1, 1]), min_size=n, max_size=n)))
    target = data.draw(st.integers(0, n - 1))
    walkable = walkable[:target] + b"\0" + walkable[target + 1 :]
    places = geometry(width, height)
    paths = PathsTo(places, walkable, target)
    for cell in np.flatnonzero(np.frombuffer(walkable, np.uint8)).tolist():
        for pose in range(4 * cell, 4 * cell + 4):
            expected = brute_force(places, walkable, target, pose)
            assert paths.distance(pose) == expected
            action = paths.action(pose)
            if not expected:
                assert action is None
                continue
            ahead = 4 * places.ahead[pose] + (pose & 3)
            after = {FORWARD: ahead, LEFT: places.left[pose], RIGHT: places.right[pose]}
            shortest = [turn for turn, there in after.items() if paths.distance(there) == expected - 1]
            if places.ahead[pose] < 0 or not walkable[places.ahead[pose]]:
                shortest = [turn for turn in shortest if turn != FORWARD]
            # Of several, always the same one: forward before left before right.
            assert action == shortest[0]


class TestPublished:
    def test_go_to_a_key_where_it_was(self):
        """A key that was picked up keeps its old place until it is seen again."""
        domain, memory = find_domain("simple_doorkey", parity=True), np.zeros(4)
        domain.scene({"grid": draw("######", "#>.K.#", "######")}, 0, memory)
        assert memory.tolist() == [4, 2, 0, 0]
        held = domain.scene({"grid": carrying(draw("######", "#<...#", "######"))}, 0, memory)
        assert held.act(PlanStep("go to", "key")) in (LEFT, RIGHT)
        assert memory.tolist() == [4, 2, 0, 0]

    def test_scenes_are_a_function_of_memory_too(self):
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

    def test_objects_that_were_never_seen_make_it_wait(self):
        here = scene("simple_doorkey", draw("#####", "#>..#", "#####"), np.zeros(4), parity=True)
        assert [here.act(PlanStep(skill, "key")) for skill in ("go to", "pick up", "drop")] == [DONE] * 3
        assert here.act(PlanStep("wait")) == DONE

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
        here = scene("simple_doorkey", draw(*rows), np.zeros(4), parity=True)
        assert here.act(EXPLORE) == action

    @settings(max_examples=300)
    @given(st.data())
    def test_exploring_against_cell_by_cell(self, data):
        """Rooms in the corner of a larger array, of which any cells were seen."""
        side, width, height = 8, data.draw(st.integers(4, 8)), data.draw(st.integers(4, 8))
        grid = np.zeros((side, side, 4), dtype=np.uint8)
        for x, y in np.ndindex(width, height):
            grid[x, y, 0] = WALL if x in (0, width - 1) or y in (0, height - 1) else EMPTY
        seen = np.array(data.draw(st.lists(st.booleans(), min_size=side**2, max_size=side**2))).reshape(side, side)
        grid[~seen] = UNSEEN
        x, y = data.draw(st.integers(1, width - 2)), data.draw(st.integers(1, height - 2))
        direction = data.draw(st.integers(0, 3))
        grid[..., 3] = 4
        grid[x, y] = (EMPTY, 0, 0, direction)
        assert scene("simple_doorkey", grid, np.zeros(4), parity=True).act(EXPLORE) == explored(
            grid[..., 0], x, y, direction
        )


def explored(kinds, x, y, direction):
    """What the released explorer does: bounds of the room by a look at each inner cell, then unseen cells counted."""
    side = len(kinds)
    inner = [(i, j) for i in range(1, side - 1) for j in range(1, side - 1) if kinds[i, j] == WALL]
    east = next((i for i, j in inner if kinds[i, j + 1] == WALL), side - 1)
    south = next((j for i, j in inner if kinds[i + 1, j] == WALL), side - 1)

    def unseen(direction, x, y):
        beyond = {
            0: lambda i, j: i >= x + 2, 1: lambda i, j: j >= y + 2,
            2: lambda i, j: i <= x - 2, 3: lambda i, j: j <= y - 2,
        }[direction]  # fmt: skip
        cells = ((i, j) for i in range(east + 1) for j in range(south + 1))
        return any(kinds[cell] == UNSEEN for cell in cells if beyond(*cell))

    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[direction]
    for turn, action in ((0, FORWARD), (3, LEFT), (1, RIGHT)):
        if unseen((direction + turn) % 4, x, y):
            return action
    return LEFT if unseen((direction + 2) % 4, x + dx, y + dy) else None


def test_scenes_are_shared_and_forgotten(monkeypatch):
    from llmrl.teachers.rooms import room_domains

    monkeypatch.setattr(room_domains, "KEPT", 2)
    domain = find_domain("simple_doorkey")
    grids = [draw("#####", row, "#####") for row in ("#>..#", "#.>.#", "#..>#")]
    first = domain.scene({"grid": grids[0]}, 0, None)
    assert domain.scene({"grid": grids[0].copy()}, 0, None) is first
    for grid in grids:
        domain.scene({"grid": grid}, 0, None)
    assert domain.scene({"grid": grids[0]}, 0, None) is not first
    assert len(domain._scenes) == 2
