"""Worlds of PettingZoo: equal games, with the extensions for learners and players."""

import importlib

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.envs.adapters.parallel import ParallelAdapter
from llmrl.envs.particles.mpe_scenarios import SimpleSpread
from llmrl.envs.particles.vec_env import ParticlesEnv

TICTACTOE, CONNECT_FOUR = "pettingzoo.classic.tictactoe_v3:env", "pettingzoo.classic.connect_four_v3"
SPREAD_ENV, RPS = "mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.rps_v2"
KNIGHTS, PONG = "pettingzoo.butterfly.knights_archers_zombies_v11", "pettingzoo.butterfly.cooperative_pong_v6"
PISTONS = "pettingzoo.butterfly.pistonball_v6"


def world(id, n_envs=2, **options):
    if id.startswith(("pettingzoo.butterfly", "pettingzoo.sisl")):
        pytest.importorskip("pymunk")
    return make_env("pettingzoo", Seeds(0).child("env"), id=id, n_envs=n_envs, trusted=("own_worlds",), **options)


def make_test_env(name, n_envs=2, **options):
    return world(f"own_worlds:{name}", n_envs, **options)


def sample_actions(spec, observation, rng):
    """Draw legal actions, or numbers within their bounds."""
    numbers = spec.continuous_actions
    if numbers is not None:
        return rng.uniform(numbers.low, numbers.high, (spec.n_envs, spec.n_agents, numbers.dim))
    mask = observation["action_mask"]
    return (mask * rng.random(mask.shape)).argmax(-1)


def plain(observation):
    return {name: np.asarray(value.tolist() if name == "text" else value) for name, value in observation.items()}


def steps_equal(first, second):
    x, y = plain(first), plain(second)
    assert x.keys() == y.keys()
    for name in x:
        np.testing.assert_array_equal(x[name], y[name])


class TestEquivalence:
    @pytest.mark.parametrize("id", [SPREAD_ENV, pytest.param(PISTONS, marks=pytest.mark.slow)])
    def test_simultaneous_agents(self, id):
        env, rng = world(id, text=None, horizon=9), np.random.default_rng(0)
        observation = env.reset(seed=7)
        module, _, factory = id.partition(":")
        package_env = getattr(importlib.import_module(module), factory or "parallel_env")()
        package_env.reset(seed=Seeds(7).child(1).integer(0))
        channel = "vector" if "vector" in observation else "pixels"
        for _ in range(8):
            action = sample_actions(env.spec, observation, rng)
            step = env.step(action)
            typed_actions = [int(x) if env.spec.n_actions else x.astype(np.float32) for x in action[1]]
            observations, reward, *_ = package_env.step(dict(zip(env.spec.agent_names, typed_actions, strict=True)))
            observation = step.observation
            for i, agent in enumerate(env.spec.agent_names):
                np.testing.assert_array_equal(observations[agent], observation[channel][1, i])
                assert step.reward[1, i] == np.float32(reward[agent])

    @pytest.mark.parametrize("id", [TICTACTOE, CONNECT_FOUR])
    def test_alternating_agents(self, id):
        """Compare the sum of rewards of each agent with PettingZoo's own loop."""
        module, _, factory = id.partition(":")
        package_env = getattr(importlib.import_module(module), factory or "env")()
        for seed in range(5):
            env, rng = world(id, 1), np.random.default_rng(seed)
            observation, returns, actions = env.reset(seed=seed), 0.0, []
            while True:
                actor = int(np.flatnonzero([text != "" for text in observation["text"].tolist()[0]])[0])
                action = sample_actions(env.spec, observation, rng)
                actions.append(int(action[0, actor]))
                step = env.step(action)
                observation, returns = step.observation, returns + step.reward[0]
                if step.terminated[0]:
                    break
            package_env.reset(seed=0)
            total_rewards, action_iterator = dict.fromkeys(package_env.possible_agents, 0.0), iter(actions)
            for agent in package_env.agent_iter():
                _, reward, terminated, truncated, _ = package_env.last()
                total_rewards[agent] += reward
                package_env.step(None if terminated or truncated else next(action_iterator))
            assert (
                returns.tolist() == list(total_rewards.values()) and not list(action_iterator) and not step.truncated[0]
            )

    def test_array_environment_is_equal(self):
        """Start env=simple_spread in the state of a game of mpe2."""
        reference = world(SPREAD_ENV, 1, kwargs={"N": 3, "local_ratio": 0.5}, horizon=25)
        native = ParticlesEnv(Seeds(0), SimpleSpread(n_agents=3, local_ratio=0.5), n_envs=1, horizon=25)
        observation, rng = reference.reset(seed=3), np.random.default_rng(0)
        native.reset(seed=0)
        raw = reference.games[0].world.unwrapped.world
        places = np.array([entity.state.p_pos for entity in raw.entities])[None]
        native.world.reset(np.ones(1, dtype=bool), places, np.zeros_like(native.world.goal_landmark))
        for _ in range(25):
            action = sample_actions(reference.spec, observation, rng)
            step, native_step = reference.step(action), native.step(action)
            observation = step.observation
            np.testing.assert_allclose(native_step.observation["vector"], observation["vector"], atol=1e-5)
            np.testing.assert_allclose(native_step.reward, step.reward, rtol=1e-5)
        assert step.truncated.all() and native_step.truncated.all()

    @pytest.mark.parametrize("id", [TICTACTOE, RPS, SPREAD_ENV, pytest.param(KNIGHTS, marks=pytest.mark.slow)])
    @pytest.mark.filterwarnings("ignore:.*render.*")
    def test_round_trip(self, id):
        """Convert a PettingZoo world to ours and back, and run PettingZoo's own test."""
        env = ParallelAdapter(world(id, 1), render_mode=None)
        parallel_api_test(env, num_cycles=30)


