"""Gymnasium environments in lock step: equal games, with the extensions for learners and players."""

import gymnasium
import numpy as np
import pytest

from environments import make_env
from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import PolicyOutput
from llmrl.core.seeding import Seeds
from llmrl.rollout.collector import Collector, evaluate_policy


def games(name="CartPole-v1", **kwargs):
    return make_env("gymnasium", Seeds(0).child("env"), id=name, **{"n_envs": 3, **kwargs})


def actions(spec, rng):
    if spec.continuous_actions is None:
        return rng.integers(spec.n_actions, size=(spec.n_envs, 1))
    return rng.uniform(
        spec.continuous_actions.low, spec.continuous_actions.high, size=(spec.n_envs, 1, spec.continuous_actions.dim)
    )


@pytest.mark.parametrize(
    ("name", "channels"),
    [
        ("CartPole-v1", {"vector": (4,)}),
        ("MountainCarContinuous-v0", {"vector": (2,)}),
        ("FrozenLake-v1", {"state": (), "vector": (16,)}),
        ("Taxi-v4", {"state": (), "vector": (500,), "action_mask": (6,)}),
        ("Blackjack-v1", {"vector": (32 + 11 + 2,)}),
        ("MiniGrid-Empty-5x5-v0", {"vector": (7 * 7 * 3 + 4,)}),
    ],
)
def test_channels_match_space(name, channels):
    env = games(name)
    assert {key: channel.shape for key, channel in env.spec.observation.items()} == channels
    observation = env.reset(seed=1)
    for key, shape in channels.items():
        assert observation[key].shape == (3, 1, *shape)
        assert observation[key].dtype == np.dtype(env.spec.observation[key].dtype)


def test_dict_parts_have_names():
    [parts] = games("MiniGrid-Empty-5x5-v0").spec.observation["vector"].parts
    assert parts == {"direction": slice(0, 4), "image": slice(4, 151)}


def test_game_matches_gymnasium():
    env, rng = games(), np.random.default_rng(0)
    observation = env.reset(seed=7)["vector"]
    single_envs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    for i, single_env in enumerate(single_envs):
        first, _ = single_env.reset(seed=Seeds(7).child(i).integer(0))
        np.testing.assert_array_equal(first, observation[i, 0])
    for _ in range(8):
        action = actions(env.spec, rng)
        step = env.step(action)
        for i, single_env in enumerate(single_envs):
            single_observation, reward, terminated, truncated, _ = single_env.step(int(action[i, 0]))
            np.testing.assert_array_equal(single_observation, step.observation["vector"][i, 0])
            assert (reward, terminated, truncated) == (step.reward[i, 0], step.terminated[i], step.truncated[i])


RESTORED_GAMES = (
    "CartPole-v1",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
    "MiniGrid-Empty-5x5-v0",
    "BipedalWalker-v3",  # keeps its physics across resets
)


@pytest.mark.parametrize("name", RESTORED_GAMES)
def test_restored_game_is_identical(name):
    if name == "BipedalWalker-v3":
        pytest.importorskip("Box2D")
    env, rng = games(name), np.random.default_rng(1)
    env.reset(seed=3)
    for _ in range(150 if name == "BipedalWalker-v3" else 30):
        step = env.step(actions(env.spec, rng))
        done = step.terminated | step.truncated
        if done.any() and rng.random() < 0.7:  # some games are saved while they wait
            env.reset(mask=done)
    second_env = games(name)
    second_env.load_state_dict(env.state_dict())
    for _ in range(20):
        action = actions(env.spec, rng)
        first, second = env.step(action), second_env.step(action)
        for field in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
        for key, value in first.observation.items():
            np.testing.assert_array_equal(value, second.observation[key])
        done = first.terminated | first.truncated
        if done.any():
            env.reset(mask=done), second_env.reset(mask=done)


def test_doubly_saved_games_are_identical():
    """Start games at different times, restore them, play, and restore them again."""
    env, rng = games(), np.random.default_rng(4)
    env.reset(seed=3)
    for i in range(6):
        env.step(actions(env.spec, rng))
        env.reset(mask=np.arange(3) == i % 2)
    for _ in range(2):
        second_env = games()
        second_env.load_state_dict(env.state_dict())
        assert [len(actions_stored) for actions_stored in second_env.state_dict()["actions"]] == [
            len(game_actions) for game_actions in env.state_dict()["actions"]
        ]
        for _ in range(3):
            action = actions(env.spec, rng)
            first, second = (env_copy.step(action).observation["vector"] for env_copy in (env, second_env))
            np.testing.assert_array_equal(first, second)
        env = second_env


def test_active_episode_actions_are_stored():
    env = games(n_envs=2)
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.array([[0], [1]]))
    env.reset(mask=np.array([True, False]))
    env.step(np.array([[0], [0]]))
    assert [actions_stored[:, 0].tolist() for actions_stored in env.state_dict()["actions"]] == [[0], [1, 1, 1, 0]]
    env.reset()
    assert not any(len(actions_stored) for actions_stored in env.state_dict()["actions"]) and not env._history


