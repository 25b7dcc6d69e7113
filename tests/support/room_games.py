"""Room games for tests: MiniGrid's own beside ours, a player that solves them, and a map drawn another way."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
from minigrid.minigrid_env import MiniGridEnv

import llmrl.envs.rooms.gymnasium_envs  # noqa: F401  # registers our rooms
from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.grid_world import DROP, GridWorld, RoomLayout
from llmrl.envs.rooms.minigrid_tasks import DoorKey, MiniGridTask
from llmrl.envs.rooms.tasks import OneRoom, RoomTask

IDS = {
    "simple_doorkey": "llmrl/SimpleDoorKey-v0",
    "lava_doorkey": "llmrl/LavaDoorKey-v0",
    "colored_doorkey": "llmrl/ColoredDoorKey-v0",
    "two_door": "llmrl/TwoDoor-v0",
    "doorkey": "MiniGrid-DoorKey-8x8-v0",
    "unlock_pickup": "MiniGrid-UnlockPickup-v0",
}


def numbers(seed: int, game: int, k: int) -> np.random.Generator:
    """The random numbers that lay out the k-th game number `game` after `reset(seed=seed)`."""
    return Seeds(Seeds(seed).integer("layouts")).child(game).numpy(k)


def reference(task: RoomTask, view: int, horizon: int) -> MiniGridEnv:
    """The same task on MiniGrid."""
    options = {"agent_view_size": view, "max_steps": horizon}
    if isinstance(task, OneRoom):
        options |= {"min_size": task._min_size, "max_size": task._max_size}
    if isinstance(task, DoorKey):
        options |= {"size": task.width}
    env = gymnasium.make(IDS[task.name], disable_env_checker=True, **options).unwrapped
    assert isinstance(env, MiniGridEnv)
    return env


def begin(env: MiniGridEnv, task: RoomTask, rng: np.random.Generator) -> None:
    if isinstance(task, MiniGridTask):
        env.reset(seed=int(rng.integers(2**31)))
    else:
        env.np_random = rng
        env.reset()


def in_sight(env: MiniGridEnv) -> np.ndarray:
    """Cells of the grid that MiniGrid's visibility mask covers, [W, H]: the mask turned back and laid over the grid."""
    _, visible = env.gen_obs_grid()
    left, top, right, bottom = env.get_view_exts()
    big = np.zeros((env.width + 2 * 40, env.height + 2 * 40), dtype=bool)
    big[left + 40 : right + 40, top + 40 : bottom + 40] = np.rot90(visible, env.agent_dir + 1)
    return big[40 : 40 + env.width, 40 : 40 + env.height]


def world_of(layout: RoomLayout) -> GridWorld:
    world = GridWorld(1, *layout.cells.shape[:2], margin=1)
    world.begin([0], [layout])
    return world


def one_game(world: GridWorld, game: int) -> GridWorld:
    """Game `game` of `world` as a world of its own."""
    alone = GridWorld(1, world.width, world.height, world.margin)
    alone.cells[0] = world.cells[game]
    alone.at[0] = world.at[game] - game * world.cells[0].size
    alone.heading[0], alone.carrying[0] = world.heading[game], world.carrying[game]
    return alone


def solve(world: GridWorld, task: RoomTask, most: int = 20_000) -> list[int] | None:
    """The shortest actions that solve the only game of `world`; None if there are none in `most` states.

    Nothing is dropped unless that is the only way.
    """
    return _search(world, task, range(DROP), most) or _search(world, task, range(DROP + 1), most)


def _search(world: GridWorld, task: RoomTask, actions: Sequence[int], most: int) -> list[int] | None:
    actions = [*actions, 5]
    k, size = len(actions), world.cells[0].size
    edge = [(world.cells[0], int(world.at[0]), int(world.heading[0]), int(world.carrying[0]))]
    plans: list[list[int]] = [[]]
    known = {(edge[0][0].tobytes(), *edge[0][1:])}
    while edge and len(known) < most:
        n = len(edge) * k
        tried = GridWorld(n, world.width, world.height, world.margin)
        tried.cells = np.repeat(np.stack([state[0] for state in edge]), k, axis=0)
        first = np.arange(n) * size
        tried.at = np.repeat([state[1] for state in edge], k) + first
        tried.heading = np.repeat([state[2] for state in edge], k)
        tried.carrying = np.repeat(np.array([state[3] for state in edge], dtype=np.uint32), k)
        events = tried.step(np.tile(actions, len(edge)), np.ones(n, dtype=bool))
        solved = np.flatnonzero(task.success(events))
        if len(solved):
            return [*plans[solved[0] // k], actions[solved[0] % k]]
        at = (tried.at - first).tolist()
        new_edge, new_plans = [], []
        for i in np.flatnonzero(~events.lava).tolist():
            state = (tried.cells[i], at[i], int(tried.heading[i]), int(tried.carrying[i]))
            if (key := (state[0].tobytes(), *state[1:])) not in known:
                known.add(key)
                new_edge.append(state)
                new_plans.append([*plans[i // k], actions[i % k]])
        edge, plans = new_edge, new_plans
    return None
