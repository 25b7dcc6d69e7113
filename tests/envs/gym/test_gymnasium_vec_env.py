"""Gymnasium environments in lock step: the same games, with what learners and players need of them."""

import gymnasium
import numpy as np
import pytest

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.records import PolicyOutput
from llmrl.core.seeding import Seeds
from llmrl.core.trust import Trust
from llmrl.envs.gym.vec_env import GymnasiumEnv
from llmrl.rollout.collector import Collector
from llmrl.rollout.evaluate_policy import evaluate_policy


def games(name="CartPole-v1", **kwargs):
    return GymnasiumEnv(Seeds(0).child("env"), name, **{"n_envs": 3, **kwargs})


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
def test_channels_are_what_the_space_holds(name, channels):
    env = games(name)
    assert {key: channel.shape for key, channel in env.spec.observation.items()} == channels
    observation = env.reset(seed=1)
    for key, shape in channels.items():
        assert observation[key].shape == (3, 1, *shape)
        assert observation[key].dtype == np.dtype(env.spec.observation[key].dtype)


def test_parts_of_a_dict_have_its_names():
    [parts] = games("MiniGrid-Empty-5x5-v0").spec.observation["vector"].parts
    assert parts == {"direction": slice(0, 4), "image": slice(4, 151)}


def test_a_game_is_the_one_that_gymnasium_plays():
    env, rng = games(), np.random.default_rng(0)
    seen = env.reset(seed=7)["vector"]
    alone = [gymnasium.make("CartPole-v1") for _ in range(3)]
    for i, other in enumerate(alone):
        first, _ = other.reset(seed=Seeds(7).child(i).integer(0))
        np.testing.assert_array_equal(first, seen[i, 0])
    for _ in range(8):
        action = actions(env.spec, rng)
        step = env.step(action)
        for i, other in enumerate(alone):
            observed, reward, terminated, truncated, _ = other.step(int(action[i, 0]))
            np.testing.assert_array_equal(observed, step.observation["vector"][i, 0])
            assert (reward, terminated, truncated) == (step.reward[i, 0], step.terminated[i], step.truncated[i])


RESTORED = (
    "CartPole-v1",
    "MountainCarContinuous-v0",
    "FrozenLake-v1",
    "MiniGrid-Empty-5x5-v0",
    "BipedalWalker-v3",  # keeps its physics across resets
)


@pytest.mark.parametrize("name", RESTORED)
def test_a_restored_game_goes_on_exactly(name):
    if name == "BipedalWalker-v3":
        pytest.importorskip("Box2D")
    env, rng = games(name), np.random.default_rng(1)
    env.reset(seed=3)
    for _ in range(150 if name == "BipedalWalker-v3" else 30):
        step = env.step(actions(env.spec, rng))
        over = step.terminated | step.truncated
        if over.any() and rng.random() < 0.7:  # some games are saved while they wait
            env.reset(mask=over)
    again = games(name)
    again.load_state_dict(env.state_dict())
    for _ in range(20):
        action = actions(env.spec, rng)
        one, two = env.step(action), again.step(action)
        for field in ("reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
        for key, value in one.observation.items():
            np.testing.assert_array_equal(value, two.observation[key])
        over = one.terminated | one.truncated
        if over.any():
            env.reset(mask=over), again.reset(mask=over)


def test_games_that_are_saved_twice_go_on_exactly():
    """Begun at different times, restored, played, restored again."""
    env, rng = games(), np.random.default_rng(4)
    env.reset(seed=3)
    for i in range(6):
        env.step(actions(env.spec, rng))
        env.reset(mask=np.arange(3) == i % 2)
    for _ in range(2):
        again = games()
        again.load_state_dict(env.state_dict())
        assert [len(acted) for acted in again.state_dict()["acted"]] == [len(a) for a in env.state_dict()["acted"]]
        for _ in range(3):
            action = actions(env.spec, rng)
            one, two = (each.step(action).observation["vector"] for each in (env, again))
            np.testing.assert_array_equal(one, two)
        env = again


def test_only_actions_of_episodes_in_progress_are_kept():
    env = games(n_envs=2)
    env.reset(seed=0)
    for _ in range(3):
        env.step(np.array([[0], [1]]))
    env.reset(mask=np.array([True, False]))
    env.step(np.array([[0], [0]]))
    assert [acted[:, 0].tolist() for acted in env.state_dict()["acted"]] == [[0], [1, 1, 1, 0]]
    env.reset()
    assert not any(len(acted) for acted in env.state_dict()["acted"]) and not env._actions


def test_a_missing_mask_is_named():
    env = games("Taxi-v4", n_envs=1)
    env.reset(seed=0)
    inner = env._games.envs[0]
    step = inner.step
    inner.step = lambda action: (*step(action)[:4], {})
    with pytest.raises(EngineError, match=r"Taxi-v4 told which actions are legal.*action_mask"):
        env.step(np.array([[0]]))


def test_a_package_of_ones_own_is_drawn():
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
def test_whether_an_end_is_known(name, endless, capsys):
    env = games(name, n_envs=1)
    assert env.spec.endless is endless
    assert capsys.readouterr().out == ""
    if name.startswith("MiniGrid"):
        assert env.spec.horizon == 100


def test_games_of_a_pair_of_groups_start_alike():
    env = games(n_envs=4)
    env.pair_games(2)
    seen = env.reset(seed=5)["vector"]
    np.testing.assert_array_equal(seen[:2], seen[2:])
    assert not np.array_equal(seen[0], seen[1])


def test_games_that_are_over_wait():
    env = games("FrozenLake-v1", kwargs={"is_slippery": False}, n_envs=2)
    env.reset(seed=0)
    for action in (1, 2):  # down, then right into the hole at row 1, column 1; the other game stays at the left wall
        step = env.step(np.array([[action], [0]]))
    assert step.terminated.tolist() == [True, False]
    step = env.step(np.array([[2], [1]]))
    assert step.observation["state"].tolist() == [[5], [4]] and step.terminated.tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "fields", "moves", "won"),
    [
        ("FrozenLake-v1", {"success": "reward", "success_at": 1.0}, [1, 1, 2, 2, 1, 2], True),
        ("FrozenLake-v1", {"success": "return", "success_at": 1.0}, [1, 2], False),
        ("FrozenLake-v1", {"success": "terminated"}, [1, 2], True),
    ],
)
def test_what_a_success_is(name, fields, moves, won):
    env = games(name, kwargs={"is_slippery": False}, n_envs=1, **fields)
    env.reset(seed=0)
    for move in moves:
        step = env.step(np.array([[move]]))
    assert step.terminated[0] and bool(step.info["success"][0]) is won


