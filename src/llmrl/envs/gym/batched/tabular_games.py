"""Batched games with few states, played from a table of transitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.arrays import ArrayGames, choices
from llmrl.envs.gym.batched.transition_table import TransitionTable


class TabularGames(ArrayGames):
    """Games with one transition table, equal to Gymnasium's toy-text environments draw for draw.

    Args:
        n: number of games.
        table: rules of the games.
        picture: function `picture(state, action)` that renders a game in `state`, reached by `action` (None: at the
            start).
        horizon: steps after which an episode is truncated; None: never.
        masks: legal actions in each state, [n_states, n_actions], for `info["action_mask"]`; None: no masks.
    """

    def __init__(
        self,
        n: int,
        table: TransitionTable,
        picture: Callable[[int, int | None], NDArray[np.uint8]],
        horizon: int | None = None,
        masks: NDArray[np.int8] | None = None,
    ) -> None:
        from gymnasium import spaces

        super().__init__(n, spaces.Discrete(table.n_states), spaces.Discrete(table.n_actions), horizon)
        self.table = table
        self._picture, self._masks = picture, masks
        self._state = np.zeros(n, dtype=np.int64)
        self._action = np.full(n, -1, dtype=np.int64)
        self._update_infos()

    def begin(self, indices: NDArray[np.int64], sources: Sequence[np.random.Generator]) -> None:
        for game, source in zip(indices.tolist(), sources, strict=True):
            self._state[game] = np.argmax(self.table.start > source.random())
        self._action[indices] = -1
        self._update_infos()

    def advance(self, actions: Any, playing: NDArray[np.bool_] | None) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        table, action = self.table, choices(actions, self.table.n_actions)
        outcome_index = self._state * table.n_actions + action
        if len(table.sums):
            outcomes = table.sums.searchsorted(self.draw(1, playing)[:, 0], side="right")
            outcome_index = outcome_index * table.state.shape[1] + outcomes
        state = table.state.take(outcome_index)
        self._state = state if playing is None else np.where(playing, state, self._state)
        self._action = action if playing is None else np.where(playing, action, self._action)
        self._update_infos()
        return table.reward.take(outcome_index), table.terminated.take(outcome_index)

    def observe(self) -> NDArray[np.int64]:
        return self._state.copy()

    def render(self, index: int) -> NDArray[np.uint8]:
        action = int(self._action[index])
        return self._picture(int(self._state[index]), None if action < 0 else action)

    def _update_infos(self) -> None:
        if self._masks is not None:
            self.infos = [{"action_mask": mask} for mask in self._masks[self._state]]


def _toy_text_games(entry_point: str, n: int, horizon: int | None, **kwargs: Any) -> TabularGames | None:
    """Return `n` games of an environment with a table of transitions, made by `entry_point` with `kwargs`.

    None: the table does not contain all its rules. Taxi with `fickle_passenger` draws a destination outside the table.
    """
    from gymnasium.envs.registration import load_env_creator

    if kwargs.get("fickle_passenger"):
        return None
    env: Any = load_env_creator(entry_point)(render_mode="rgb_array", **kwargs)
    table = TransitionTable.of(env.P, env.initial_state_distrib)

    def picture(state: int, action: int | None) -> NDArray[np.uint8]:
        env.s, env.lastaction = state, action
        return np.asarray(env.render())

    masks = None
    if hasattr(env, "action_mask"):
        masks = np.stack([env.action_mask(state) for state in range(table.n_states)])
    return TabularGames(n, table, picture, horizon, masks)


frozen_lake_games = partial(_toy_text_games, "gymnasium.envs.toy_text.frozen_lake:FrozenLakeEnv")
cliff_walking_games = partial(_toy_text_games, "gymnasium.envs.toy_text.cliffwalking:CliffWalkingEnv")
taxi_games = partial(_toy_text_games, "gymnasium.envs.toy_text.taxi:TaxiEnv")
"""Functions of a number of games, a horizon, and arguments of the environment."""
