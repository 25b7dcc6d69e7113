"""Worlds of PettingZoo: the games that PettingZoo plays, with what learners and players need of them."""

import importlib

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.trust import Trust
from llmrl.envs.adapters.parallel import ParallelAdapter
from llmrl.envs.particles.simple_spread import SimpleSpread
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.envs.pettingzoo.vec_env import PettingZooEnv

TICTACTOE, CONNECT_FOUR = "pettingzoo.classic.tictactoe_v3:env", "pettingzoo.classic.connect_four_v3"
SPREAD, RPS = "mpe2.simple_spread_v3:parallel_env", "pettingzoo.classic.rps_v2"
KNIGHTS, PONG = "pettingzoo.butterfly.knights_archers_zombies_v11", "pettingzoo.butterfly.cooperative_pong_v6"
PISTONS = "pettingzoo.butterfly.pistonball_v6"


def world(id, n_envs=2, **options):
    if id.startswith(("pettingzoo.butterfly", "pettingzoo.sisl")):
        pytest.importorskip("pymunk")
    return PettingZooEnv(Seeds(0).child("env"), id, n_envs=n_envs, trust=Trust(("own_worlds",)), **options)


def own(name, n_envs=2, **options):
    return world(f"own_worlds:{name}", n_envs, **options)


def drawn(spec, observation, rng):
    """Legal actions, or numbers within their bounds."""
    numbers = spec.continuous_actions
    if numbers is not None:
        return rng.uniform(numbers.low, numbers.high, (spec.n_envs, spec.n_agents, numbers.dim))
    mask = observation["action_mask"]
    return (mask * rng.random(mask.shape)).argmax(-1)


def plain(observation):
    return {name: np.asarray(value.tolist() if name == "text" else value) for name, value in observation.items()}


def same(one, two):
    a, b = plain(one), plain(two)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name])


class TestTheyAreTheGamesOfPettingZoo:
    @pytest.mark.parametrize("id", [SPREAD, pytest.param(PISTONS, marks=pytest.mark.slow)])
    def test_of_agents_that_act_together(self, id):
        env, rng = world(id, text=None, horizon=9), np.random.default_rng(0)
        seen = env.reset(seed=7)
        module, _, factory = id.partition(":")
        alone = getattr(importlib.import_module(module), factory or "parallel_env")()
        alone.reset(seed=Seeds(7).child(1).integer(0))
        channel = "vector" if "vector" in seen else "pixels"
        for _ in range(8):
            action = drawn(env.spec, seen, rng)
            step = env.step(action)
            typed = [int(x) if env.spec.n_actions else x.astype(np.float32) for x in action[1]]
            shown, reward, *_ = alone.step(dict(zip(env.spec.agent_names, typed, strict=True)))
            seen = step.observation
            for i, agent in enumerate(env.spec.agent_names):
                np.testing.assert_array_equal(shown[agent], seen[channel][1, i])
                assert step.reward[1, i] == np.float32(reward[agent])

    @pytest.mark.parametrize("id", [TICTACTOE, CONNECT_FOUR])
    def test_of_agents_that_take_turns(self, id):
        """Rewards of an agent add up to those that PettingZoo's own loop gives it."""
        module, _, factory = id.partition(":")
        alone = getattr(importlib.import_module(module), factory or "env")()
        for seed in range(5):
            env, rng = world(id, 1), np.random.default_rng(seed)
            seen, returns, actions = env.reset(seed=seed), 0.0, []
            while True:
                actor = int(np.flatnonzero([text != "" for text in seen["text"].tolist()[0]])[0])
                action = drawn(env.spec, seen, rng)
                actions.append(int(action[0, actor]))
                step = env.step(action)
                seen, returns = step.observation, returns + step.reward[0]
                if step.terminated[0]:
                    break
            alone.reset(seed=0)
            theirs, played = dict.fromkeys(alone.possible_agents, 0.0), iter(actions)
            for agent in alone.agent_iter():
                _, reward, terminated, truncated, _ = alone.last()
                theirs[agent] += reward
                alone.step(None if terminated or truncated else next(played))
            assert returns.tolist() == list(theirs.values()) and not list(played) and not step.truncated[0]

    def test_ours_in_arrays_is_the_same_game(self):
        """env=simple_spread, put where a game of mpe2 begins."""
        theirs = world(SPREAD, 1, kwargs={"N": 3, "local_ratio": 0.5}, horizon=25)
        ours = ParticlesEnv(Seeds(0), SimpleSpread(n_agents=3, local_ratio=0.5), n_envs=1, horizon=25)
        seen, rng = theirs.reset(seed=3), np.random.default_rng(0)
        ours.reset(seed=0)
        raw = theirs.games[0].world.unwrapped.world
        places = np.array([entity.state.p_pos for entity in raw.entities])[None]
        ours.world.place(np.ones(1, dtype=bool), places, np.zeros_like(ours.world.goal))
        for _ in range(25):
            action = drawn(theirs.spec, seen, rng)
            step, own = theirs.step(action), ours.step(action)
            seen = step.observation
            np.testing.assert_allclose(own.observation["vector"], seen["vector"], atol=1e-5)
            np.testing.assert_allclose(own.reward, step.reward, rtol=1e-5)
        assert step.truncated.all() and own.truncated.all()

    @pytest.mark.parametrize("id", [TICTACTOE, RPS, SPREAD, pytest.param(KNIGHTS, marks=pytest.mark.slow)])
    @pytest.mark.filterwarnings("ignore:.*render.*")
    def test_there_and_back(self, id):
        """Their world, as ours, as theirs: PettingZoo's own test of it."""
        env = ParallelAdapter(world(id, 1), render_mode=None)
        parallel_api_test(env, num_cycles=30)


