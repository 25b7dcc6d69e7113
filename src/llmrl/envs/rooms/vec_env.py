"""Rooms as a `VecEnv`: n parallel copies (games) of one task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import MinLen
from numpy.typing import NDArray

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.core.records import Array, Observation, Step
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Aggregate, Channel, EnvSpec
from llmrl.envs.array_games import ArrayGames
from llmrl.envs.env_errors import name_env_in_errors
from llmrl.envs.rooms.grid_world import ACTION_NAMES, GridWorld
from llmrl.envs.rooms.tasks import RoomTask
from llmrl.envs.rooms.views import MAX_VIEW_SIZE, ExploredMap, Viewer

ChannelName = Literal["grid", "view", "direction"]

CODE_SIZES = (11, 6, 3, 5)
"""Number of possible values of each code of a cell: MiniGrid's kinds of objects, colors and door states, and the
agent's heading (0 to 3, or 4 where the agent is not)."""

TILE_SIZE = 32
"""Width and height of a cell in a frame, in pixels."""

UNSEEN_GRAY_LEVEL = 200
"""Gray level of unseen cells in a frame, 0 to 255."""


class RoomsEnv(ArrayGames):
    """A vectorized environment of `n_envs` games with one agent each.

    **Actions.** Those of MiniGrid: left, right, forward, pickup, drop, toggle, done (which does nothing).

    **Reward.** 1 - 0.9 * step / horizon in the step that solves the task, 0 in all others.

    **Observation.** `grid` [n_envs, 1, W, H, 4] uint8: kind, color and current state of each cell seen in the episode,
    and the agent's heading in its cell (4 elsewhere), see `ExploredMap.build_image`. `view` [n_envs, 1, v, v, 3] uint8:
    MiniGrid's view of the cells in front of the agent (`Viewer.build_image`). `direction` [n_envs, 1, 4] float32:
    heading, one-hot.

    **End.** Terminated when the task is solved or the agent steps into lava; truncated after `horizon` steps. As in
    MiniGrid, the last step can be both.

    **Layouts.** The k-th layout of a game is a function of the seed, the game's index and k. Layouts after a seeded
    reset therefore do not depend on the agents' actions.

    Args:
        seeds: seed tree of the environment.
        task: task, which generates layouts and decides success.
        n_envs: number of games.
        agent_view_size: width and height of the agent's view, in cells, which also defines the cells that `grid` shows
            as seen. Odd, 3 to 31.
        horizon: steps after which an episode is truncated; None: the task's default.
        observe: channels that agents observe.

    Raises:
        ConfigError: the view size is even or out of range.
    """

    _state_fields = ("_world", "_map", "_roots", "_groups", "_drawn", "_terminated", "_truncated")
    _stream_name = "layouts"

    def __init__(
        self,
        seeds: Seeds,
        task: RoomTask,
        n_envs: PositiveInt = 16,
        agent_view_size: PositiveInt = 3,
        horizon: PositiveInt | None = None,
        observe: Annotated[Sequence[ChannelName], MinLen(1)] = ("grid",),
    ) -> None:
        self._init_arguments = {name: x for name, x in locals().items() if name not in ("self", "n_envs")}
        if agent_view_size % 2 == 0 or not 3 <= agent_view_size <= MAX_VIEW_SIZE:
            raise ConfigError(f"env.agent_view_size={agent_view_size} must be odd and 3 to {MAX_VIEW_SIZE}, e.g. 3")
        self._task = task
        self._horizon = horizon or task.horizon
        self._world = GridWorld(n_envs, task.width, task.height, margin=agent_view_size - 1)
        self._viewer = Viewer(self._world, agent_view_size)
        self._map = ExploredMap(self._world) if "grid" in observe else None
        channels = {
            "grid": Channel((task.width, task.height, 4), "uint8", 0, 10, codes=CODE_SIZES),
            "view": Channel((agent_view_size, agent_view_size, 3), "uint8", 0, 10, codes=CODE_SIZES[:3]),
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
        self._reseed([(seeds, self._stream_name)])
        self._drawn = np.zeros(n_envs, dtype=np.int64)  # number of layouts sampled per game since the last seeding
        self._terminated = np.zeros(n_envs, dtype=bool)
        self._truncated = np.zeros(n_envs, dtype=bool)

    def make_single_game(self) -> RoomsEnv:
        """Return a new environment with the same options and one game, not reset yet."""
        options: Any = self._init_arguments
        return name_env_in_errors(RoomsEnv(**options, n_envs=1))

    def reset(self, mask: Array | None = None, seed: int | Sequence[int] | None = None) -> Observation:
        if seed is not None:
            self._drawn[:] = 0
        return super().reset(mask, seed)

    @property
    def _started_mask(self) -> np.ndarray:
        return self._world.is_started

    def _begin_episodes(self, reset_mask: np.ndarray) -> None:
        indices = np.flatnonzero(reset_mask)
        games = indices.tolist()
        layouts = [self._task.sample_layout(self._create_layout_generator(game)) for game in games]
        self._world.start_episodes(games, layouts)
        self._drawn[indices] += 1
        self._terminated[indices] = self._truncated[indices] = False
        if self._map is not None:
            self._map.clear(indices)

    def _create_layout_generator(self, game: int) -> np.random.Generator:
        """Return a generator with the random numbers of a game's next layout."""
        group_seed, index = self._find_group_seed_and_index(game)
        return Seeds(group_seed).child(index).numpy(int(self._drawn[game]))

    def step(self, action: Array) -> Step:
        """Advance all games by `action` [n_envs, 1]. Games that have ended do not change.

        Raises:
            ValueError: the shape is wrong, an action is not in 0 .. 6, or a game was never reset.
        """
        actions = self._check_actions(action)
        active = ~(self._terminated | self._truncated)
        events = self._world.step(actions[:, 0], active)
        is_success = self._task.find_successes(events)
        self._terminated |= is_success | events.entered_lava
        self._truncated |= active & (self._world.time >= self._horizon)

        reward = np.where(is_success, 1 - 0.9 * (self._world.time / self._horizon), 0.0)[:, None]
        info = {"success": is_success, "lava": events.entered_lava}
        return self._build_step(reward, reward, self._terminated, self._truncated, info)

    def share_random_numbers(self, n_groups: int) -> None:
        previous_n_groups = self._groups
        super().share_random_numbers(n_groups)
        if n_groups != previous_n_groups:
            self._drawn[:] = self._drawn.max()

    def render(self, index: int = 0) -> NDArray[np.uint8]:
        """Return a frame of game `index`, [32 * H, 32 * W, 3] uint8, with cells rendered by MiniGrid.

        If the agent observes `grid`, the frame shows the cells that it has seen; others are light gray. Otherwise it
        shows all cells, with the visible ones highlighted.

        Raises:
            ConfigError: the game was never reset.
        """
        if not self._world.is_started[index]:
            raise ConfigError(f"{self.spec.name} has no frame to show; call reset() first")
        x, y = (int(axis[index]) for axis in self._world.position)
        cells, heading = self._world.grid[index], int(self._world.heading[index])
        if self._map is not None:
            return draw_frame(cells, (x, y), heading, is_shown=self._world.strip_margin(self._map.seen)[index])
        visible_map = ExploredMap(self._world)
        visible_map.add(self._viewer.compute_field_of_view())
        return draw_frame(cells, (x, y), heading, is_highlighted=self._world.strip_margin(visible_map.seen)[index])

    def _observe(self) -> Observation:
        field_of_view = self._viewer.compute_field_of_view()
        observation: Observation = {}
        for name in self.spec.observation:
            if name == "grid" and self._map is not None:
                self._map.add(field_of_view)
                observation[name] = self._map.build_image()[:, None]
            elif name == "view":
                observation[name] = self._viewer.build_image(field_of_view)[:, None]
            else:
                observation[name] = np.eye(4, dtype=np.float32)[self._world.heading][:, None]
        return observation


def draw_frame(
    cells: NDArray[np.uint8],
    position: tuple[int, int],
    heading: int,
    is_shown: NDArray[np.bool_] | None = None,
    is_highlighted: NDArray[np.bool_] | None = None,
) -> NDArray[np.uint8]:
    """Return a frame of one game, [32 * H, 32 * W, 3] uint8.

    Args:
        cells: kind, color and state of each cell, [W, H, 3].
        position: the agent's cell (x, y).
        heading: 0 east, 1 south, 2 west, 3 north.
        is_shown: whether to show each cell, [W, H] bool; the others are light gray. None: all are shown.
        is_highlighted: whether to highlight each cell, [W, H] bool; None: none is highlighted.
    """
    from minigrid.core.grid import Grid
    from minigrid.core.world_object import WorldObj

    width, height, _ = cells.shape
    image = np.full((height, TILE_SIZE, width, TILE_SIZE, 3), UNSEEN_GRAY_LEVEL, dtype=np.uint8)
    for x in range(width):
        for y in range(height):
            if is_shown is None or is_shown[x, y]:
                image[y, :, x] = Grid.render_tile(
                    WorldObj.decode(*cells[x, y].tolist()),
                    agent_dir=heading if (x, y) == position else None,
                    highlight=is_highlighted is not None and bool(is_highlighted[x, y]),
                    tile_size=TILE_SIZE,
                )
    return image.reshape(height * TILE_SIZE, width * TILE_SIZE, 3)
