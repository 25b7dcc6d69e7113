"""Rooms as a vectorised environment: many games of one task in lock step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array, Observation, State, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.envs.rooms import picture
from llmrl.envs.rooms.tasks import Task
from llmrl.envs.rooms.views import MAX_VIEW, Eyes, SeenMap, Sight
from llmrl.envs.rooms.world import ACTION_NAMES, World

ChannelName = Literal["grid", "view", "direction"]

CODES = (11, 6, 3, 5)
"""Codes of a cell: MiniGrid's objects, colours and states of doors; and the agent's heading, 4 where it is not."""


class RoomsEnv:
    """`n_envs` games of one agent each, as arrays.

    **Actions.** Those of MiniGrid: left, right, forward, pickup, drop, toggle, done (which does nothing).

    **Reward.** 1 - 0.9 * step / horizon in the step that solves the task, 0 in all others.

    **Observation.** `grid` [n_envs, 1, W, H, 4] uint8: all cells seen since the game began with what they hold now, and
    the agent (`SeenMap.image`). `view` [n_envs, 1, v, v, 3] uint8: what is in front of the agent, as MiniGrid shows it
    (`Eyes.view`). `direction` [n_envs, 1, 4] float32: the heading, one-hot.

    **End.** Terminated when the task is solved and when the agent steps into lava; truncated after `horizon` steps. As
    in MiniGrid, the last step can be both.

    **Layouts.** The k-th layout of a game is a function of the seed, the game's index and k, so the games that follow a
    seeded reset are the same whatever the agents do.

    Args:
        seeds: the environment's node of the seed tree.
        task: what is laid out, and what solves it.
        n_envs: games in lock step.
        agent_view_size: cells of the agent's view along either axis, for `view` and for what `grid` has seen. Odd, 3 to
            31.
        horizon: steps an episode; None: the task's customary number.
        observe: channels agents see.

    Raises:
        ConfigError: a view size that is even or out of range, or no channel, or one twice.
    """

    spec: EnvSpec

    def __init__(
        self,
        seeds: Seeds,
        task: Task,
        n_envs: PositiveInt = 16,
        agent_view_size: PositiveInt = 3,
        horizon: PositiveInt | None = None,
        observe: Sequence[ChannelName] = ("grid",),
    ) -> None:
        if agent_view_size % 2 == 0 or not 3 <= agent_view_size <= MAX_VIEW:
            raise ConfigError(f"agent_view_size={agent_view_size} must be odd and 3 to {MAX_VIEW}, e.g. 3 or 7")
        if not observe or len(set(observe)) < len(observe):
            raise ConfigError(f"observe={list(observe)} must name one or more of grid, view, direction, each once")
        self._task = task
        self._horizon = horizon or task.horizon
        self._world = World(n_envs, task.width, task.height, margin=agent_view_size - 1)
        self._eyes = Eyes(self._world, agent_view_size)
        self._map = SeenMap(self._world) if "grid" in observe else None
        channels = {
            "grid": Channel((task.width, task.height, 4), "uint8", 0, 10, codes=CODES),
            "view": Channel((agent_view_size, agent_view_size, 3), "uint8", 0, 10, codes=CODES[:3]),
            "direction": Channel((4,), "float32", 0.0, 1.0),
        }
        metrics: dict[str, Aggregate] = {"success": "sum", "lava": "sum"} if task.has_lava else {"success": "sum"}
        self.spec = EnvSpec(
            name=task.name,
            n_envs=n_envs,
            n_agents=1,
            observation={name: channels[name] for name in observe},
            n_actions=len(ACTION_NAMES),
            action_names=ACTION_NAMES,
            horizon=self._horizon,
            metrics=metrics,
        )
        self._root = seeds.integer("layouts")
        self._groups = 1
        self._drawn = np.zeros(n_envs, dtype=np.int64)  # layouts since the last seeding
        self._terminated = np.zeros(n_envs, dtype=bool)
        self._truncated = np.zeros(n_envs, dtype=bool)

    def reset(self, mask: Array | None = None, seed: int | None = None) -> Observation:
        """Start new episodes where `mask` [n_envs] is true (None: everywhere); `seed` begins new series of layouts."""
        if seed is not None:
            self._root = Seeds(seed).integer("layouts")
            self._drawn[:] = 0
        n_envs = self.spec.n_envs
        chosen = np.arange(n_envs) if mask is None else np.flatnonzero(np.asarray(mask, dtype=bool))
        games = chosen.tolist()
        streams = Seeds(self._root)
        per_group = n_envs // self._groups
        numbers = [streams.child(game % per_group).numpy(int(self._drawn[game])) for game in games]
        self._world.begin(games, [self._task.draw(rng) for rng in numbers])
        self._drawn[chosen] += 1
        self._terminated[chosen] = self._truncated[chosen] = False
        if self._map is not None:
            self._map.forget(chosen)
        return self._observe()

    def step(self, action: Array) -> Step:
        """Let the agents do `action` [n_envs, 1]; games that have ended stay as they are.

        Raises:
            ValueError: an action is not 0 to 6, or a game was never reset.
        """
        chosen = np.asarray(action)
        if chosen.shape != (self.spec.n_envs, 1):
            raise ValueError(f"actions must be [{self.spec.n_envs}, 1], got an array of shape {list(chosen.shape)}")
        if chosen.min() < 0 or chosen.max() >= len(ACTION_NAMES):
            raise ValueError(f"actions must be 0 to {len(ACTION_NAMES) - 1}, got {chosen.min()} to {chosen.max()}")
        if not self._world.begun.all():
            raise ValueError("reset() must be called before step()")
        active = ~(self._terminated | self._truncated)
        events = self._world.step(chosen[:, 0], active)
        success = self._task.success(events)
        self._terminated |= success | events.lava
        self._truncated |= active & (self._world.time >= self._horizon)

        reward = np.where(success, 1 - 0.9 * (self._world.time / self._horizon), 0.0).astype(np.float32)[:, None]
        info = {"success": success.astype(np.float32)}
        if self._task.has_lava:
            info["lava"] = events.lava.astype(np.float32)
        return Step(
            observation=self._observe(),
            reward=reward,
            base_reward=reward.copy(),
            terminated=self._terminated.copy(),
            truncated=self._truncated.copy(),
            info=info,
        )

    def pair_games(self, groups: int) -> None:
        """Lay out game i of each of `groups` equal groups of games alike, from the next reset on."""
        self.spec.games_per_group(groups)
        if groups != self._groups:
            self._groups = groups
            self._drawn[:] = self._drawn.max()

    def set_mechanism(self, values: Array) -> None:
        raise ConfigError(f"{self.spec.name} has no mechanism, so there are no values to set")

    def set_context(self, context: int) -> None:
        raise ConfigError(f"{self.spec.name} has no contexts")

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Game `index`, [32 * H, 32 * W, 3] uint8, drawn by MiniGrid.

        Agents that see `grid` are shown with their map: cells they have never seen are light grey. Otherwise the whole
        world is shown, with what is in sight highlighted.

        Raises:
            ConfigError: the game was never reset.
        """
        if not self._world.begun[index]:
            raise ConfigError(f"{self.spec.name} has no picture to show: call reset() first")
        x, y = (int(axis[index]) for axis in self._world.position)
        cells, heading = self._world.grid[index], int(self._world.heading[index])
        if self._map is not None:
            return picture.draw(cells, (x, y), heading, seen=self._world.without_margin(self._map.seen)[index])
        now = SeenMap(self._world)
        now.add(self._eyes.look())
        return picture.draw(cells, (x, y), heading, bright=self._world.without_margin(now.seen)[index])

    def state_dict(self) -> State:
        return {
            "world": self._world.state_dict(),
            "map": None if self._map is None else self._map.state_dict(),
            "root": self._root,
            "groups": self._groups,
            "drawn": self._drawn.copy(),
            "terminated": self._terminated.copy(),
            "truncated": self._truncated.copy(),
        }

    def load_state_dict(self, state: State) -> None:
        self._world.load_state_dict(state["world"])
        if self._map is not None:
            self._map.load_state_dict(state["map"])
        self._root, self._groups = state["root"], state["groups"]
        self._drawn = state["drawn"].copy()
        self._terminated = state["terminated"].copy()
        self._truncated = state["truncated"].copy()

    def close(self) -> None:
        """Nothing to release."""

    def _observe(self) -> Observation:
        sight: Sight | None = None
        if self._map is not None or "view" in self.spec.observation:
            sight = self._eyes.look()
        seen: Observation = {}
        for name in self.spec.observation:
            if name == "grid" and self._map is not None and sight is not None:
                self._map.add(sight)
                seen[name] = self._map.image()[:, None]
            elif name == "view" and sight is not None:
                seen[name] = self._eyes.view(sight)[:, None]
            else:
                seen[name] = np.eye(4, dtype=np.float32)[self._world.heading][:, None]
        return seen
