"""Clean Up and Harvest on the real engine."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from llmrl.core.errors import ConfigError, EngineError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.mechanisms import BracketedTax, Incentives
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.substrate import install, substrate_rules
from llmrl.envs.substrate.society_env import SubstrateSettings
from some import mark_long_except

pytestmark = pytest.mark.meltingpot
FORWARD, MOVE_LEFT, MOVE_RIGHT, ZAP = 1, 3, 4, 7


@pytest.fixture
def make():
    """Return a factory of environments that are closed after the test."""
    envs = []

    def build(substrate="harvest", n_envs=1, seeds=None, render=False, **options):
        envs.append(MeltingPotEnv(SubstrateSettings(substrate, n_envs, **options), seeds or Seeds(0), render))
        return envs[-1]

    yield build
    for env in envs:
        env.close()


def act(env, rng):
    return rng.integers(0, env.spec.n_actions, (env.spec.n_envs, env.spec.n_agents))


def idle(env):
    return np.zeros((env.spec.n_envs, env.spec.n_agents), int)


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def has_exited(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("substrate", "mechanism", "variant"),
    [
        ("cleanup", Incentives(), "upstream"),
        pytest.param("cleanup", Incentives(), "legislative", marks=pytest.mark.long),
        pytest.param("harvest", BracketedTax(), "upstream", marks=pytest.mark.long),
        ("harvest", BracketedTax(), "legislative"),
    ],
)
def test_outputs_match_spec(make, substrate, mechanism, variant):
    env = make(substrate, 2, mechanism=mechanism, rules=variant, observe=["vector", "pixels"], render=True)
    assert isinstance(env, VecEnv)
    observation = env.reset()
    env.set_mechanism([0.25, 0.5, 1.0])
    step = env.step(act(env, np.random.default_rng(0)))
    for observation_kind in (observation, step.observation):
        assert list(observation_kind) and set(observation_kind) == set(env.spec.observation)
        for name, channel in env.spec.observation.items():
            assert (
                observation_kind[name].shape == (2, 7, *channel.shape) and observation_kind[name].dtype == channel.dtype
            )
            assert observation_kind[name].min() >= channel.low and observation_kind[name].max() <= channel.high
    assert set(step.info) == set(env.spec.per_step)
    assert all(value.shape == (2,) and value.dtype == np.float32 for value in step.info.values())
    assert step.reward.shape == step.base_reward.shape == (2, 7) and step.reward.dtype == np.float32
    assert step.terminated.dtype == step.truncated.dtype == bool
    np.testing.assert_array_equal(step.observation["mechanism"][1, 6], [0.25, 0.5, 1.0])
    assert env.render(1).shape == substrate_rules.SUBSTRATES[substrate].world_shape and env.render(1).max() > 0


@pytest.mark.slow
def test_initial_counts(make):
    for substrate, variant, expected in [
        ("harvest", "upstream", {"apples_live": 64}),
        ("cleanup", "upstream", {"apples_live": 0, "dirt": 79}),
        ("cleanup", "legislative", {"apples_live": 122, "dirt": 79}),
    ]:
        env = make(substrate, rules=variant, observe=["vector"])
        env.reset()
        info = env.step(idle(env)).info
        assert {name: info[name][0] for name in expected} == expected


def test_counts_add_up_over_episode(make):
    """Compare changes of the counts.

    Live apples change by regrown and eaten ones, dirt by cleaned cells and at most one spawn per step.
    """
    env = make("cleanup", rules="legislative", observe=["vector"], horizon=400)
    env.reset()
    rng, apples, dirt, cleaned = np.random.default_rng(0), 122.0, 79.0, 0.0
    for _ in range(400):
        info = {name: value[0] for name, value in env.step(act(env, rng)).info.items()}
        assert info["apples_live"] == apples + info["apples_regrown"] - info["apples_eaten"]
        assert info["apples_regrown"] >= 0
        # Two players who clean one cell in the same step are both credited, so a cell may count twice.
        assert dirt - info["cells_cleaned"] <= info["dirt"] <= dirt - (info["cells_cleaned"] > 0) + 1
        assert (info["cleaning_shots"] > 0) == (info["cells_cleaned"] > 0)
        apples, dirt, cleaned = info["apples_live"], info["dirt"], cleaned + info["cells_cleaned"]
    assert cleaned > 0 and apples < 122


def test_mechanism_changes_reward(make):
    """Check that incentives of 0, 0, 2 add 2 per step to the reward of each player in the world."""
    env = make("cleanup", mechanism=Incentives(), observe=["vector"], rules="legislative")
    env.reset()
    env.set_mechanism([0, 0, 2])
    step = env.step(idle(env))
    np.testing.assert_array_equal(step.base_reward, np.zeros((1, 7)))
    np.testing.assert_array_equal(step.reward, np.full((1, 7), 2))
    assert step.info["incentives_paid"][0] == 14


def test_mechanism_is_optionally_hidden(make):
    env = make("harvest", mechanism=BracketedTax(), show_mechanism=False)
    assert set(env.reset()) == set(env.spec.observation) == {"pixels"}
    assert env.spec.mechanism is not None


def test_raw_rewards_with_no_mechanism(make):
    env = make("harvest", observe=["vector"])
    env.reset()
    rng, n_eaten = np.random.default_rng(0), 0
    for _ in range(200):
        step = env.step(act(env, rng))
        np.testing.assert_array_equal(step.reward, step.base_reward)
        assert step.info["apples_eaten"][0] == step.reward.sum()
        n_eaten += step.info["apples_eaten"][0]
    assert n_eaten > 0 and env.spec.mechanism is None
    with pytest.raises(ConfigError, match="mechanism"):
        env.set_mechanism([0, 0, 0])


def test_removed_players_see_black(make):
    """Zap at random until a player is hit: its picture is black, `other` is not paid, and readiness is 0."""
    env = make("cleanup", mechanism=Incentives(), observe=["pixels", "vector"])
    env.reset()
    env.set_mechanism([0, 0, 1])
    rng = np.random.default_rng(1)
    black = np.zeros(7, bool)
    while not black.any():
        step = env.step(np.where(rng.random((1, 7)) < 0.5, ZAP, rng.integers(0, 7, (1, 7))))
        black = step.observation["pixels"][0].max(axis=(1, 2, 3)) == 0
    assert step.info["zaps"][0] > 0
    step = env.step(idle(env))
    assert (step.reward[0, black] == 0).all() and (step.observation["vector"][0, black, 0] == 0).all()
    assert (step.reward[0, ~black] == 1).any()


@pytest.mark.slow
def test_seed_replays_with_live_workers(make):
    env = make("cleanup", 1)

    def episode(seed):
        first = env.reset(seed=seed)["pixels"]
        rng = np.random.default_rng(0)
        return [first, *(env.step(act(env, rng)).observation["pixels"] for _ in range(50))]

    original, replay, different = episode(7), episode(7), episode(8)
    for x, y in zip(original, replay, strict=True):
        np.testing.assert_array_equal(x, y)
    assert not np.array_equal(original[0], different[0])


@pytest.mark.slow
def test_games_and_episodes_differ(make):
    env = make("harvest", 2)
    first, second = env.reset()["pixels"], env.reset()["pixels"]
    assert not np.array_equal(first[0], first[1])
    assert not np.array_equal(first[0], second[0])


@pytest.mark.slow
def test_resumed_seeds_continue(make):
    """Check that a resumed run starts with the next episode, because the count of episodes is restored."""
    env = make("harvest", 2)
    env.reset()
    env.reset(np.array([True, False]))
    state = env.state_dict()
    third, second = env.reset()["pixels"]
    env.reset()
    env.load_state_dict(state)
    again = env.reset()["pixels"]
    np.testing.assert_array_equal(again[0], third)
    np.testing.assert_array_equal(again[1], second)


def test_observations_are_not_overwritten(make):
    env = make("harvest")
    initial = env.reset()["pixels"]
    copy = initial.copy()
    env.step(np.full((1, 7), FORWARD))
    np.testing.assert_array_equal(initial, copy)


@pytest.mark.slow
def test_horizon_truncates_until_reset(make):
    env = make("harvest", 2, horizon=3, mechanism=BracketedTax())
    env.reset()
    env.step(idle(env))
    env.reset(np.array([False, True]))  # game 1 starts again, game 0 goes on
    rng = np.random.default_rng(0)
    steps = [env.step(act(env, rng)) for _ in range(3)]
    assert [step.truncated.tolist() for step in steps] == [[False, False], [True, False], [True, True]]
    assert not any(step.terminated.any() for step in steps)
    np.testing.assert_array_equal(steps[2].observation["pixels"][0], steps[1].observation["pixels"][0])
    assert (steps[2].reward[0] == 0).all() and steps[2].info["apples_live"][0] == steps[1].info["apples_live"][0]
    assert env.step(idle(env)).truncated.all()
    assert env.reset()["pixels"].max() > 0
    assert not env.step(idle(env)).truncated.any()


def test_masked_reset_keeps_unselected_game(make):
    env = make("harvest", 2)
    env.reset()
    pixels = env.step(np.full((2, 7), FORWARD)).observation["pixels"]
    after = env.reset(np.array([True, False]))["pixels"]
    np.testing.assert_array_equal(after[1], pixels[1])
    assert not np.array_equal(after[0], pixels[0])


@pytest.mark.long
def test_engine_ends_episode_with_no_horizon(make):
    env = make("harvest", n_agents=1, horizon=None, observe=["vector"])
    env.reset()
    length = 0
    while True:
        step, length = env.step(idle(env)), length + 1
        if step.truncated[0]:
            break
    assert not step.terminated[0]
    assert (length >= 1099 and (length - 1099) % 100 == 0) or length == 5000
    env.reset()
    assert not env.step(idle(env)).truncated[0]


def world(env):
    """Return the world in cells, [rows, columns, 8, 8, 3]."""
    picture = env.render()
    rows, columns = picture.shape[0] // 8, picture.shape[1] // 8
    return picture.reshape(rows, 8, columns, 8, 3).swapaxes(1, 2)


@pytest.mark.long
def test_legislative_starts_match_publication(make):
    env = make("harvest", rules="legislative", render=True)
    starts = []
    for _ in range(3):
        env.reset()
        starts.append(world(env))
        floor = starts[-1][12, 12]
        for x, y in substrate_rules.SUBSTRATES["harvest"].spawn_cells:
            assert not np.array_equal(starts[-1][y, x], floor)
        env.step(np.full((1, 7), FORWARD))
        for x, y in substrate_rules.SUBSTRATES["harvest"].spawn_cells:
            assert np.array_equal(world(env)[y, x], starts[-1][1, 5])  # they left to the north: bare floor
    # Nothing else is random at the start of this substrate.
    np.testing.assert_array_equal(starts[0], starts[1])
    np.testing.assert_array_equal(starts[0], starts[2])


def contested(env):
    """Move players 1 and 5 towards each other until one cell is left, and return the winner."""
    env.reset()
    for left_action, right_action in [(FORWARD, FORWARD), (MOVE_LEFT, MOVE_RIGHT), (MOVE_LEFT, MOVE_RIGHT)]:
        action = idle(env)
        action[0, 0], action[0, 4] = left_action, right_action
        env.step(action)
    initial = world(env)
    action[0, 0], action[0, 4] = MOVE_LEFT, MOVE_RIGHT
    env.step(action)
    after = world(env)
    assert not np.array_equal(initial[12, 14], after[12, 14])
    return 1 if np.array_equal(after[12, 13], initial[12, 13]) else 5


@pytest.mark.long
@pytest.mark.slow
def test_legislative_moves_favor_highest_player(make):
    env = make("harvest", rules="legislative", render=True, observe=["vector"])
    assert [contested(env) for _ in range(8)] == [5] * 8


def test_legislative_harvest_has_no_zap():
    assert substrate_rules.list_action_names("harvest", "upstream") == (
        *substrate_rules.list_action_names("harvest", "legislative"),
        "zap",
    )
    assert substrate_rules.list_action_names("cleanup", "upstream") == substrate_rules.list_action_names(
        "cleanup", "legislative"
    )


@pytest.mark.long
@pytest.mark.slow
def test_upstream_moves_are_in_random_order(make, monkeypatch):
    """Repeat the contest without the fixed order until both have won (a run of sixteen has probability 1 in 32,768)."""
    changes = tuple(change for change in substrate_rules.RULE_CHANGES if change.name != "fixed_move_order")
    program = (
        "import llmrl.envs.substrate.substrate_rules as r;"
        f"r.RULE_CHANGES = tuple(c for c in r.RULE_CHANGES if c.name in {[c.name for c in changes]!r});"
        "import runpy; runpy.run_module('llmrl.envs.melting_pot.worker', run_name='__main__')"
    )
    spawn = subprocess.Popen

    def ignore_order(command, **options):
        return spawn([command[0], "-c", program, *command[3:]], **options)

    monkeypatch.setattr(subprocess, "Popen", ignore_order)
    env = make("harvest", rules="legislative", render=True, observe=["vector"])
    winners = set()
    for _ in range(16):
        winners.add(contested(env))
        if len(winners) == 2:
            break
    assert winners == {1, 5}


@pytest.mark.slow
@pytest.mark.parametrize("victim", mark_long_except(["game"], ["worker", "game"]))
def test_reports_killed_process(make, victim):
    env = make("harvest", 2)
    env.reset()
    env.step(idle(env))
    workers = [worker.process.pid for worker in env._pool.workers]
    games = [children(pid)[0] for pid in workers]
    os.kill(workers[1] if victim == "worker" else games[1], signal.SIGKILL)
    with pytest.raises(EngineError, match=r"game 1 of 2 .*SIGKILL.*checkpoint"):
        deadline = time.monotonic() + 10  # a killed worker takes its game with it only a moment later
        while time.monotonic() < deadline:
            env.step(idle(env))
    wait_for(lambda: all(has_exited(pid) for pid in workers + games))
    assert env.reset()["pixels"].max() > 0  # the environment itself can begin again


PARENT = """
import sys, time, numpy as np
from llmrl.core.seeding import Seeds
from llmrl.envs.substrate.society_env import SubstrateSettings
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
env = MeltingPotEnv(SubstrateSettings("harvest", 2), Seeds(0))
env.reset()
print(*(worker.process.pid for worker in env._pool.workers), flush=True)
time.sleep(60)
"""


def test_workers_exit_with_learner():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        games = [children(pid)[0] for pid in workers]
        assert len(workers) == 2 and not any(map(has_exited, workers + games))
        parent.kill()
    wait_for(lambda: all(has_exited(pid) for pid in workers + games))


@pytest.mark.long
def test_close_is_repeatable(make):
    env = make("harvest")
    env.close()
    with pytest.raises(ValueError, match="reset"):
        env.step(idle(env))
    env.reset()
    pid = env._pool.workers[0].process.pid
    env.close()
    env.close()
    assert has_exited(pid)
    assert env.reset()["pixels"].max() > 0


def test_games_import_lightly():
    program = """