class TestForcedActions:
    def test_single_legal_action_is_ignored(self):
        env = world(TICTACTOE, 1)
        observation = env.reset(seed=0)
        assert observation["action_mask"].sum(-1).tolist() == [[9, 1]] and observation["action_mask"][0, 1, 0]
        step = env.step(np.array([[4, 7]]))
        assert step.observation["action_mask"].sum(-1).tolist() == [[1, 8]]
        assert step.observation["text"].tolist()[0][0] == ""
        vector = step.observation["vector"].reshape(1, 2, 3, 3, 2)
        assert vector[0, 0, :, :, 0].sum() == 1 and vector[0, 0, 1, 1, 0] == 1, "what the other chose did not count"

    def test_dead_agents_receive_zeros(self):
        env = make_test_env("Mortal")
        observation = env.reset(seed=0)
        assert (
            observation["vector"].shape == (2, 3, 3) and observation["action_mask"].sum(-1).tolist() == [[2, 3, 4]] * 2
        )
        assert [len(part) for part in env.spec.observation["vector"].parts] == [1, 1, 1]
        assert env.spec.observation["vector"].parts[1] == {"observation": slice(0, 2)}
        pixels_of_dead, rewards = [], []
        for _ in range(3):
            step = env.step(np.array([[0, 1, 3]] * 2))
            pixels_of_dead.append(step.observation["vector"][0].tolist())
            rewards.append(step.reward[0].tolist())
        assert rewards == [[1, 2, 3], [0, 2, 3], [0, 0, 3]]
        assert pixels_of_dead[0] == [[0, 0, 0], [2, 2, 0], [2, 2, 2]] and pixels_of_dead[1] == [
            [0, 0, 0],
            [0, 0, 0],
            [3, 3, 3],
        ]
        assert step.terminated.all() and not step.truncated.any()
        assert env.games[0].world.received_actions == [{"a0": 1, "a1": 2, "a2": 4}, {"a1": 2, "a2": 4}, {"a2": 4}]
        after = env.step(np.zeros((2, 3), dtype=np.int64))
        assert not after.reward.any() and after.terminated.all()

    @pytest.mark.slow
    def test_dead_agents_in_package_world(self):
        env, rng = world(KNIGHTS, 1, kwargs={"max_zombies": 40}), np.random.default_rng(0)
        observation, died = env.reset(seed=1), []
        for _ in range(700):
            step = env.step(sample_actions(env.spec, observation, rng))
            observation = step.observation
            if step.terminated[0] or step.truncated[0]:
                break
            removed = [agent not in env.games[0].live_agents for agent in env.spec.agent_names]
            died.append(sum(removed))
            assert not observation["vector"][0][removed].any() and not step.reward[0][removed].any()
            assert observation["action_mask"][0][removed].sum(-1).tolist() == [1] * sum(removed)
            if max(died, default=0):
                break
        assert max(died) > 0, "somebody is caught"

    def test_turns_skip_dead_agents(self):
        env = make_test_env("mortal_in_turns")
        observation = env.reset(seed=0)
        actors, total = [], 0.0
        while True:
            actors.append(np.flatnonzero([text != "" for text in observation["text"].tolist()[0]]).tolist())
            step = env.step(np.array([[0, 1, 3]] * 2))
            observation, total = step.observation, total + step.reward[0]
            if step.terminated[0]:
                break
        assert actors == [[0], [1], [2], [1], [2], [2]] and total.tolist() == [1, 4, 9]


