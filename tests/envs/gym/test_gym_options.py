"""The options of conf/env for environments of Gymnasium."""

import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from llmrl.config.builder import Builder
from llmrl.config.option_docs import read_description
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options
from llmrl.core.seeding import Seeds
from llmrl.core.services import EnvServices
from llmrl.envs.gym.batched import BATCHED_GAMES
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.experiment.build_env import build_env

FOLDER = Path(__file__).parents[3] / "conf" / "env"
TARGET = "llmrl.envs.gym.vec_env.GymnasiumEnv"
OPTIONS = {name: option for name, option in load_options("env").items() if option.get("_target_") == TARGET}
PUBLISHED_TASKS = [
    "mountain_car_continuous",
    "inverted_pendulum",
    "inverted_double_pendulum",
    "reacher",
    "swimmer",
    "hopper",
    "walker2d",
    "frozen_lake",
    "cliff_walking",
    "maze",
    "nim",
    "mountain_car",
    "navigation",
    "pong",
    "cartpole",
]


def build(name: str, **fields) -> GymnasiumEnv:
    return build_env({**OPTIONS[name], "n_envs": 2, **fields}, Builder(EnvServices(Seeds(0))))


def test_fifteen_tasks_exist():
    assert set(PUBLISHED_TASKS) <= set(OPTIONS)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name != "gymnasium"])
def test_option_plays(name):
    env = build(name)
    # Levels of MiniGrid count their steps themselves, and a hand of cards ends soon.
    assert env.spec.horizon is not None or name in ("blackjack", "minigrid", "babyai")
    env.reset(seed=0)
    shape = (2, 1) if env.spec.continuous_actions is None else (2, 1, env.spec.continuous_actions.dim)
    step = env.step(np.zeros(shape, dtype=np.int64 if env.spec.continuous_actions is None else np.float64))
    assert step.reward.shape == (2, 1)
    extra_metrics = ["progress"] if OPTIONS[name]["progress"] else []
    assert env.spec.metrics == dict.fromkeys(["success", *extra_metrics], "last")
    env.close()


def test_options_use_batched_engines():
    """Check that options use the batched engine if one exists, except options for language models."""
    stock = {name for name, option in OPTIONS.items() if option["engine"] == "stock" and option["id"] in BATCHED_GAMES}
    assert stock <= {"taxi"}


def test_gymnasium_environments_have_options():
    env = build("gymnasium", id="Pendulum-v1", kwargs={"g": 9.81})
    assert env.spec.name == "Pendulum-v1"
    assert env.spec.horizon == 200
    env.close()


@pytest.mark.parametrize(("name", "package"), [("hopper", "mujoco"), ("lunar_lander", "box2d")])
def test_missing_package_names_extra(monkeypatch, name, package):
    for module in [*sys.modules]:
        if module.split(".")[0] in ("mujoco", "Box2D") or module.startswith(
            ("gymnasium.envs.mujoco", "gymnasium.envs.box2d")
        ):
            monkeypatch.delitem(sys.modules, module)
    for module in ("mujoco", "Box2D"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"'llmrl\[{package}\]'"):
        build(name)


def test_comment_limits_match_gymnasium():
    import llmrl.envs.gym.tasks  # noqa: F401  (registers)

    for name, option in OPTIONS.items():
        if name in ("gymnasium", "minigrid", "babyai"):
            continue
        limit, comment = gymnasium.spec(option["id"]).max_episode_steps, read_description(FOLDER / f"{name}.yaml")
        assert (" steps" not in comment) if limit is None else (f"{limit} steps" in comment)