import sys
from llmrl.envs.melting_pot.worker import Game, MemoryLayout
Game(MemoryLayout("cleanup", "upstream", 1, 2, ("pixels",), False))
print(*{"torch", "tensorflow", "jax", "chex", "gymnasium", "hydra"} & set(sys.modules))
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_installed_engine_passes_check():
    install._verify_import()


def test_second_installation_needs_no_network(monkeypatch, capsys):
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/none")
    assert install.main([]) == 0


def test_unsupported_machines_receive_advice(monkeypatch):
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    with pytest.raises(EngineError, match="env=escape_room"):
        install.check_installed()
    assert install.main([]) == 1
    assert install.main(["--optional"]) == 0


def test_rejects_old_c_libraries(monkeypatch):
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.34"))
    assert "glibc 2.35" in install.find_incompatibility()
    monkeypatch.setattr("platform.libc_ver", lambda: ("", ""))
    assert "another C library" in install.find_incompatibility()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_agents": 16}, "n_agents=16 .*1 to 15"),
        ({"n_agents": 8, "rules": "legislative"}, "n_agents=8 .*1 to 7"),
        ({"mechanism": Incentives()}, "harvest .*dirt"),
        ({"observe": []}, r"env\.observe .*grid"),
    ],
)
def test_rejects_impossible_environments(make, options, message):
    with pytest.raises(ConfigError, match=message):
        make("harvest", **options)