class TestTermination:
    def test_truncation_requires_all_remaining_agents(self):
        env = make_test_env("Mortal", kwargs={"max_cycles": 2})
        assert env.spec.horizon == 2 and not env.spec.endless
        env.reset(seed=0)
        for _ in range(2):
            step = env.step(np.zeros((2, 3), dtype=np.int64))
        # One died before, one dies now, one is cut off: it is an end of the game's own for two of three.
        assert step.terminated.all() and not step.truncated.any()
        long = make_test_env("Mortal", kwargs={"max_cycles": 2, "lives": {"a0": 1, "a1": 9, "a2": 9}})
        long.reset(seed=0)
        for _ in range(2):
            step = long.step(np.zeros((2, 3), dtype=np.int64))
        assert step.truncated.all() and not step.terminated.any()
        assert step.observation["vector"][0].tolist() == [[0, 0, 0], [3, 3, 0], [3, 3, 3]], "from here it would go on"

    def test_custom_horizon(self):
        env = make_test_env("Mortal", horizon=1)
        env.reset(seed=0)
        step = env.step(np.zeros((2, 3), dtype=np.int64))
        assert step.truncated.all() and not step.terminated.any() and env.spec.horizon == 1

    def test_termination_is_distinguishable(self):
        assert make_test_env("Mortal").spec.endless and not world(TICTACTOE).spec.endless
        assert world(SPREAD_ENV).spec.horizon == 25
        assert world("mpe2.simple_spread_v3:env").spec.horizon == 75, "turns"


