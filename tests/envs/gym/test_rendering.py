"""Pictures of Gymnasium's environments, with early errors if they are unavailable."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from llmrl.envs.gym.env_factory import EnvFactory, make_gymnasium_env


@pytest.mark.parametrize("id", ["Swimmer-v5", "Hopper-v5"])
def test_camera_follows_robot(id):
    pytest.importorskip("mujoco")
    env = make_gymnasium_env(EnvFactory(id), render=True)
    pictures = []
    for x in (0.0, 40.0):  # a whole number of the floor's squares further
        env.reset(seed=0)
        position = env.unwrapped.data.qpos.copy()
        position[0] = x
        env.unwrapped.set_state(position, np.zeros_like(env.unwrapped.data.qvel))
        pictures.append(np.asarray(env.render(), dtype=np.int64))
    env.close()
    body = [(p[..., 0] > p[..., 2] + 40).mean() for p in pictures]  # brown; floor and sky are gray, green or blue
    assert body[0] > 0.005
    assert body[1] == pytest.approx(body[0], rel=0.2)


def test_missing_graphics_give_clear_error():
    pytest.importorskip("mujoco")
    program = (
        "from llmrl.envs.gym.env_factory import EnvFactory\n"
        "from llmrl.envs.gym.env_factory import GymnasiumGames\n"
        "GymnasiumGames(EnvFactory('Swimmer-v5'), 1, render=True)"
    )
    environment = {**os.environ, "MUJOCO_GL": "nothing"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    assert re.search("ConfigError: Swimmer-v5 .*MUJOCO_GL=nothing", done.stderr)
    assert "play.videos=0" in done.stderr
