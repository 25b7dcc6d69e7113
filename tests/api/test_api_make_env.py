"""`llmrl.make_env` and the ids of Gymnasium: the package's environments in external code."""

import copy
import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils.conversions import parallel_to_aec

import llmrl
import llmrl.gym
from llmrl.core.errors import ConfigError
from llmrl.core.option_files import load_options

SINGLE_AGENT = [
    ("maze", {}),
    ("navigation", {}),
    ("reacher", {}),
    ("blackjack", {}),
    ("simple_doorkey", {"task": {"max_size": 6}}),
    ("babyai_text", {"level": "BabyAI-GoToLocal-v0"}),
]
MULTI_AGENT = [
    ("escape_room", {"show_mechanism": True}),
    ("tax_economy", {"n_agents": 4}),
    ("simple_speaker_listener", {}),
    ("harvest", {"horizon": 20, "n_agents": 3, "map": "own"}),
]
SINGLE_AGENT_CLASSES = (
    "llmrl.envs.babyai.vec_env.BabyAIEnv",
    "llmrl.envs.gym.vec_env.GymnasiumEnv",
    "llmrl.envs.rooms.vec_env.RoomsEnv",
)
WORLDS = {"pettingzoo": "pettingzoo.classic.rps_v2", "openspiel": "kuhn_poker", "textarena": "TicTacToe-v0"}
"""Options that need an id, and one of their games; `openenv` needs a server (test_openenv_server.py)."""
SOCIETIES = [
    pytest.param(name, marks=(pytest.mark.meltingpot, pytest.mark.slow)) if name.endswith("_pixels") else name
    for name, node in load_options("env").items()
    if node["_target_"] not in SINGLE_AGENT_CLASSES and name != "openenv"
]
"""Every environment of several agents."""


def needs_mujoco(name):
    if name == "reacher":
        pytest.importorskip("mujoco")


def arrays_equal(left, right):
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(arrays_equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(arrays_equal, left, right))
    return bool(np.array_equal(left, right))


def play(env, observation, seed, steps=8):
    """Return observations and rewards of `steps` steps with random legal actions, and the last observation."""
    rng, spec, rows = np.random.default_rng(seed), env.spec, []
    for _ in range(steps):
        action = rng.random((spec.n_envs, spec.n_agents, spec.n_actions))
        if spec.continuous_actions is not None:
            action = rng.uniform(-1, 1, (spec.n_envs, spec.n_agents, spec.continuous_actions.dim))
        else:
            action = (action * np.asarray(observation.get("action_mask", 1))).argmax(-1)
        step = env.step(action)
        observation = step.observation
        rows.append(copy.deepcopy((observation, step.reward)))
    return rows, observation


def test_environment_matches_run():
    env = llmrl.make_env("escape_room", n_envs=3, horizon=7, seed=4)
    assert (env.spec.n_envs, env.spec.horizon, env.spec.n_agents) == (3, 7, 5)
    assert env.reset(seed=1)["vector"].shape == (3, 5, 28)
    assert llmrl.make_env("escape_room").spec.n_envs == 32  # as conf/env says


@pytest.mark.parametrize("api", ["vec", "gymnasium", "pettingzoo"])
def test_rejects_deep_copy(api):
    env = llmrl.make_env("blackjack", n_envs=1, api=api)
    env.reset(seed=1)
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(env)


@pytest.mark.parametrize(("name", "options"), [*SINGLE_AGENT, *MULTI_AGENT])
def test_state_copy_is_independent(name, options):
    needs_mujoco(name)
    env, second_env = (llmrl.make_env(name, n_envs=2, **options) for _ in range(2))
    _, observation = play(env, env.reset(seed=1), seed=0, steps=2)
    second_env.load_state_dict(env.state_dict())
    expected, _ = play(env, observation, seed=1)
    assert arrays_equal(expected, play(second_env, observation, seed=1)[0])


def test_any_gymnasium_id_is_accepted():
    env = llmrl.make_env("gymnasium", id="Pendulum-v1", kwargs={"g": 9.0}, n_envs=2)
    assert env.reset(seed=0)["vector"].shape == (2, 1, 3)


