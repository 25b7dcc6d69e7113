"""The rooms on MiniGrid itself, through Gymnasium."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from llmrl.core.seeding import Seeds
from llmrl.envs.rooms import gymnasium_envs
from llmrl.envs.rooms.registration import IDS, register
from llmrl.envs.rooms.tasks import ColoredDoorKey, SimpleDoorKey
from llmrl.envs.rooms.vec_env import RoomsEnv
from room_games import begin, numbers


@pytest.mark.parametrize("observation", ["map", "view"])
@pytest.mark.parametrize("name", IDS)
def test_gymnasium_checker_passes(name: str, observation: str) -> None:
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        env = gymnasium.make(name, observation=observation, render_mode="rgb_array")
        check_env(env.unwrapped, skip_render_check=True)
        assert (
            env.reset(seed=0)[0]["image"].shape == ((env.unwrapped.width,) * 2 + (4,), (3, 3, 3))[observation == "view"]
        )
        side = 32 * env.unwrapped.width
        assert env.render().shape == (side, side, 3)
    assert not [str(warning.message) for warning in caught_warnings]


def test_plain_make_imports_module() -> None:
    make = "gymnasium.make('llmrl.envs.rooms.gymnasium_envs:llmrl/TwoDoor-v0')"
    program = f"import gymnasium; print({make}.unwrapped.width)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "20"


def test_registration_is_idempotent() -> None:
    registered = {name: gymnasium.registry[name] for name in IDS}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        register()
    assert {name: gymnasium.registry[name] for name in IDS} == registered


@pytest.mark.parametrize("seed", [0, 1])
def test_seeded_games_are_reproducible(seed: int) -> None:
    images = []
    for _ in range(2):
        env = gymnasium.make("llmrl/ColoredDoorKey-v0", n_keys=3, min_size=6, max_size=9)
        games = [env.reset(seed=seed)[0]["image"], *(env.reset()[0]["image"] for _ in range(3))]
        images.append(np.stack(games))
    assert np.array_equal(*images)
    assert images[0].shape == (4, 9, 9, 4)
    assert not np.array_equal(images[0][0], env.reset(seed=seed + 2)[0]["image"])


def test_vector_environment() -> None:
    makers = [lambda: gymnasium.make("llmrl/SimpleDoorKey-v0")] * 2
    envs = gymnasium.vector.SyncVectorEnv(makers)
    assert envs.reset(seed=0)[0]["image"].shape == (2, 10, 10, 4)
    assert pickle.loads(pickle.dumps(envs.single_observation_space)) == envs.single_observation_space  # noqa: S301


def test_pictures_match_batched_rooms() -> None:
    batched_env = RoomsEnv(Seeds(0), ColoredDoorKey(), 2, agent_view_size=5)
    batched_env.reset(seed=4)
    gymnasium_env = gymnasium.make("llmrl/ColoredDoorKey-v0", agent_view_size=5, render_mode="rgb_array").unwrapped
    begin(gymnasium_env, ColoredDoorKey(), numbers(4, 1, 0))
    for action in (0, 2, 0, 2):
        batched_env.step(np.full((2, 1), action))
        gymnasium_env.step(action)
        assert np.array_equal(batched_env.render(1), gymnasium_env.render())


def test_rejects_unknown_observation() -> None:
    with pytest.raises(ValueError, match=r"'map'.*'view'"):
        gymnasium.make("llmrl/SimpleDoorKey-v0", observation="pixels")


@pytest.mark.parametrize("name", IDS)
def test_docstrings_have_minigrid_s_sections(name: str) -> None:
    text = getattr(gymnasium_envs, gymnasium.registry[name].entry_point.split(":")[1]).__doc__
    sections = [line.strip() for line in text.splitlines() if line.strip().startswith("## ")]
    assert sections == [
        "## Description",
        "## Mission Space",
        "## Action Space",
        "## Observation Encoding",
        "## Rewards",
        "## Termination",
        "## Registered Configurations",
        "## Options",
    ]
    assert f"`{name}`" in text


def test_mission_matches_task() -> None:
    observation, _ = gymnasium.make("llmrl/SimpleDoorKey-v0").reset(seed=0)
    assert observation["mission"] == SimpleDoorKey.mission == "open the door"


def test_batched_rooms_match_gymnasium() -> None:
    from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter

    env = RoomsEnv(Seeds(0), SimpleDoorKey(), 1, observe=["grid", "view", "direction"])
    check_env(GymnasiumAdapter(env), skip_render_check=True)
