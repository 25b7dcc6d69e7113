"""n parallel copies (games) of one level: MiniGrid environments, whose views are computed in a batch if possible."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.env_factory import EnvFactory, make_gymnasium_env
from llmrl.envs.rooms.grid_world import DROP, EMPTY_CELL, GRAY, PICKUP, TOGGLE, WALL, GridWorld, encode_cell
from llmrl.envs.rooms.views import Viewer

_MAX_VIEW_SIZE = 31
"""Maximum view size that `Viewer` supports, in cells."""
_N_SAMPLED_MISSIONS = 16
"""Number of missions, one per reset, that are sampled to estimate the maximum step limit of a MiniGrid level."""


class LevelGames:
    """Games of one level, each a MiniGrid environment, which applies the rules and decides when a mission is fulfilled.

    In MiniGrid, observations take most of the time. Here the state of each game is copied to a `GridWorld`, which
    computes the views of all games at once. This requires that a step changes only the agent's position and heading,
    the carried object and the cell in front of the agent. BabyAI's levels fulfill this. Other levels, and those with
    other observations or a view that `Viewer` does not support, use the observations of MiniGrid.

    Args:
        env_factories: factory of each game.
        render: whether the games can be rendered.

    Attributes:
        envs: MiniGrid environment of each game.
        view_size: width and height of a view, in cells.
        kinds: kinds of missions in a level of BabyAI-Text; empty for other levels.
        is_babyai: whether the level is one of BabyAI's, which MiniGrid's bot can solve.
        views: current view of each game, [n, view_size, view_size, 3] uint8; zeros before its first start.
        steps: number of steps since the start of the present episode of each game, [n].

    Raises:
        ConfigError: the level is unknown, or is not a MiniGrid environment.
    """

    def __init__(self, env_factories: Sequence[EnvFactory], render: bool = False) -> None:
        from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
        from minigrid.minigrid_env import MiniGridEnv

        from llmrl.envs.babyai.levels import TextLevel

        self.n = len(env_factories)
        self.envs: list[Any] = []
        for env_factory in env_factories:
            env = make_gymnasium_env(env_factory, render).unwrapped
            if not isinstance(env, MiniGridEnv):
                raise ConfigError(
                    f"env.level={env_factory.id} is not a level of MiniGrid or BabyAI; use env=gymnasium for it"
                )
            self.envs.append(env)
        first_env = self.envs[0]
        self.is_babyai = isinstance(first_env, RoomGridLevel)
        self.view_size = int(first_env.agent_view_size)
        self._has_batched_views = (
            self.is_babyai
            and type(first_env).gen_obs is MiniGridEnv.gen_obs
            and not first_env.see_through_walls
            and self.view_size <= _MAX_VIEW_SIZE
        )
        self.kinds: tuple[str, ...] = first_env.kinds if isinstance(first_env, TextLevel) else ()
        self.views = np.zeros((self.n, self.view_size, self.view_size, 3), dtype=np.uint8)
        self.steps = np.zeros(self.n, dtype=np.int64)
        self._horizon = env_factories[0].horizon
        if self._has_batched_views:
            self._margin = self.view_size - 1
            grid_sizes = [getattr(env, "max_grid_size", (env.width, env.height)) for env in self.envs]
            width, height = (max(sides) for sides in zip(*grid_sizes, strict=True))
            for env in self.envs:
                env.gen_obs = dict  # skips MiniGrid's slow observation, which is not used
            self._world = GridWorld(self.n, width, height, self._margin)
            self._viewer = Viewer(self._world, self.view_size)

    def find_max_steps(self) -> int:
        """Return the maximum number of steps of an episode, which is estimated for some levels.

        It resets the first game in this case, so call it before the first episode.
        """
        first_env = self.envs[0]
        if self.kinds:
            max_steps = max(int(env.max_episode_steps) for env in self.envs)
        elif self.is_babyai and not first_env.fixed_max_steps:
            max_steps = _find_max_mission_steps(first_env)
        else:
            max_steps = int(first_env.max_steps)
        return max_steps if self._horizon is None else min(max_steps, self._horizon)

    def has_only_goto_missions(self) -> bool:
        """Return whether all present missions can be fulfilled by turning and walking.

        This is true if the level declares no kind of missions but `goto`, every mission is a `GoToInstr`, and no door,
        which might block the way, is closed.
        """
        from minigrid.envs.babyai.core.verifier import GoToInstr

        return all(
            set(getattr(env, "possible_kinds", ("goto",))) == {"goto"}
            and isinstance(getattr(env, "instrs", None), GoToInstr)
            and not any(obj is not None and obj.type == "door" and not obj.is_open for obj in env.grid.grid)
            for env in self.envs
        )

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Start an episode in the games where `mask` [n] is true, in game i with the seed `seeds[i]`."""
        for i in np.flatnonzero(mask).tolist():
            with contextlib.redirect_stdout(None):  # MiniGrid prints each mission that it samples and rejects
                observation, _ = self.envs[i].reset(seed=int(seeds[i]))
            self.steps[i] = 0
            if self._has_batched_views:
                self._copy_game_state(i)
            else:
                self.views[i] = observation["image"]
        if self._has_batched_views:
            self._compute_views()

    def step(self, actions: Sequence[int], active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Execute MiniGrid actions in the games where `active` [n] is true; the others do not change.

        Return rewards [n] float64, terminated [n] bool and truncated [n] bool.
        """
        reward = np.zeros(self.n)
        terminated, truncated = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        games = np.flatnonzero(active).tolist()
        self.steps[active] += 1
        positions, headings = [], []
        for i in games:
            env, action = self.envs[i], actions[i]
            front_position = env.front_pos if action in (PICKUP, DROP, TOGGLE) else None
            observation, env_reward, env_terminated, env_truncated, _ = env.step(action)
            reward[i], terminated[i], truncated[i] = env_reward, env_terminated, env_truncated
            if not self._has_batched_views:
                self.views[i] = observation["image"]
                continue
            if front_position is not None:
                x, y = int(front_position[0]), int(front_position[1])
                self._world.cells[i, self._margin + x, self._margin + y] = _encode_object(env.grid.get(x, y))
                self._world.carrying[i] = _encode_object(env.carrying)
            positions.append(env.agent_pos)
            headings.append(env.agent_dir)
        if self._horizon is not None:
            truncated |= active & (self.steps >= self._horizon) & ~terminated
        if self._has_batched_views and games:
            self._world.place_agents(np.array(games), np.array(positions), np.array(headings))
            self._compute_views()
        return reward, terminated, truncated

    def _copy_game_state(self, i: int) -> None:
        """Copy the state of game i into the `GridWorld`."""
        env, m = self.envs[i], self._margin
        cells = self._world.cells[i]
        cells[:] = encode_cell(WALL, GRAY)
        objects = np.array([_encode_object(obj) for obj in env.grid.grid], dtype=np.uint32)
        width, height = env.grid.width, env.grid.height
        cells[m : m + width, m : m + height] = objects.reshape(height, width).T
        self._world.carrying[i] = _encode_object(env.carrying)
        self._world.place_agents(np.array([i]), np.array([env.agent_pos]), np.array([env.agent_dir]))

    def _compute_views(self) -> None:
        self.views = self._viewer.build_image(self._viewer.compute_field_of_view())

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _encode_object(obj: Any) -> np.uint32:
    """Return the code of a cell (see `encode_cell`) with a MiniGrid object, or an empty cell for None."""
    return EMPTY_CELL if obj is None else encode_cell(*obj.encode())


def _find_max_mission_steps(env: Any) -> int:
    """Return the largest step limit of missions in a BabyAI level of MiniGrid; an estimate if it is no `LevelGen`."""
    from minigrid.envs.babyai.core.levelgen import LevelGen

    if isinstance(env, LevelGen):
        # MiniGrid's limit for each walk to an object, times the maximum number of walks in a mission: one per clause,
        # or two to put an object next to another. "and" joins two clauses, "seq" two actions or pairs of clauses.
        navigation_steps = int(env.room_size) ** 2 * int(env.num_rows) * int(env.num_cols)
        n_clauses = max({"action": 1, "and": 2, "seq": 4}[kind] for kind in env.instr_kinds)
        return navigation_steps * n_clauses * (2 if "putnext" in env.action_kinds else 1)
    step_limits = []
    for seed in range(_N_SAMPLED_MISSIONS):
        with contextlib.redirect_stdout(None):
            env.reset(seed=seed)
        step_limits.append(int(env.max_steps))
    return max(step_limits)