def test_error_names_missing_mask():
    env = games("Taxi-v4", n_envs=1)
    env.reset(seed=0)
    inner = env._games.envs[0]
    step = inner.step
    inner.step = lambda action: (*step(action)[:4], {})
    with pytest.raises(EngineError, match=r"Taxi-v4.*action_mask"):
        env.step(np.array([[0]]))


def test_custom_package_is_rendered():
    env = games("llmrl.envs.gym.tasks:llmrl/Maze-v0", n_envs=1, render=True)
    env.reset(seed=0)
    assert env.render(0).dtype == np.uint8


@pytest.mark.parametrize(
    ("name", "endless"),
    [
        ("CliffWalking-v1", True),
        ("Blackjack-v1", False),
        ("MiniGrid-Empty-5x5-v0", False),
        ("BabyAI-GoToRedBall-v0", False),
        ("CartPole-v1", False),
    ],
)
def test_termination_is_distinguishable(name, endless, capsys):
    env = games(name, n_envs=1)
    assert env.spec.endless is endless
    assert capsys.readouterr().out == ""
    if name.startswith("MiniGrid"):
        assert env.spec.horizon == 100


def test_paired_games_share_starts():
    env = games(n_envs=4)
    env.share_random_numbers(2)
    observation = env.reset(seed=5)["vector"]
    np.testing.assert_array_equal(observation[:2], observation[2:])
    assert not np.array_equal(observation[0], observation[1])


def test_completed_games_wait():
    env = games("FrozenLake-v1", kwargs={"is_slippery": False}, n_envs=2)
    env.reset(seed=0)
    for action in (1, 2):  # down, then right into the hole at row 1, column 1; the other game stays at the left wall
        step = env.step(np.array([[action], [0]]))
    assert step.terminated.tolist() == [True, False]
    step = env.step(np.array([[2], [1]]))
    assert step.observation["state"].tolist() == [[5], [4]] and step.terminated.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "fields", "moves", "is_success"),
    [
        ("FrozenLake-v1", {"success": "reward", "success_threshold": 1.0}, [1, 1, 2, 2, 1, 2], True),
        ("FrozenLake-v1", {"success": "return", "success_threshold": 1.0}, [1, 2], False),
        ("FrozenLake-v1", {"success": "terminated"}, [1, 2], True),
    ],
)
def test_success_threshold(name, fields, moves, is_success):
    env = games(name, kwargs={"is_slippery": False}, n_envs=1, **fields)
    env.reset(seed=0)
    for move in moves:
        step = env.step(np.array([[move]]))
    assert step.terminated[0] and bool(step.info["success"][0]) is is_success


def test_numbers_are_clipped_to_bounds():
    env = games("MountainCarContinuous-v0", n_envs=2)
    env.reset(seed=0)
    env.share_random_numbers(2)
    env.reset(seed=0)
    step = env.step(np.array([[[5.0]], [[1.0]]]))
    np.testing.assert_array_equal(step.observation["vector"][0], step.observation["vector"][1])
    assert step.reward[0, 0] == step.reward[1, 0] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "CartPol-v1"}, "'CartPol-v1'.*`CartPole`"),
        ({"name": "LunarLander-v2"}, r"deprecated.*LunarLander-v3"),
        ({"name": "CartPole-v1", "kwargs": {"gravitas": 3}}, r"env.kwargs=\{'gravitas': 3\}"),
        (
            {"name": "FrozenLake-v1", "kwargs": {"map_name": None}},
            "map_name=4x4.*env.kwargs.d",
        ),
        ({"name": "FrozenLake-v1", "kwargs": {"map_name": None}, "engine": "batched"}, "map_name=4x4"),
        (
            {"name": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}},
            "FrozenLake-v1.*KeyError.*'9x9'",
        ),
        ({"name": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}, "engine": "batched"}, "'9x9'"),
        ({"name": "FrozenLake-v1", "kwargs": {"desc": ["SFF", "FFX"]}}, "'FFX'"),
        (
            {"name": "FrozenLake-v1", "kwargs": {"desc": ["SFF", "FG"]}, "engine": "batched"},
            r"env\.kwargs\.desc=.*'FG'",
        ),
        ({"name": "FrozenLake-v1", "kwargs": {"desc": ["FFF", "FFG"]}}, r"env\.kwargs\.desc=.*'FFG'.*S"),
        ({"name": "no_such_package:Tower-v3"}, r"trusted_modules=\[no_such_package\]"),
        ({"name": "no_such_package:Tower-v3", "trusted": ("no_such_package",)}, r"named 'no_such_package'"),
        ({"name": "CartPole-v1", "success": "return"}, "success_threshold"),
        ({"name": "CartPole-v1", "success_threshold": 3.0}, "success=None .*env.success_threshold=3.0"),
    ],
)
def test_rejects_unsupported_spaces(fields, message):
    with pytest.raises(ConfigError, match=message):
        games(**fields)


