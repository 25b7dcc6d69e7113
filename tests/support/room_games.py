"""Room games for tests: MiniGrid reference environments, a solver and a reference implementation of visibility."""

from __future__ import annotations

from collections.abc import Sequence

import gymnasium
import numpy as np
from minigrid.minigrid_env import MiniGridEnv

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms.grid_world import DROP, GridWorld, RoomLayout
from llmrl.envs.rooms.tasks import DoorKey, MiniGridTask, OneRoom, RoomTask
from minigrid_rooms import RoomEnv

ENV_IDS = {
    "doorkey": "MiniGrid-DoorKey-8x8-v0",
    "unlock_pickup": "MiniGrid-UnlockPickup-v0",
}


def layout_rng(seed: int, game: int, k: int) -> np.random.Generator:
    """Return the generator of the k-th layout of game number `game` after `reset(seed=seed)`."""
    return Seeds(Seeds(seed).integer("layouts")).child(game).numpy(k)


def make_reference(task: RoomTask, view: int, horizon: int) -> MiniGridEnv:
    """Return the MiniGrid environment of a task."""
    options = {"agent_view_size": view, "max_steps": horizon}
    if isinstance(task, OneRoom):
        return RoomEnv(task, **options)
    if isinstance(task, DoorKey):
        options |= {"size": task.width}
    env = gymnasium.make(ENV_IDS[task.name], disable_env_checker=True, **options).unwrapped
    assert isinstance(env, MiniGridEnv)
    return env


def reset_reference(env: MiniGridEnv, task: RoomTask, rng: np.random.Generator) -> None:
    if isinstance(task, MiniGridTask):
        env.reset(seed=int(rng.integers(2**31)))
    else:
        env.np_random = rng
        env.reset()


def compute_visible_cells(env: MiniGridEnv) -> np.ndarray:
    """Return the visible cells of the grid, [W, H] bool, by rotating MiniGrid's visibility mask back to the grid."""
    _, visible = env.gen_obs_grid()
    left, top, right, bottom = env.get_view_exts()
    big = np.zeros((env.width + 2 * 40, env.height + 2 * 40), dtype=bool)
    big[left + 40 : right + 40, top + 40 : bottom + 40] = np.rot90(visible, env.agent_dir + 1)
    return big[40 : 40 + env.width, 40 : 40 + env.height]


def make_world(layout: RoomLayout) -> GridWorld:
    world = GridWorld(1, *layout.cells.shape[:2], margin=1)
    world.start_episodes([0], [layout])
    return world


def copy_game(world: GridWorld, game: int) -> GridWorld:
    """Return a copy of game `game` of `world` as a world with a single game."""
    single = GridWorld(1, world.width, world.height, world.margin)
    single.cells[0] = world.cells[game]
    single.at[0] = world.at[game] - game * world.cells[0].size
    single.heading[0], single.carrying[0] = world.heading[game], world.carrying[game]
    return single


def solve(world: GridWorld, task: RoomTask, max_nodes: int = 20_000) -> list[int] | None:
    """Return a shortest sequence of actions that solves the only game of `world`, without dropping objects if possible.

    The result is None if the search finds no solution within `max_nodes` states.
    """
    return _search(world, task, range(DROP), max_nodes) or _search(world, task, range(DROP + 1), max_nodes)


def _search(world: GridWorld, task: RoomTask, actions: Sequence[int], max_nodes: int) -> list[int] | None:
    actions = [*actions, 5]
    k, size = len(actions), world.cells[0].size
    edge = [(world.cells[0], int(world.at[0]), int(world.heading[0]), int(world.carrying[0]))]
    plans: list[list[int]] = [[]]
    visited = {(edge[0][0].tobytes(), *edge[0][1:])}
    while edge and len(visited) < max_nodes:
        n = len(edge) * k
        candidates = GridWorld(n, world.width, world.height, world.margin)
        candidates.cells = np.repeat(np.stack([state[0] for state in edge]), k, axis=0)
        first = np.arange(n) * size
        candidates.at = np.repeat([state[1] for state in edge], k) + first
        candidates.heading = np.repeat([state[2] for state in edge], k)
        candidates.carrying = np.repeat(np.array([state[3] for state in edge], dtype=np.uint32), k)
        events = candidates.step(np.tile(actions, len(edge)), np.ones(n, dtype=bool))
        solutions = np.flatnonzero(task.find_successes(events))
        if len(solutions):
            return [*plans[solutions[0] // k], actions[solutions[0] % k]]
        at = (candidates.at - first).tolist()
        new_edge, new_plans = [], []
        for i in np.flatnonzero(~events.entered_lava).tolist():
            state = (candidates.cells[i], at[i], int(candidates.heading[i]), int(candidates.carrying[i]))
            if (key := (state[0].tobytes(), *state[1:])) not in visited:
                visited.add(key)
                new_edge.append(state)
                new_plans.append([*plans[i // k], actions[i % k]])
        edge, plans = new_edge, new_plans
    return None