class TestResuming:
    @pytest.mark.parametrize(
        "id",
        [
            TICTACTOE,
            RPS,
            SPREAD_ENV,
            "own_worlds:Mortal",
            "own_worlds:Governed",
            "own_worlds:Mortal taxed",
            *(pytest.param(slow, marks=pytest.mark.slow) for slow in (KNIGHTS, PISTONS)),
        ],
    )
    def test_restored_game_is_identical(self, id):
        name, _, taxed = id.partition(" ")
        options = {"tax": bool(taxed), "show_mechanism": bool(taxed)}
        env, rng = world(name, 3, **options), np.random.default_rng(1)
        mechanism_space = env.spec.mechanism
        values = (
            (lambda: rng.uniform(mechanism_space.low, mechanism_space.high)) if mechanism_space is not None else None
        )
        if values:
            env.set_mechanism(values())
        observation = env.reset(seed=3)
        for t in range(8):
            if values and t % 2:
                env.set_mechanism(values())
            step = env.step(sample_actions(env.spec, observation, rng))
            done, observation = step.terminated | step.truncated, step.observation
            if done.any() and rng.random() < 0.7:
                observation = env.reset(mask=done)
        second_env = world(name, 3, **options)
        second_env.load_state_dict(env.state_dict())
        steps_equal(env._observe(), second_env._observe())
        for _ in range(6):
            action = sample_actions(env.spec, observation, rng)
            first, second = env.step(action), second_env.step(action)
            for field in ("reward", "base_reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(first, field), getattr(second, field))
            steps_equal(first.observation, second.observation)
            done, observation = first.terminated | first.truncated, first.observation
            if done.any():
                observation = env.reset(mask=done)
                steps_equal(observation, second_env.reset(mask=done))

    def test_reports_unseeded_world(self):
        env = make_test_env("Forgetful")
        assert not env.spec.deterministic and make_test_env("Governed").spec.deterministic
        env.reset(seed=0)
        env.step(np.zeros((2, 2), dtype=np.int64))
        assert "actions" not in env.state_dict()
        second_env = make_test_env("Forgetful")
        second_env.load_state_dict(env.state_dict())
        second_env.reset()
        second_env.step(np.zeros((2, 2), dtype=np.int64))

    def test_game_groups_have_separate_seeds(self):
        env, small_env = world(SPREAD_ENV, 4), world(SPREAD_ENV, 2)
        observation = env.reset(seed=[5, 9])
        for group, seed in enumerate((5, 9)):
            package_start = small_env.reset(seed=seed)["vector"]
            np.testing.assert_array_equal(observation["vector"][2 * group : 2 * group + 2], package_start)
        env.share_random_numbers(2)
        paired_start = env.reset(seed=1)["vector"]
        np.testing.assert_array_equal(paired_start[:2], paired_start[2:])
        with pytest.raises(ConfigError, match="equal groups"):
            env.reset(seed=[1, 2, 3])


class TestSpaces:
    def test_agents_with_different_numbers(self):
        env = make_test_env("Movers")
        numbers = env.spec.continuous_actions
        assert (numbers.dim, numbers.low, numbers.high) == (2, (-3, -3), (2, 2))
        observation = env.reset(seed=0)
        assert env.spec.observation["vector"].parts[0] == {"color": slice(0, 3), "place": slice(3, 5)}
        assert observation["vector"][0, 1].tolist() == [0, 0, 1, 1, 1] and "action_mask" not in observation
        env.step(np.array([[[-3.0, 1.0], [-9.0, 1.5]]] * 2))
        received = env.games[0].world.received_actions
        assert received["one"].tolist() == [-1] and received["two"].tolist() == [-3, 1.5], (
            "clipped to the agent's own bounds"
        )

    def test_masked_mapping_is_read(self):
        observation = make_test_env("MaskedMovers").reset(seed=0)
        assert observation["vector"][0, 1].tolist() == [0, 0, 1, 1, 1]
        assert observation["action_mask"][0].tolist() == [[False, True]] * 2

    def test_invalid_action_for_agent(self):
        env = make_test_env("Mortal")
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"a0 of mortal.*2.*3"):
            env.step(np.array([[3, 0, 0]] * 2))

    def test_choices_and_numbers_cannot_mix(self):
        with pytest.raises(ConfigError, match=r"one Discrete\(2\), two Box"):
            make_test_env("Both")

    @pytest.mark.slow
    def test_pictures(self):
        env = world(PONG, 1, horizon=3, render=True)
        observation = env.reset(seed=0)
        assert observation["pixels"].shape == (1, 2, 280, 480, 3) and observation["pixels"].dtype == np.uint8
        assert observation["text"].tolist() == [['{"you": "paddle_0"}', '{"you": "paddle_1"}']]
        frame = env.render()
        assert frame.dtype == np.uint8 and frame.shape[-1] == 3
        env.close()


class TestUnsupportedWorlds:
    @pytest.mark.parametrize(
        ("id", "options", "message"),
        [
            ("os:system", {}, "env.id=os"),
            ("own_worlds:imported", {}, "pettingzoo.utils.env"),
            ("own_worlds:nobody", {}, "'nobody'"),
            ("own_worlds", {}, "parallel_env"),
            ("own_worlds:no_world", {}, "ParallelEnv"),
            ("pettingzoo.classic.tictactoe_v99:env", {}, "PettingZoo"),
            ("pettingzoo.classic.tictactoe_v3:warnings", {}, "tictactoe_v3.* warnings .*use env"),
            ("pettingzoo.utils.conversions:parallel_wrapper_fn", {}, "pettingzoo.utils.*trusted"),
            (TICTACTOE, {"kwargs": {"size": 4}}, "env.kwargs={'size': 4}"),
            ("own_worlds:Mortal", {"render": True}, "own_worlds:Mortal .*modes"),
            ("own_worlds:Mortal", {"show_mechanism": True}, "env.tax=true"),
            ("own_worlds:Governed", {"tax": True}, "env.tax=false"),
            ("own_worlds:Unsettable", {}, "set_mechanism"),
        ],
    )
    def test_error_gives_reason(self, id, options, message):
        with pytest.raises(ConfigError, match=message):
            world(id, 1, **options)

    def test_error_names_missing_package(self, monkeypatch):
        import sys

        for module in [*sys.modules]:
            if module.startswith("pettingzoo.classic.rlcard") or module == "pettingzoo.classic.leduc_holdem_v4":
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "rlcard", None)
        with pytest.raises(ConfigError, match="rlcard"):
            world("pettingzoo.classic.leduc_holdem_v4")