class TestWhoHasNothingToDecide:
    def test_has_one_legal_action_which_is_ignored(self):
        env = world(TICTACTOE, 1)
        seen = env.reset(seed=0)
        assert seen["action_mask"].sum(-1).tolist() == [[9, 1]] and seen["action_mask"][0, 1, 0]
        step = env.step(np.array([[4, 7]]))
        assert step.observation["action_mask"].sum(-1).tolist() == [[1, 8]]
        assert step.observation["text"].tolist()[0][0] == ""
        vector = step.observation["vector"].reshape(1, 2, 3, 3, 2)
        assert vector[0, 0, :, :, 0].sum() == 1 and vector[0, 0, 1, 1, 0] == 1, "what the other chose did not count"

    def test_the_dead_see_zeros_and_get_nothing(self):
        env = own("Mortal")
        seen = env.reset(seed=0)
        assert seen["vector"].shape == (2, 3, 3) and seen["action_mask"].sum(-1).tolist() == [[2, 3, 4]] * 2
        assert [len(part) for part in env.spec.observation["vector"].parts] == [1, 1, 1]
        assert env.spec.observation["vector"].parts[1] == {"observation": slice(0, 2)}
        shown, rewards = [], []
        for _ in range(3):
            step = env.step(np.array([[0, 1, 3]] * 2))
            shown.append(step.observation["vector"][0].tolist())
            rewards.append(step.reward[0].tolist())
        assert rewards == [[1, 2, 3], [0, 2, 3], [0, 0, 3]]
        assert shown[0] == [[0, 0, 0], [2, 2, 0], [2, 2, 2]] and shown[1] == [[0, 0, 0], [0, 0, 0], [3, 3, 3]]
        assert step.terminated.all() and not step.truncated.any()
        assert env.games[0].world.got == [{"a0": 1, "a1": 2, "a2": 4}, {"a1": 2, "a2": 4}, {"a2": 4}]
        after = env.step(np.zeros((2, 3), dtype=np.int64))
        assert not after.reward.any() and after.terminated.all()

    @pytest.mark.slow
    def test_the_dead_of_a_real_world(self):
        env, rng = world(KNIGHTS, 1, kwargs={"max_zombies": 40}), np.random.default_rng(0)
        seen, died = env.reset(seed=1), []
        for _ in range(700):
            step = env.step(drawn(env.spec, seen, rng))
            seen = step.observation
            if step.terminated[0] or step.truncated[0]:
                break
            gone = [agent not in env.games[0].live for agent in env.spec.agent_names]
            died.append(sum(gone))
            assert not seen["vector"][0][gone].any() and not step.reward[0][gone].any()
            assert seen["action_mask"][0][gone].sum(-1).tolist() == [1] * sum(gone)
            if max(died, default=0):
                break
        assert max(died) > 0, "somebody is caught"

    def test_turns_skip_the_dead(self):
        env = own("mortal_in_turns")
        seen = env.reset(seed=0)
        actors, total = [], 0.0
        while True:
            actors.append(np.flatnonzero([text != "" for text in seen["text"].tolist()[0]]).tolist())
            step = env.step(np.array([[0, 1, 3]] * 2))
            seen, total = step.observation, total + step.reward[0]
            if step.terminated[0]:
                break
        assert actors == [[0], [1], [2], [1], [2], [2]] and total.tolist() == [1, 4, 9]


