"""The tasks of this package as Gymnasium environments, each based on batched games with n = 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched import BatchedGames
from llmrl.envs.gym.tasks import maze, navigation, nim, pong

_ACTIVE = np.ones(1, dtype=bool)
_GAME_INDICES = np.zeros(1, dtype=np.int64)


class SingleGameEnv(gymnasium.Env[Any, Any]):
    """A Gymnasium environment based on batched games with n = 1; Gymnasium's `TimeLimit` truncates its episodes.

    Its methods `get_..._description` and `get_..._schema` describe the environment in words (`env.text=own`).

    Args:
        games: batched games with n = 1 and no step limit.
        goal: goal in words.
        observations: name -> description of each observed quantity (see `llmrl.envs.texts`).
        actions: name -> effect of each action.
        render_mode: `rgb_array`, or None.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        games: BatchedGames,
        goal: str,
        observations: Mapping[str, Mapping[str, Any]],
        actions: Mapping[str, str],
        render_mode: str | None = None,
    ) -> None:
        self._games, self._goal, self._observations, self._actions = games, goal, observations, actions
        self.observation_space, self.action_space = games.observation_space, games.action_space
        self.render_mode = render_mode

    def get_goal_description(self) -> str:
        return self._goal

    def get_observation_schema(self) -> dict[str, dict[str, Any]]:
        return {name: dict(description) for name, description in self._observations.items()}

    def get_action_schema(self) -> dict[str, str]:
        return dict(self._actions)

    def reset(self, *, seed: int | None = None, options: Mapping[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._games.start(_GAME_INDICES, [self.np_random])
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        _, reward, terminated, _ = self._games.step([action], _ACTIVE)
        return self._observe(), float(reward[0]), bool(terminated[0]), False, {}

    def render(self) -> NDArray[np.uint8] | None:
        return self._games.render(0) if self.render_mode == "rgb_array" else None

    def _observe(self) -> Any:
        observation = self._games.observe()[0]
        return int(observation) if np.ndim(observation) == 0 else observation


class MazeEnv(SingleGameEnv):
    """See `llmrl.envs.gym.tasks.maze`."""

    def __init__(self, render_mode: str | None = None, parity: bool = False) -> None:
        goal = maze.GOAL_TEXT + maze.PARITY_TEXT * parity
        games = maze.MazeGames(n=1, horizon=None, parity=parity)
        super().__init__(games, goal, maze.OBSERVATION_SCHEMA, maze.ACTION_SCHEMA, render_mode)


class NimEnv(SingleGameEnv):
    """See `llmrl.envs.gym.tasks.nim`."""

    def __init__(self, render_mode: str | None = None, takes: Sequence[int] = nim.DEFAULT_TAKES) -> None:
        actions = {f"take {n}": f"take {n} stick{'s' * (n != 1)}" for n in takes}
        games = nim.make_nim_games(n=1, horizon=None, takes=takes)
        super().__init__(games, nim.describe_goal(takes), nim.OBSERVATION_SCHEMA, actions, render_mode)


class NavigationEnv(SingleGameEnv):
    """See `llmrl.envs.gym.tasks.navigation`."""

    def __init__(self, render_mode: str | None = None) -> None:
        games = navigation.NavigationGames(n=1)
        super().__init__(
            games, navigation.GOAL_TEXT, navigation.OBSERVATION_SCHEMA, navigation.ACTION_SCHEMA, render_mode
        )


class PongEnv(SingleGameEnv):
    """See `llmrl.envs.gym.tasks.pong`."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 60}

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(pong.PongGames(n=1), pong.GOAL_TEXT, pong.OBSERVATION_SCHEMA, pong.ACTION_SCHEMA, render_mode)