def test_rejects_impossible_actions(make):
    env = make("harvest", observe=["vector"])
    env.reset()
    for action in ([[0] * 6], [[0] * 6 + [8]], [[0] * 6 + [-1]]):
        with pytest.raises(ValueError, match="of harvest"):
            env.step(np.array(action))


# First 1000 steps of the official engine under uniformly random actions: mean and standard deviation over 500 and 600
# episodes of what an episode sums up to.
PARITY = {
    "harvest": {"apples_eaten": (140.8, 31.7), "zaps": (69.8, 14.3)},
    "cleanup": {"cells_cleaned": (342.4, 67.9), "zaps": (17.3, 4.0)},
}


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("substrate", ["harvest", "cleanup"])
def test_random_return_matches_official_engine(make, substrate):
    env, episodes = make(substrate, 2, observe=["vector"]), 5
    totals = {name: [] for name in PARITY[substrate]}
    rng = np.random.default_rng(0)
    for _ in range(episodes):
        env.reset()
        sums = {name: np.zeros(2) for name in totals}
        for _ in range(1000):
            info = env.step(act(env, rng)).info
            for name in sums:
                sums[name] += info[name]
        for name, values in sums.items():
            totals[name].extend(values)
    for name, (mean, deviation) in PARITY[substrate].items():
        z = (np.mean(totals[name]) - mean) / (deviation / np.sqrt(2 * episodes))
        assert abs(z) < 4, f"{name}: {np.mean(totals[name]):.1f}, official {mean}"
