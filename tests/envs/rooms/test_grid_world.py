"""Parallel games, compared step for step with MiniGrid."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.minigrid_env import MiniGridEnv

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.grid_world import (
    BLUE,
    BOX,
    CLOSED,
    DOOR,
    DROP,
    EMPTY,
    EMPTY_CELL,
    FLOOR,
    FORWARD,
    GOAL,
    GRAY,
    GREEN,
    KEY,
    LAVA,
    PICKUP,
    RED,
    TOGGLE,
    WALL,
    GridWorld,
    RoomLayout,
    encode_cell,
    view_as_bytes,
)
from llmrl.envs.rooms.tasks import ColoredDoorKey, DoorKey, LavaDoorKey, RoomTask, SimpleDoorKey, TwoDoor, UnlockPickup
from llmrl.envs.rooms.vec_env import RoomsEnv
from llmrl.envs.rooms.views import Viewer, _compute_sight, _spread_sight
from room_games import compute_visible_cells, copy_game, layout_rng, make_reference, reset_reference, solve
from some import mark_long_except

pytestmark = pytest.mark.slow


class Player:
    """A player that wanders, picks up, opens, drops and breaks objects, and then solves the game."""

    def __init__(self, task: RoomTask, rng: np.random.Generator) -> None:
        self.task, self.rng = task, rng
        self.begin()

    def begin(self) -> None:
        self.wander = int(self.rng.integers(0, 110))
        self.plan: list[int] | None = None

    def act(self, world: GridWorld, game: int) -> int:
        self.wander -= 1
        if self.wander >= 0:
            front = world.cells.reshape(-1)[world.at[game] + world._step_offsets[world.heading[game]]]
            kind = int(view_as_bytes(np.array([front]))[0, 0])
            busy = {KEY: PICKUP, BOX: TOGGLE, DOOR: TOGGLE, EMPTY: FORWARD, GOAL: FORWARD, LAVA: DROP}.get(kind)
            if busy is not None and self.rng.random() < 0.5:
                return busy
            return int(self.rng.integers(7))
        if self.plan is None:
            self.plan = solve(copy_game(world, game), self.task) or []
        return self.plan.pop(0) if self.plan else int(self.rng.integers(7))


@pytest.mark.parametrize(
    ("task", "view", "expected_events"),
    [
        pytest.param(SimpleDoorKey(), 3, {"success", "dropped", "carried"}, marks=pytest.mark.long),
        (SimpleDoorKey(4, 6), 7, {"success", "dropped", "carried", "truncated"}),
        (LavaDoorKey(), 3, {"success", "lava", "carried"}),
        pytest.param(ColoredDoorKey(), 5, {"success", "dropped", "carried"}, marks=pytest.mark.long),
        pytest.param(TwoDoor(12, 12), 3, {"success", "carried"}, marks=pytest.mark.long),
        pytest.param(TwoDoor(), 11, {"carried"}, marks=pytest.mark.long),
        (DoorKey(5), 7, {"success", "dropped", "closed", "carried"}),
        pytest.param(DoorKey(6), 3, {"success", "dropped", "closed", "carried"}, marks=pytest.mark.long),
        pytest.param(DoorKey(8), 7, {"success", "dropped", "carried"}, marks=pytest.mark.long),
        pytest.param(UnlockPickup(), 7, {"success", "dropped", "closed", "carried"}, marks=pytest.mark.long),
        (UnlockPickup(), 3, {"success", "dropped", "carried"}),
    ],
    ids=lambda value: value.name if isinstance(value, RoomTask) else "",
)
def test_steps_match_minigrid(task: RoomTask, view: int, expected_events: set[str]) -> None:
    n, horizon, steps = 6, 90, 240 if task.width < 20 else 50
    env = RoomsEnv(Seeds(0), task, n, view, horizon, ["grid", "view", "direction"])
    observation = env.reset(seed=11)
    references = [make_reference(task, view, horizon) for _ in range(n)]
    rng = np.random.default_rng(5)
    players = [Player(task, rng) for _ in range(n)]
    explored_mask = np.zeros((n, task.width, task.height), dtype=bool)
    start_steps = [0] * n
    counts: Counter[str] = Counter()

    def start(game: int) -> None:
        reset_reference(references[game], task, layout_rng(11, game, start_steps[game]))
        start_steps[game] += 1
        explored_mask[game] = False
        players[game].begin()

    def compare(game: int) -> None:
        world, reference_env = env._world, references[game]
        encoded = reference_env.grid.encode()
        assert np.array_equal(world.grid[game], encoded)
        x, y = world.position
        assert (x[game], y[game]) == tuple(reference_env.agent_pos)
        assert world.heading[game] == reference_env.agent_dir
        held = (EMPTY, 0, 0) if reference_env.carrying is None else reference_env.carrying.encode()
        assert tuple(view_as_bytes(world.carrying)[game, :3]) == held
        grid, mask = reference_env.gen_obs_grid()
        assert np.array_equal(observation["view"][game, 0], grid.encode(mask))
        assert observation["direction"][game, 0].tolist() == np.eye(4)[reference_env.agent_dir].tolist()
        explored_mask[game] |= compute_visible_cells(reference_env)
        expected = np.dstack(
            [np.where(explored_mask[game][..., None], encoded, 0), np.full(explored_mask[game].shape, 4)]
        )
        expected[reference_env.agent_pos] = (*held, reference_env.agent_dir)
        assert np.array_equal(observation["grid"][game, 0], expected)

    for game in range(n):
        start(game)
        compare(game)
    for _ in range(steps):
        action = np.array([[player.act(env._world, game)] for game, player in enumerate(players)])
        initial = env._world.grid
        step = env.step(action)
        observation = step.observation
        for game, reference_env in enumerate(references):
            held = reference_env.carrying
            _, reward, terminated, truncated, _ = reference_env.step(int(action[game, 0]))
            assert step.reward[game, 0] == np.float32(reward)
            assert (bool(step.terminated[game]), bool(step.truncated[game])) == (terminated, truncated)
            assert step.info["success"][game] == (reward > 0)
            compare(game)
            doors = (
                (initial[game, ..., 0] == DOOR) & (initial[game, ..., 2] == 0) & (env._world.grid[game, ..., 2] == 1)
            )
            counts["closed"] += bool(doors.any())
            counts["dropped"] += held is not None and reference_env.carrying is None
            counts["carried"] += reference_env.carrying is not None
            counts["success"] += reward > 0
            counts["lava"] += terminated and reward == 0
            counts["truncated"] += truncated
        done = step.terminated | step.truncated
        observation = env.reset(done)
        for game in np.flatnonzero(done).tolist():
            start(game)
            compare(game)
    assert expected_events <= {event for event, count in counts.items() if count}, counts


class Arena(MiniGridEnv):
    """An arbitrary layout on MiniGrid, without a goal."""

    def __init__(self, layout: RoomLayout, view: int) -> None:
        self.layout = layout
        width, height, _ = layout.cells.shape
        super().__init__(MissionSpace(lambda: ""), width=width, height=height, agent_view_size=view, max_steps=1000)

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid, _ = Grid.decode(self.layout.cells)
        self.agent_pos, self.agent_dir = self.layout.position, self.layout.heading
        self.mission = ""


@pytest.mark.parametrize("view", mark_long_except([3, 7], [3, 5, 7, 9, 13]))
def test_arbitrary_clutter_matches_minigrid(view: int) -> None:
    """Use all objects in all colors and states, in games that continue after goals and lava."""
    rng = np.random.default_rng(view)
    n, width, height = 12, 8, 9
    world = GridWorld(n, width, height, margin=view - 1)
    viewer = Viewer(world, view)
    layouts = []
    for _ in range(n):
        cells = np.full((width, height, 3), (WALL, GRAY, 0), dtype=np.uint8)
        kinds = rng.choice(
            np.arange(EMPTY, LAVA + 1), p=[0.5, 0.12, 0.03, 0.13, 0.08, 0.04, 0.06, 0.02, 0.02], size=(6, 7)
        )
        colors = np.where(kinds == LAVA, RED, np.where(kinds == GOAL, GREEN, rng.integers(6, size=(6, 7))))
        states = np.where(kinds == DOOR, rng.integers(3, size=(6, 7)), 0)
        cells[1:-1, 1:-1] = np.stack([kinds, np.where(kinds == EMPTY, 0, colors), states], axis=-1)
        cells[3, 4] = (EMPTY, 0, 0)
        layouts.append(RoomLayout(cells, (3, 4), int(rng.integers(4))))
    world.start_episodes(range(n), layouts)
    references = [Arena(layout, view) for layout in layouts]
    for reference_env in references:
        reference_env.reset()
    event_counts: Counter[str] = Counter()
    for _ in range(120):
        view_image = viewer.build_image(viewer.compute_field_of_view())
        grid = world.grid
        for game, reference_env in enumerate(references):
            assert np.array_equal(view_image[game], reference_env.gen_obs()["image"])
            assert np.array_equal(grid[game], reference_env.grid.encode())
        action = rng.choice([0, 1, 2, 2, 2, 3, 4, 5, 5, 6], size=n)
        events = world.step(action, np.ones(n, dtype=bool))
        for game, reference_env in enumerate(references):
            front = reference_env.grid.get(*reference_env.front_pos)
            is_closed, held = not getattr(front, "is_open", True), reference_env.carrying
            _, reward, terminated, _, _ = reference_env.step(int(action[game]))
            assert events.reached_goal[game] == (reward > 0)
            assert events.entered_lava[game] == (terminated and reward == 0)
            assert events.opened_door[game] == (is_closed and front.is_open)
            picked = reference_env.carrying is not None and held is None
            assert events.picked_up[game] == (reference_env.carrying.encode()[0] if picked else 0)
        event_counts.update(
            {
                "opened": events.opened_door.sum(),
                "picked": (events.picked_up > 0).sum(),
                "goal": events.reached_goal.sum(),
            }
        )
    assert all(event_counts.values())
    assert np.array_equal(world.time, np.full(n, 120))


def face_object(kind: int, color: int = 0, state: int = 0, carrying: int = int(EMPTY_CELL)) -> GridWorld:
    cells = np.zeros((5, 5, 3), dtype=np.uint8)
    cells[..., 0] = EMPTY
    cells[3, 2] = (kind, color, state)
    world = GridWorld(1, 5, 5, margin=2)
    world.start_episodes([0], [RoomLayout(cells, (2, 2), 0)])
    world.carrying[0] = carrying
    return world


def act_on_front_cell(world: GridWorld, action: int) -> tuple[int, int, int]:
    world.step(np.array([action]), np.array([True]))
    return tuple(world.grid[0, 3, 2].tolist())


def test_toggled_box_disappears() -> None:
    assert act_on_front_cell(face_object(BOX, RED), TOGGLE) == (EMPTY, 0, 0)


def test_mismatched_key_does_not_unlock() -> None:
    assert act_on_front_cell(face_object(DOOR, BLUE, 2, int(encode_cell(KEY, RED))), TOGGLE) == (DOOR, BLUE, 2)
    assert act_on_front_cell(face_object(DOOR, BLUE, 2, int(encode_cell(BOX, BLUE))), TOGGLE) == (DOOR, BLUE, 2)
    assert act_on_front_cell(face_object(DOOR, BLUE, 2, int(encode_cell(KEY, BLUE))), TOGGLE) == (DOOR, BLUE, 0)


def test_floor_blocks_drop() -> None:
    assert act_on_front_cell(face_object(FLOOR, BLUE, 0, int(encode_cell(KEY, RED))), DROP) == (FLOOR, BLUE, 0)
    world = face_object(FLOOR, BLUE)
    act_on_front_cell(world, FORWARD)
    assert [int(axis[0]) for axis in world.position] == [3, 2]


def test_open_event_requires_closed_door() -> None:
    world = face_object(DOOR, RED, CLOSED)
    always = np.array([True])
    assert world.step(np.array([TOGGLE]), always).opened_door[0]
    assert not world.step(np.array([TOGGLE]), always).opened_door[0]
    assert world.grid[0, 3, 2].tolist() == [DOOR, RED, CLOSED]


def test_inactive_games_are_unchanged() -> None:
    world = face_object(KEY, RED)
    initial = world.state_dict()
    world.step(np.array([PICKUP]), np.array([False]))
    assert all(np.array_equal(initial[name], value) for name, value in world.state_dict().items())


def test_outside_is_wall() -> None:
    world = GridWorld(1, 5, 5, margin=2)
    cells = np.tile(np.array([EMPTY, 0, 0], dtype=np.uint8), (5, 5, 1))
    world.start_episodes([0], [RoomLayout(cells, (4, 2), 0)])
    view = Viewer(world, 3).build_image(Viewer(world, 3).compute_field_of_view())[0]
    assert view[:, 1, 0].tolist() == [2, 2, 2]
    assert view[:, 0, 0].tolist() == [0, 0, 0]
    world.step(np.array([FORWARD]), np.array([True]))
    assert [int(axis[0]) for axis in world.position] == [4, 2]


def test_sight_implementations_agree() -> None:
    seed, clear = np.divmod(np.arange(4**7), 2**7)
    for by_table, by_bits in zip(_spread_sight(seed, clear, 7), _compute_sight(seed, clear, 7), strict=True):
        assert np.array_equal(by_table, by_bits)
