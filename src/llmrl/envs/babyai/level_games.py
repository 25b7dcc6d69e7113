"""Many games of one level in lock step: MiniGrid's own rules, and all views computed at once."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np

from llmrl.core.errors import ConfigError
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.gymnasium_games import make
from llmrl.envs.rooms.grid_world import DONE, DROP, NOTHING, PICKUP, TOGGLE, WALL, GridWorld, code
from llmrl.envs.rooms.views import Viewer

_GREY = 5
_LARGEST_VIEW = 31
_SAMPLES = 16
"""Missions that are drawn to know how long those of a level of MiniGrid may be."""


class LevelGames:
    """Games of one level, each of which is an environment of MiniGrid: its rules, its random numbers, its verifier.

    What MiniGrid would observe takes it longer than everything else. Here a `GridWorld` is kept in step with the
    games, and one computation gives the views of all of them. A step changes no more than the cell in front of the
    agent, where it is and what it carries; where a level does otherwise (those that are not BabyAI's), MiniGrid
    observes.

    Args:
        makers: what makes each game.
        render: be able to draw them.

    Attributes:
        envs: the games.
        size: cells of a view along either axis.
        babyai: whether their missions are BabyAI's, which the bot can be asked about.
        views: [n, size, size, 3] uint8, of every game that was ever started.
        steps: of each episode, [n].

    Raises:
        ConfigError: no such level, or it is not one of MiniGrid.
    """

    def __init__(self, makers: Sequence[EnvFactory], render: bool = False) -> None:
        from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel
        from minigrid.minigrid_env import MiniGridEnv

        self.n = len(makers)
        self.envs: list[Any] = []
        for env_factory in makers:
            env = make(env_factory, render).unwrapped
            if not isinstance(env, MiniGridEnv):
                raise ConfigError(
                    f"env.level={env_factory.id} is no level of MiniGrid or BabyAI; use env=gymnasium for it"
                )
            self.envs.append(env)
        first = self.envs[0]
        self.babyai = isinstance(first, RoomGridLevel)
        self.size = int(first.agent_view_size)
        self._fast = (
            self.babyai
            and type(first).gen_obs is MiniGridEnv.gen_obs
            and not first.see_through_walls
            and self.size <= _LARGEST_VIEW
        )
        self.kinds: tuple[str, ...] = tuple(getattr(first, "kinds", ()))
        self.views = np.zeros((self.n, self.size, self.size, 3), dtype=np.uint8)
        self.steps = np.zeros(self.n, dtype=np.int64)
        self._limit = makers[0].horizon
        self._hushed = _Nowhere()  # MiniGrid prints each mission that it drew and rejected
        self._codes: dict[tuple[int, int, int], np.uint32] = {}
        if self._fast:
            self._margin = self.size - 1
            grids = [getattr(env, "largest", (env.width, env.height)) for env in self.envs]
            width, height = (max(sides) for sides in zip(*grids, strict=True))
            for env in self.envs:
                env.gen_obs = _nothing
            self._world = GridWorld(self.n, width, height, self._margin)
            self._eyes = Viewer(self._world, self.size)

    def horizon(self) -> int:
        """Steps that an episode may have at most."""
        lengths = []
        for env in self.envs:
            if hasattr(env, "longest"):
                lengths.append(int(env.longest))
            elif self.babyai and not env.fixed_max_steps:
                if not lengths:
                    lengths.append(_longest(env))
            else:
                lengths.append(int(env.max_steps))
        most = max(lengths)
        return most if self._limit is None else min(most, self._limit)

    def only_goto(self) -> bool:
        """Whether missions are fulfilled by turning and walking alone: all that are possible, where a level tells, and
        else all that were drawn last; and no door is closed, which may be in the way."""
        from minigrid.envs.babyai.core.verifier import GoToInstr

        return all(
            set(getattr(env, "possible", ("goto",))) == {"goto"}
            and isinstance(getattr(env, "instrs", None), GoToInstr)
            and not any(thing is not None and thing.type == "door" and not thing.is_open for thing in env.grid.grid)
            for env in self.envs
        )

    def reset(self, seeds: np.ndarray, mask: np.ndarray) -> None:
        """Start the games of `mask` [n], game i from `seeds[i]`."""
        for i in np.flatnonzero(mask).tolist():
            with contextlib.redirect_stdout(self._hushed):
                observation, _ = self.envs[i].reset(seed=int(seeds[i]))
            self.steps[i] = 0
            if self._fast:
                self._copy(i)
            else:
                self.views[i] = observation["image"]
        if self._fast:
            self._look()

    def step(self, actions: Sequence[int], playing: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Do `actions` (MiniGrid's) in the games that are `playing` [n]; the others stay as they are.

        Returns rewards [n] float64, terminated [n] bool and truncated [n] bool.
        """
        reward = np.zeros(self.n)
        terminated, truncated = np.zeros(self.n, dtype=bool), np.zeros(self.n, dtype=bool)
        games = np.flatnonzero(playing).tolist()
        self.steps[playing] += 1
        at, headings = [], []
        for i in games:
            env, action = self.envs[i], actions[i]
            acts = action in (PICKUP, DROP, TOGGLE)
            front = env.front_pos if acts and self._fast else None
            observation, gained, ended, cut, _ = env.step(action)
            reward[i], terminated[i], truncated[i] = gained, ended, cut
            if not self._fast:
                self.views[i] = observation["image"]
                continue
            if front is not None:
                x, y = int(front[0]), int(front[1])
                self._world.cells[i, self._margin + x, self._margin + y] = self._code(env.grid.get(x, y))
                self._world.carrying[i] = self._code(env.carrying)
            at.append(env.agent_pos)
            headings.append(env.agent_dir)
        if self._limit is not None:
            truncated |= playing & (self.steps >= self._limit) & ~terminated
        if self._fast and games:
            self._world.place(np.array(games), np.array(at), np.array(headings))
            self._look()
        return reward, terminated, truncated

    def _copy(self, i: int) -> None:
        """Let game i of the world be as MiniGrid's is."""
        env, m = self.envs[i], self._margin
        cells = self._world.cells[i]
        cells[:] = _WALL_CELL
        rows = np.array([self._code(thing) for thing in env.grid.grid], dtype=np.uint32)
        width, height = env.grid.width, env.grid.height
        cells[m : m + width, m : m + height] = rows.reshape(height, width).T
        self._world.carrying[i] = self._code(env.carrying)
        self._world.place(np.array([i]), np.array([env.agent_pos]), np.array([env.agent_dir]))

    def _look(self) -> None:
        self.views = self._eyes.view(self._eyes.look())

    def _code(self, thing: Any) -> np.uint32:
        if thing is None:
            return NOTHING
        encoded = thing.encode()
        known = self._codes.get(encoded)
        if known is None:
            known = self._codes[encoded] = code(*encoded)
        return known

    def render(self, index: int) -> np.ndarray:
        return np.asarray(self.envs[index].render())

    def close(self) -> None:
        for env in self.envs:
            env.close()


def to_minigrid(action: np.ndarray) -> list[int]:
    """MiniGrid's actions; those that it has none for do nothing."""
    return np.minimum(action, DONE).tolist()  # type: ignore[no-any-return]


class _Nowhere(io.TextIOBase):
    def write(self, text: str) -> int:
        return len(text)


def _nothing() -> dict[str, Any]:
    """Stands for what nobody looks at."""
    return {}


def _longest(env: Any) -> int:
    """Steps of the longest mission of a level of MiniGrid's BabyAI."""
    from minigrid.envs.babyai.core.levelgen import LevelGen

    room = int(env.room_size) ** 2 * int(env.num_rows) * int(env.num_cols)
    if isinstance(env, LevelGen):
        clauses = max({"action": 1, "and": 2, "seq": 4}[kind] for kind in env.instr_kinds)
        return room * clauses * (2 if "putnext" in env.action_kinds else 1)
    lengths = []
    for seed in range(_SAMPLES):
        with contextlib.redirect_stdout(_Nowhere()):
            env.reset(seed=seed)
        lengths.append(int(env.max_steps))
    return max(lengths)


_WALL_CELL = code(WALL, _GREY)
