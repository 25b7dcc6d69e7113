"""Gymnasium's toy-text environments whose rules are a table: FrozenLake, CliffWalking, Taxi."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmrl.envs.gym.batched.table import Table
from llmrl.envs.gym.batched.tabular import TabularGames


def toy_text_games(entry_point: str, kwargs: Mapping[str, Any], horizon: int | None, n: int) -> TabularGames | None:
    """`n` games of the environment that `entry_point` makes; None where a table does not hold all of its rules.

    That is so where each object would have a map of its own (FrozenLake without a map), and where a passenger's change
    of mind is drawn beside the table (`fickle_passenger` of Taxi).
    """
    from gymnasium.envs.registration import load_env_creator

    own_map = "map_name" in kwargs and kwargs["map_name"] is None and kwargs.get("desc") is None
    if own_map or kwargs.get("fickle_passenger"):
        return None
    env: Any = load_env_creator(entry_point)(render_mode="rgb_array", **kwargs)
    table = Table.of(env.P, env.initial_state_distrib)

    def picture(state: int, action: int | None) -> NDArray[np.uint8]:
        env.s, env.lastaction = state, action
        return np.asarray(env.render())

    masks = None
    if hasattr(env, "action_mask"):
        masks = np.stack([env.action_mask(state) for state in range(table.n_states)])
    return TabularGames(n, table, picture, horizon, masks)
