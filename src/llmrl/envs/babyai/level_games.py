"""Many games of one level in lock step, with MiniGrid's own rules and batched views."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.env_factory import EnvFactory, make_gymnasium_env
from llmrl.envs.rooms.grid_world import DROP, GRAY, NOTHING, PICKUP, TOGGLE, WALL, GridWorld, encode_cell
from llmrl.envs.rooms.views import Viewer

_MAX_VIEW_SIZE = 31
_N_SAMPLED_MISSIONS = 16
"""Number of missions that are drawn to estimate the maximum length of a MiniGrid level's missions."""


class LevelGames:
    """Games of one level, each of which is a MiniGrid environment with its rules, random numbers and verifier.

    MiniGrid's own observations take longer to compute than everything else. Here a `GridWorld` copies the state of the
    games, and the views of all games are computed at once. This requires that a step changes only the cell in front of
    the agent, its position and the carried object. In other levels (those that are not BabyAI's), MiniGrid's own
    observations are used.

    Args:
        env_factories: factory of each game.
        render: whether `render` must work.

    Attributes:
        envs: the games.
        view_size: width and height of a view, cells.
        kinds: kinds of missions of a level of BabyAI-Text; empty for other levels.
        is_babyai: whether the missions are BabyAI's, so that MiniGrid's bot can solve them.
        views: current view of each game, [n, view_size, view_size, 3] uint8; undefined before its first start.
        steps: number of steps of each episode, [n].

    Raises:
        ConfigError: the level is unknown, or not a level of MiniGrid.
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
        sample = self.envs[0]
        self.is_babyai = isinstance(sample, RoomGridLevel)
        self.view_size = int(sample.agent_view_size)
        self._has_batched_views = (
            self.is_babyai
            and type(sample).gen_obs is MiniGridEnv.gen_obs
            and not sample.see_through_walls
            and self.view_size <= _MAX_VIEW_SIZE
        )
        self.kinds: tuple[str, ...] = sample.kinds if isinstance(sample, TextLevel) else ()
        self.views = np.zeros((self.n, self.view_size, self.view_size, 3), dtype=np.uint8)
        self.steps = np.zeros(self.n, dtype=np.int64)
        self._max_steps = env_factories[0].horizon
        if self._has_batched_views:
            self._margin = self.view_size - 1
            grids = [getattr(env, "max_size", (env.width, env.height)) for env in self.envs]
            width, height = (max(sides) for sides in zip(*grids, strict=True))
            for env in self.envs:
                env.gen_obs = dict  # its result is not used
            self._world = GridWorld(self.n, width, height, self._margin)
            self._viewer = Viewer(self._world, self.view_size)

    def find_max_steps(self) -> int:
        """Return the maximum number of steps of an episode."""
        sample = self.envs[0]
        if self.kinds:
            max_steps = max(int(env.max_episode_steps) for env in self.envs)
        elif self.is_babyai and not sample.fixed_max_steps:
            max_steps = _max_mission_steps(sample)
        else:
            max_steps = int(sample.max_steps)
        return max_steps if self._max_steps is None else min(max_steps, self._max_steps)

    def has_only_goto_missions(self) -> bool:
        """Return whether missions are fulfilled by turning and walking alone.

        This checks all possible missions, if the level declares them, else the current ones; and that no closed door
        may block the way.
        """
        from minigrid.envs.babyai.core.verifier import GoToInstr

        return all(
            set(getattr(env, "possible_kinds", ("goto",))) == {"goto"}
            and isinstance(getattr(env, "instrs", None), GoToInstr)
            and not any(obj is not None and obj.type == "door" and not obj.is_open for obj in env.grid.grid)
            for env in self.envs
        )

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Start the games where `mask` [n] is true, game i from `seeds[i]`."""
        for i in np.flatnonzero(mask).tolist():
            with contextlib.redirect_stdout(None):  # MiniGrid prints each mission that it drew and rejected
                observation, _ = self.envs[i].reset(seed=int(seeds[i]))
            self.steps[i] = 0
            if self._has_batched_views:
                self._copy_game_state(i)
            else:
                self.views[i] = observation["image"]
        if self._has_batched_views:
            self._compute_views()

    def step(self, actions: Sequence[int], active: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Execute `actions` (MiniGrid's) in the games that are `active` [n]; the others do not change.

        Returns rewards [n] float64, terminated [n] bool and truncated [n] bool.
        """
        reward = np.zeros(self.n)
        terminated, truncated = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        games = np.flatnonzero(active).tolist()
        self.steps[active] += 1
        positions, headings = [], []
        for i in games:
            env, action = self.envs[i], actions[i]
            front = env.front_pos if action in (PICKUP, DROP, TOGGLE) else None
            observation, env_reward, env_terminated, env_truncated, _ = env.step(action)
            reward[i], terminated[i], truncated[i] = env_reward, env_terminated, env_truncated
            if not self._has_batched_views:
                self.views[i] = observation["image"]
                continue
            if front is not None:
                x, y = int(front[0]), int(front[1])
                self._world.cells[i, self._margin + x, self._margin + y] = _encode_object(env.grid.get(x, y))
                self._world.carrying[i] = _encode_object(env.carrying)
            positions.append(env.agent_pos)
            headings.append(env.agent_dir)
        if self._max_steps is not None:
            truncated |= active & (self.steps >= self._max_steps) & ~terminated
        if self._has_batched_views and games:
            self._world.place_agents(np.array(games), np.array(positions), np.array(headings))
            self._compute_views()
        return reward, terminated, truncated

    def _copy_game_state(self, i: int) -> None:
        """Copy the state of MiniGrid's game i into the batched world."""
        env, m = self.envs[i], self._margin
        cells = self._world.cells[i]
        cells[:] = encode_cell(WALL, GRAY)
        objects = np.array([_encode_object(obj) for obj in env.grid.grid], dtype=np.uint32)
        width, height = env.grid.width, env.grid.height
        cells[m : m + width, m : m + height] = objects.reshape(height, width).T
        self._world.carrying[i] = _encode_object(env.carrying)
        self._world.place_agents(np.array([i]), np.array([env.agent_pos]), np.array([env.agent_dir]))

    def _compute_views(self) -> None:
        self.views = self._viewer.image(self._viewer.compute_field_of_view())

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def _encode_object(obj: Any) -> np.uint32:
    """Return the cell of an object of MiniGrid; None: nothing."""
    return NOTHING if obj is None else encode_cell(*obj.encode())


def _max_mission_steps(env: Any) -> int:
    """Return the number of steps of the longest mission of a level of MiniGrid's BabyAI."""
    from minigrid.envs.babyai.core.levelgen import LevelGen

    room = int(env.room_size) ** 2 * int(env.num_rows) * int(env.num_cols)
    if isinstance(env, LevelGen):
        clauses = max({"action": 1, "and": 2, "seq": 4}[kind] for kind in env.instr_kinds)
        return room * clauses * (2 if "putnext" in env.action_kinds else 1)
    lengths = []
    for seed in range(_N_SAMPLED_MISSIONS):
        with contextlib.redirect_stdout(None):
            env.reset(seed=seed)
        lengths.append(int(env.max_steps))
    return max(lengths)