def test_nested_fields_are_set_separately():
    incentives = llmrl.make_env("cleanup", n_envs=1, horizon=5, map="own", mechanism={"max_incentive": 1.5})
    assert incentives.spec.mechanism is not None and set(incentives.spec.mechanism.high) == {1.5}
    plain = llmrl.make_env("cleanup", n_envs=1, horizon=5, map="own", mechanism=None)
    assert plain.spec.mechanism is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": "cleanupp"}, "cleanup"),
        ({"env": "maze", "n_games": 2}, "'n_games'"),
        ({"env": "maze", "n_envs": 0}, "n_envs"),
        ({"env": "maze", "api": "gym"}, "vec, gymnasium, pettingzoo"),
        ({"env": "maze", "api": "pettingzoo", "n_envs": 2}, "one game"),
        ({"env": "maze", "api": "gymnasium", "n_envs": 2}, "n_envs=2"),
        ({"env": "escape_room", "api": "gymnasium"}, "api='pettingzoo'"),
    ],
)
def test_invalid_arguments_give_messages(arguments, message):
    with pytest.raises(ConfigError, match=message):
        llmrl.make_env(arguments.pop("env"), **arguments)


@pytest.mark.parametrize(("name", "options"), SINGLE_AGENT, ids=[name for name, _ in SINGLE_AGENT])
def test_single_agent_environments_pass_gymnasium_checker(name, options):
    needs_mujoco(name)
    env = llmrl.make_env(name, api="gymnasium", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", ".*(minimum|maximum) value is.*")  # numbers without bounds are no mistake
        check_env(env, skip_render_check=True)
    first, _ = env.reset(seed=7)
    action = env.action_space.sample()
    after, reward, terminated, truncated, info = env.step(action)
    assert isinstance(reward, float) and isinstance(info["base_reward"], float)
    second_observation, _ = env.reset(seed=7)
    assert arrays_equal(first, second_observation) and arrays_equal(after, env.step(action)[0])
    assert isinstance(terminated, bool) and isinstance(truncated, bool)
    env.close()


@pytest.mark.parametrize("name", ["maze", "simple_doorkey"])
def test_pictures(name):
    env = llmrl.make_env(name, api="gymnasium", render_mode="rgb_array")
    env.reset(seed=0)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.ndim == 3 and picture.shape[2] == 3
    env.close()


def make_society(name):
    """Return a multi-agent environment as PettingZoo's."""
    if name in ("openspiel", "textarena"):
        pytest.importorskip({"openspiel": "pyspiel"}.get(name, name))
    return llmrl.make_env(name, api="pettingzoo", **({"id": WORLDS[name]} if name in WORLDS else {}))


@pytest.mark.parametrize("name", SOCIETIES)
def test_multi_agent_environments_pass_pettingzoo_checkers(name):
    env = make_society(name)
    assert env.env.spec.n_agents > 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        parallel_api_test(env, num_cycles=50)
    spec = env.env.spec
    env.close()
    if "action_mask" in spec.observation:  # the checker of parallel environments ignores masks
        seed_test(lambda: parallel_to_aec(make_society(name)), num_cycles=20)
    elif spec.deterministic:
        parallel_seed_test(lambda: make_society(name), num_cycles=20)


def test_agent_roles_keep_names():
    env = llmrl.make_env("simple_speaker_listener", api="pettingzoo")
    assert env.possible_agents == ["speaker_0", "listener_0"]


@pytest.mark.parametrize("name", llmrl.gym.IDS)
def test_gymnasium_makes_all_ids(name):
    env = gymnasium.make(name)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert len(env.step(env.action_space.sample())) == 5
    env.close()


def test_ids_are_registered_lazily():
    code = (
        "import gymnasium, sys, llmrl.gym\n"
        "gymnasium.spec('llmrl/Maze-v0')\n"
        "print([name for name in ('torch', 'minigrid', 'pettingzoo', 'hydra', 'pandas') if name in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