class TestHowGamesEnd:
    def test_truncated_if_all_who_were_left_were(self):
        env = own("Mortal", kwargs={"max_cycles": 2})
        assert env.spec.horizon == 2 and not env.spec.endless
        env.reset(seed=0)
        for _ in range(2):
            step = env.step(np.zeros((2, 3), dtype=np.int64))
        # One died before, one dies now, one is cut off: it is an end of the game's own for two of three.
        assert step.terminated.all() and not step.truncated.any()
        long = own("Mortal", kwargs={"max_cycles": 2, "lives": {"a0": 1, "a1": 9, "a2": 9}})
        long.reset(seed=0)
        for _ in range(2):
            step = long.step(np.zeros((2, 3), dtype=np.int64))
        assert step.truncated.all() and not step.terminated.any()
        assert step.observation["vector"][0].tolist() == [[0, 0, 0], [3, 3, 0], [3, 3, 3]], "from here it would go on"

    def test_a_horizon_of_ones_own(self):
        env = own("Mortal", horizon=1)
        env.reset(seed=0)
        step = env.step(np.zeros((2, 3), dtype=np.int64))
        assert step.truncated.all() and not step.terminated.any() and env.spec.horizon == 1

    def test_whether_an_end_is_known(self):
        assert own("Mortal").spec.endless and not world(TICTACTOE).spec.endless
        assert world(SPREAD).spec.horizon == 25
        assert world("mpe2.simple_spread_v3:env").spec.horizon == 75, "turns"


class TestResuming:
    @pytest.mark.parametrize(
        "id",
        [
            TICTACTOE,
            RPS,
            SPREAD,
            "own_worlds:Mortal",
            "own_worlds:Governed",
            "own_worlds:Mortal taxed",
            *(pytest.param(slow, marks=pytest.mark.slow) for slow in (KNIGHTS, PISTONS)),
        ],
    )
    def test_a_restored_game_goes_on_exactly(self, id):
        name, _, taxed = id.partition(" ")
        options = {"tax": bool(taxed), "show_mechanism": bool(taxed)}
        env, rng = world(name, 3, **options), np.random.default_rng(1)
        governed = env.spec.mechanism
        values = (lambda: rng.uniform(governed.low, governed.high)) if governed is not None else None
        if values:
            env.set_mechanism(values())
        seen = env.reset(seed=3)
        for t in range(8):
            if values and t % 2:
                env.set_mechanism(values())
            step = env.step(drawn(env.spec, seen, rng))
            over, seen = step.terminated | step.truncated, step.observation
            if over.any() and rng.random() < 0.7:
                seen = env.reset(mask=over)
        again = world(name, 3, **options)
        again.load_state_dict(env.state_dict())
        same(env._observe(), again._observe())
        for _ in range(6):
            action = drawn(env.spec, seen, rng)
            one, two = env.step(action), again.step(action)
            for field in ("reward", "base_reward", "terminated", "truncated"):
                np.testing.assert_array_equal(getattr(one, field), getattr(two, field))
            same(one.observation, two.observation)
            over, seen = one.terminated | one.truncated, one.observation
            if over.any():
                seen = env.reset(mask=over)
                same(seen, again.reset(mask=over))

    def test_a_world_that_no_seed_decides_says_so(self):
        env = own("Forgetful")
        assert not env.spec.deterministic and own("Governed").spec.deterministic
        env.reset(seed=0)
        env.step(np.zeros((2, 2), dtype=np.int64))
        assert "acted" not in env.state_dict()
        again = own("Forgetful")
        again.load_state_dict(env.state_dict())
        again.reset()
        again.step(np.zeros((2, 2), dtype=np.int64))

    def test_groups_of_games_have_seeds_of_their_own(self):
        env, alone = world(SPREAD, 4), world(SPREAD, 2)
        seen = env.reset(seed=[5, 9])
        for group, seed in enumerate((5, 9)):
            own_start = alone.reset(seed=seed)["vector"]
            np.testing.assert_array_equal(seen["vector"][2 * group : 2 * group + 2], own_start)
        env.pair_games(2)
        paired = env.reset(seed=1)["vector"]
        np.testing.assert_array_equal(paired[:2], paired[2:])
        with pytest.raises(ConfigError, match="equal groups"):
            env.reset(seed=[1, 2, 3])