class Faulty(gymnasium.Env):
    """An environment that returns the state `observation` and the reward `reward` from its second step on."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, observation=0, reward=0.0, space=None, kind="known"):
        assert kind == "known", f"there is no kind {kind}"
        self.observation_space = space or gymnasium.spaces.Discrete(3)
        self.seen, self.reward = observation, reward

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        bad = self.steps > 1
        return self.seen if bad else self.observation_space.sample(), self.reward if bad else 1.0, False, False, {}


@pytest.fixture
def faulty():
    gymnasium.register("test/Faulty-v0", entry_point=Faulty, max_episode_steps=9)
    yield "test/Faulty-v0"
    del gymnasium.registry["test/Faulty-v0"]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reward": float("nan")}, "Faulty-v0.*2"),
        ({"reward": float("inf")}, "Faulty-v0.*reward inf .*2"),
        ({"observation": 3}, "Faulty-v0.*2.*observation_space.*3.*3"),
        ({"observation": -1}, r"Discrete\(3\): -1"),
        (
            {"space": gymnasium.spaces.MultiDiscrete([2, 2]), "observation": np.array([0, 5])},
            r" 2 .*MultiDiscrete\(\[2 2\]\): array\(\[0, 5\]\)",
        ),
    ],
    ids=str,
)
def test_error_names_faulty_environment(faulty, kwargs, message):
    env = games(faulty, kwargs=kwargs, n_envs=2)
    env.reset(seed=0)
    env.step(np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(EngineError, match=message):
        env.step(np.zeros((2, 1), dtype=np.int64))


def test_error_names_constructor_error(faulty):
    with pytest.raises(ConfigError, match=r"Faulty-v0.*env.kwargs"):
        games(faulty, kwargs={"kind": "odd"})


class Endless(gymnasium.Env):
    """An environment with an unbounded action and without pictures."""

    metadata = {"render_modes": ["ansi"]}
    observation_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kind="box", render_mode=None):
        box = gymnasium.spaces.Box(-np.inf, np.inf, (2,))
        self.action_space = {"box": box, "text": gymnasium.spaces.Text(3)}[kind]

    def reset(self, *, seed=None, options=None):
        raise AssertionError("refused before it is played")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "RescaleAction"),
        ({"kwargs": {"kind": "text"}}, "Endless-v0"),
        ({"render": True}, r"Endless-v0.*modes: ansi"),
    ],
)
def test_rejects_unplayable_environments(fields, message):
    gymnasium.register("test/Endless-v0", entry_point=Endless)
    try:
        with pytest.raises(ConfigError, match=message):
            games("test/Endless-v0", **fields)
    finally:
        del gymnasium.registry["test/Endless-v0"]


def test_choice_learner_rejects_numbers():
    env = games("MountainCarContinuous-v0")
    with pytest.raises(ConfigError, match=r"agent=drrn.*\(action_0\).*agent=ppo"):
        env.spec.require_discrete_actions("agent=drrn")


@pytest.mark.parametrize("name", ["MountainCarContinuous-v0", "CartPole-v1"])
def test_random_play_stays_legal(name):
    env = games(name, horizon=20)
    episodes = evaluate_policy(Collector(env, RandomPolicy(env.spec), "cpu"), 6, Seeds(1))
    assert len(episodes) == 6 and all(0 < episode.length <= 20 for episode in episodes)


class Watcher:
    """A random policy that records its calls."""

    channels = ()

    def __init__(self, spec):
        self.inner, self.events = RandomPolicy(spec), []

    def act(self, observation, state=None, generator=None, greedy=False):
        self.events.append("act")
        act = self.inner.act(observation, state, generator, greedy)
        return PolicyOutput(act.action, notes=[[{"n": 1}] for _ in act.action])

    def on_reset(self, games, observation):
        self.events.append(("started", games.tolist()))

    def on_step(self, transition):
        self.events.append(("ended", transition.ended.tolist()))
        self.last = transition


def test_policy_receives_episode_events():
    env = games(horizon=200)
    watcher = Watcher(env.spec)
    collector = Collector(env, watcher, "cpu")
    collector.reset(seed=0)
    rollout = collector.collect(200, Seeds(0).torch("actions"), learn=False, restart=False)
    lengths = sorted(episode.length for episode in rollout.episodes)
    assert len(lengths) == 3 and len(set(lengths)) > 1
    assert rollout.reward.shape[0] == lengths[-1] == watcher.events.count("act")
    assert watcher.events[0] == ("started", [True] * 3)
    ends = [entry[1] for entry in watcher.events if entry[0] == "ended"]
    assert ends[-1] == [True] * 3 and sum(ends[lengths[0] - 1]) == 1
    assert watcher.last.output.notes[0][0] == {"n": 1} and watcher.last.step.terminated.all()
    # The return of an episode holds nothing of the steps in which its game waited.
    assert all(episode.returns[0] == episode.length for episode in rollout.episodes)
