"""Frames and Gymnasium's interface of the batched rooms."""

from __future__ import annotations

import numpy as np
from gymnasium.utils.env_checker import check_env

from llmrl.core.seeding import Seeds
from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter
from llmrl.envs.rooms.tasks import ColoredDoorKey, SimpleDoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from minigrid_rooms import RoomEnv
from room_games import layout_rng, reset_reference


def test_pictures_match_minigrid() -> None:
    batched_env = RoomsEnv(Seeds(0), ColoredDoorKey(), 2, agent_view_size=5)
    batched_env.reset(seed=4)
    minigrid_env = RoomEnv(ColoredDoorKey(), agent_view_size=5, render_mode="rgb_array")
    reset_reference(minigrid_env, ColoredDoorKey(), layout_rng(4, 1, 0))
    for action in (0, 2, 0, 2):
        batched_env.step(np.full((2, 1), action))
        minigrid_env.step(action)
        assert np.array_equal(batched_env.render(1), minigrid_env.render())


def test_adapter_passes_gymnasium_s_checker() -> None:
    env = RoomsEnv(Seeds(0), SimpleDoorKey(), 1, observe=["grid", "view", "direction"])
    check_env(GymnasiumAdapter(env), skip_render_check=True)