def test_numbers_are_clipped_to_their_bounds():
    env = games("MountainCarContinuous-v0", n_envs=2)
    env.reset(seed=0)
    env.pair_games(2)
    env.reset(seed=0)
    step = env.step(np.array([[[5.0]], [[1.0]]]))
    np.testing.assert_array_equal(step.observation["vector"][0], step.observation["vector"][1])
    assert step.reward[0, 0] == step.reward[1, 0] == pytest.approx(-0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "CartPol-v1"}, r"knows no environment 'CartPol-v1'.*CartPole-v1"),
        ({"name": "LunarLander-v2"}, r"deprecated.*LunarLander-v3"),
        ({"name": "CartPole-v1", "kwargs": {"gravitas": 3}}, r"does not take env.kwargs=\{'gravitas': 3\}"),
        (
            {"name": "FrozenLake-v1", "kwargs": {"map_name": None}},
            r"map_name=4x4 or 8x8, or give a map as env.kwargs.d",
        ),
        ({"name": "FrozenLake-v1", "kwargs": {"map_name": None}, "engine": "batched"}, r"without a map.*map_name=4x4"),
        (
            {"name": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}},
            r"FrozenLake-v1 cannot be made with.*KeyError '9x9'",
        ),
        ({"name": "FrozenLake-v1", "kwargs": {"map_name": "9x9"}, "engine": "batched"}, r"cannot be made.*'9x9'"),
        ({"name": "FrozenLake-v1", "kwargs": {"desc": ["SFF", "FFX"]}}, r"'FFX'\] is no map: give rows"),
        ({"name": "FrozenLake-v1", "kwargs": {"desc": ["SFF", "FG"]}, "engine": "batched"}, r"is no map: give rows"),
        ({"name": "FrozenLake-v1", "kwargs": {"desc": ["FFF", "FFG"]}}, r"has no S"),
        ({"name": "no_such_package:Tower-v3"}, r"outside the trusted modules.*trusted_modules=\[no_such_package\]"),
        (
            {"name": "no_such_package:Tower-v3", "trust": Trust(("no_such_package",))},
            r"cannot be imported: No module named 'no_such_package'",
        ),
        ({"name": "CartPole-v1", "success": "return"}, r"need a number success_at"),
        ({"name": "CartPole-v1", "success_at": 3.0}, r"only they do"),
    ],
)
def test_what_cannot_be_played_is_refused(fields, message):
    with pytest.raises(ConfigError, match=message):
        games(**fields)