class TestSpaces:
    def test_numbers_of_different_agents(self):
        env = own("Movers")
        numbers = env.spec.continuous_actions
        assert (numbers.dim, numbers.low, numbers.high) == (2, (-3, -3), (2, 2))
        seen = env.reset(seed=0)
        assert env.spec.observation["vector"].parts[0] == {"colour": slice(0, 3), "place": slice(3, 5)}
        assert seen["vector"][0, 1].tolist() == [0, 0, 1, 1, 1] and "action_mask" not in seen
        env.step(np.array([[[-3.0, 1.0], [-9.0, 1.5]]] * 2))
        got = env.games[0].world.got
        assert got["one"].tolist() == [-1] and got["two"].tolist() == [-3, 1.5], "clipped to the agent's own bounds"

    def test_an_action_that_an_agent_does_not_have(self):
        env = own("Mortal")
        env.reset(seed=0)
        with pytest.raises(ValueError, match="a0 of mortal has 2 actions and cannot take action 3"):
            env.step(np.array([[3, 0, 0]] * 2))

    def test_choices_and_numbers_do_not_mix(self):
        with pytest.raises(ConfigError, match=r"act in different ways \(one Discrete\(2\), two Box"):
            own("Both")

    @pytest.mark.slow
    def test_pictures(self):
        env = world(PONG, 1, horizon=3, render=True)
        seen = env.reset(seed=0)
        assert seen["pixels"].shape == (1, 2, 280, 480, 3) and seen["pixels"].dtype == np.uint8
        assert seen["text"].tolist() == [['{"you": "paddle_0"}', '{"you": "paddle_1"}']]
        frame = env.render()
        assert frame.dtype == np.uint8 and frame.shape[-1] == 3
        env.close()


class TestWhichWorlds:
    @pytest.mark.parametrize(
        ("id", "options", "message"),
        [
            ("os:system", {}, "env.id=os:system is outside the trusted modules"),
            ("own_worlds:imported", {}, "is at home in pettingzoo.utils.env, which is outside the trusted modules"),
            ("own_worlds:nobody", {}, "there is no such name"),
            ("own_worlds", {}, "has neither parallel_env nor env; name the function"),
            ("own_worlds:no_world", {}, "made a object, which is no ParallelEnv or AECEnv"),
            ("pettingzoo.classic.tictactoe_v99:env", {}, "PettingZoo has no such world"),
            ("pettingzoo.classic.tictactoe_v3:warnings", {}, "worlds are made there by env"),
            ("pettingzoo.utils.conversions:parallel_wrapper_fn", {}, "outside the trusted modules"),
            (TICTACTOE, {"kwargs": {"size": 4}}, "does not take env.kwargs={'size': 4}"),
            ("own_worlds:Mortal", {"render": True}, "draws no pictures"),
            ("own_worlds:Mortal", {"show_mechanism": True}, "mortal has no mechanism; set env.tax=true"),
            ("own_worlds:Governed", {"tax": True}, r"a mechanism of its own \(wage, unused\): set env.tax=false"),
            ("own_worlds:Unsettable", {}, r"no method set_mechanism\(values\)"),
        ],
    )
    def test_it_says_why(self, id, options, message):
        with pytest.raises(ConfigError, match=message):
            world(id, 1, **options)

    def test_a_missing_package_is_named(self, monkeypatch):
        import sys

        for module in [*sys.modules]:
            if module.startswith("pettingzoo.classic.rlcard") or module == "pettingzoo.classic.leduc_holdem_v4":
                monkeypatch.delitem(sys.modules, module)
        monkeypatch.setitem(sys.modules, "rlcard", None)
        with pytest.raises(ConfigError, match="needs the package rlcard, which is not installed: install rlcard"):
            world("pettingzoo.classic.leduc_holdem_v4")
