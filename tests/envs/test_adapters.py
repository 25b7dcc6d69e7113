"""The package's environments under the checkers of PettingZoo and Gymnasium."""

import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.adapters.gymnasium_env import GymnasiumAdapter
from llmrl.envs.adapters.parallel import ParallelAdapter
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.substrate.society_env import SubstrateSettings


def melting_pot(substrate, mechanism, render=False, **options):
    from llmrl.envs.melting_pot.vec_env import MeltingPotEnv

    return MeltingPotEnv(SubstrateSettings(substrate, 1, mechanism=mechanism, **options), Seeds(0), render)


def native(substrate, mechanism, **options):
    from llmrl.envs.native.vec_env import NativeEnv

    return NativeEnv(SubstrateSettings(substrate, 1, mechanism=mechanism, horizon=20, **options), Seeds(0))


NATIVE = [
    pytest.param(lambda: native("harvest", BracketedTax(), observe=["pixels", "grid"]), id="native harvest"),
    pytest.param(lambda: native("cleanup", Incentives(), observe=["grid", "vector"]), id="native cleanup"),
]
FACTORIES = [
    *NATIVE,
    pytest.param(lambda: make_env("escape_room", n_envs=1), id="escape_room"),
    pytest.param(
        lambda: melting_pot("harvest", BracketedTax(), horizon=20),
        id="harvest",
        marks=pytest.mark.meltingpot,
    ),
    pytest.param(
        lambda: melting_pot("cleanup", Incentives(), horizon=20, observe=["vector"]),
        id="cleanup",
        marks=pytest.mark.meltingpot,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("factory", FACTORIES)
def test_parallel_api(factory):
    env = ParallelAdapter(factory())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            parallel_api_test(env, num_cycles=50)
    finally:
        env.close()


@pytest.mark.parametrize("factory", NATIVE)
def test_seed_reproduces_game(factory):
    parallel_seed_test(lambda: ParallelAdapter(factory()), num_cycles=30)


def test_observations_are_not_overwritten():
    env = ParallelAdapter(native("harvest", None, observe=["pixels"]))
    pixels = env.reset(seed=1)[0]["player_0"]["pixels"]
    pixels_copy = pixels.copy()
    for _ in range(3):
        env.step(dict.fromkeys(env.agents, 5))
    assert (pixels == pixels_copy).all()


def test_parallel_env_forwards_rewards():
    env = ParallelAdapter(make_env("escape_room", n_envs=1, horizon=2))
    env.env.set_mechanism([0, 0, 0, 0, 3])
    observation, _ = env.reset(seed=1, options={"context": 0})
    assert set(observation) == {f"player_{i}" for i in range(5)}
    stay = dict.fromkeys(env.agents, 4)
    _, reward, terminated, truncated, info = env.step(stay)
    assert reward == dict.fromkeys(stay, 3.0)
    assert info["player_0"]["base_reward"] == 0
    assert not any(terminated.values()) and not any(truncated.values())
    assert all(env.step(stay)[3].values()) and env.agents == []


@pytest.mark.slow
@pytest.mark.meltingpot
def test_single_player_society_passes_gymnasium_checker():
    env = GymnasiumAdapter(melting_pot("cleanup", Incentives(), n_agents=1, horizon=20, render=True), "rgb_array")
    try:
        check_env(env, skip_render_check=True)
        env.reset()
        assert env.render().shape == (168, 240, 3)
        truncated, length = False, 0
        while not truncated:
            _, _, terminated, truncated, _ = env.step(np.int64(0))
            length += 1
            assert not terminated
        assert length == 20
    finally:
        env.close()


def test_rejects_multiple_games():
    with pytest.raises(ConfigError, match="n_envs=1"):
        ParallelAdapter(make_env("escape_room", n_envs=2))


def test_gymnasium_rejects_multiple_agents():
    with pytest.raises(ConfigError, match="use PettingZoo"):
        GymnasiumAdapter(make_env("escape_room", n_envs=1))