class Faulty(gymnasium.Env):
    """Shows state `seen` and pays `reward` from its second step on."""

    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, seen=0, reward=0.0, space=None, kind="known"):
        assert kind == "known", f"there is no kind {kind}"
        self.observation_space = space or gymnasium.spaces.Discrete(3)
        self.seen, self.reward = seen, reward

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
        ({"reward": float("nan")}, "test/Faulty-v0 gave the reward nan in step 2 of an episode"),
        ({"reward": float("inf")}, "gave the reward inf in step 2"),
        ({"seen": 3}, r"test/Faulty-v0 showed in step 2 .* not in its observation_space Discrete\(3\): 3"),
        ({"seen": -1}, r"Discrete\(3\): -1"),
        (
            {"space": gymnasium.spaces.MultiDiscrete([2, 2]), "seen": np.array([0, 5])},
            r"in step 2 .*MultiDiscrete\(\[2 2\]\): array\(\[0, 5\]\)",
        ),
    ],
    ids=str,
)
def test_what_a_faulty_environment_does_is_named_where_it_happens(faulty, kwargs, message):
    env = games(faulty, kwargs=kwargs, n_envs=2)
    env.reset(seed=0)
    env.step(np.zeros((2, 1), dtype=np.int64))
    with pytest.raises(EngineError, match=message):
        env.step(np.zeros((2, 1), dtype=np.int64))


def test_what_a_constructor_refuses_is_named(faulty):
    with pytest.raises(ConfigError, match=r"test/Faulty-v0 cannot be made with env.kwargs.*there is no kind odd"):
        games(faulty, kwargs={"kind": "odd"})


class Endless(gymnasium.Env):
    """An action without bounds, and no pictures."""

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
        ({}, "Box without bounds.*RescaleAction"),
        ({"kwargs": {"kind": "text"}}, "an action of test/Endless-v0 is a Text"),
        ({"render": True}, r"draws no pictures \(its render modes: ansi\)"),
    ],
)
def test_environments_that_nobody_can_play_are_refused(fields, message):
    gymnasium.register("test/Endless-v0", entry_point=Endless)
    try:
        with pytest.raises(ConfigError, match=message):
            games("test/Endless-v0", **fields)
    finally:
        del gymnasium.registry["test/Endless-v0"]


def test_a_learner_of_choices_refuses_numbers():
    env = games("MountainCarContinuous-v0")
    with pytest.raises(ConfigError, match=r"is 1 real number \(action_0\); use agent=ppo"):
        env.spec.need_discrete("agent=drrn")


@pytest.mark.parametrize("name", ["MountainCarContinuous-v0", "CartPole-v1"])
def test_random_play_stays_legal(name):
    env = games(name, horizon=20)
    episodes = evaluate_policy(Collector(env, RandomPolicy(env.spec), "cpu"), 6, Seeds(1))
    assert len(episodes) == 6 and all(0 < episode.length <= 20 for episode in episodes)


class Watcher:
    """Acts like a random policy and writes down what it is told."""

    channels = ()

    def __init__(self, spec):
        self.inner, self.told = RandomPolicy(spec), []

    def act(self, observation, state=None, generator=None, greedy=False):
        self.told.append("act")
        act = self.inner.act(observation, state, generator, greedy)
        return PolicyOutput(act.action, notes=[[{"n": 1}] for _ in act.action])

    def on_reset(self, games, observation):
        self.told.append(("started", games.tolist()))

    def on_step(self, transition):
        self.told.append(("ended", transition.ended.tolist()))
        self.last = transition


def test_a_policy_hears_of_starts_and_ends_and_games_wait_for_the_longest():
    env = games(horizon=200)
    watcher = Watcher(env.spec)
    collector = Collector(env, watcher, "cpu")
    collector.reset(seed=0)
    rollout = collector.collect(200, Seeds(0).torch("actions"), learn=False, restart=False)
    lengths = sorted(episode.length for episode in rollout.episodes)
    assert len(lengths) == 3 and len(set(lengths)) > 1
    assert rollout.reward.shape[0] == lengths[-1] == watcher.told.count("act")
    assert watcher.told[0] == ("started", [True] * 3)
    ends = [entry[1] for entry in watcher.told if entry[0] == "ended"]
    assert ends[-1] == [True] * 3 and sum(ends[lengths[0] - 1]) == 1
    assert watcher.last.output.notes[0][0] == {"n": 1} and watcher.last.step.terminated.all()
    # The return of an episode holds nothing of the steps in which its game waited.
    assert all(episode.returns[0] == episode.length for episode in rollout.episodes)
