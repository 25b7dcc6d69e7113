"""The registered tasks: Gymnasium's checker, rules, pictures and texts."""

import itertools
import math
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.envs.gym import tasks
from llmrl.envs.gym.batched.tabular_games import TransitionTable
from llmrl.envs.gym.env_factory import EnvFactory
from llmrl.envs.gym.tasks import maze, navigation, nim, pong

VARIANTS = [(name, {}) for name in tasks.IDS]
VARIANTS += [("llmrl/Maze-v0", {"parity": True}), ("llmrl/Nim-v0", {"takes": [0, 1, 2]})]


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_gymnasium_checker_passes(name, kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name, render_mode="rgb_array", **kwargs).unwrapped)
        check_env(gymnasium.make(name, **kwargs).unwrapped)


def test_id_with_module_registers_itself():
    assert gymnasium.make("llmrl.envs.gym.tasks:llmrl/Maze-v0").spec.max_episode_steps == 200
    assert [gymnasium.spec(name).max_episode_steps for name in tasks.IDS] == [200, 10, 1000, 1000]


@pytest.mark.parametrize(("name", "kwargs"), VARIANTS)
def test_pictures_show_changes(name, kwargs):
    env = gymnasium.make(name, render_mode="rgb_array", **kwargs)
    env.reset(seed=0)
    first_picture = env.render()
    # In the published set of actions of Nim, the first is to take no stick at all.
    env.step(1)
    after = env.render()
    assert first_picture.dtype == np.uint8
    assert first_picture.shape == after.shape
    assert (first_picture != after).any()


@pytest.mark.parametrize("name", tasks.IDS)
def test_tasks_have_text(name):
    env = make_env("gymnasium", id=name, n_envs=2, engine="batched", text="own")
    assert env.spec.text is not None
    assert env.reset()["text"][0, 0].startswith("{")
    assert len(env.spec.action_names) == env.spec.n_actions
    assert all(name.isidentifier() or name.startswith("take ") for name in env.spec.action_names)


def best_action(name, inputs, rng):
    """Return a good action in each task."""
    if name == "llmrl/Navigation-v0":
        # Forward, unless a wall is near: then to the side where there is more room.
        return 0 if inputs[2] > 1.5 and min(inputs[1], inputs[3]) > 0.9 else 1 if inputs[3] > inputs[1] else 2
    if name == "llmrl/Pong-v0":
        # The ball meets the paddle now here, now there, which sends it steeply up and down.
        return 1 if inputs[2] > inputs[0] + rng.integers(-38, 38) else 0
    rules = maze.build_rules() if "Maze" in name else nim.build_rules()
    return int(TransitionTable.from_rules(rules, np.eye(len(rules))[0]).best_policy()[inputs])


@pytest.mark.parametrize("good", [True, False])
@pytest.mark.parametrize("name", tasks.IDS)
def test_observations_are_in_space(name, good):
    env = gymnasium.make(name, disable_env_checker=True)
    lengths = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        inputs, _ = env.reset(seed=seed)
        done, steps = False, 0
        while not done:
            assert env.observation_space.contains(inputs), inputs
            action = best_action(name, inputs, rng) if good else int(rng.integers(env.action_space.n))
            inputs, _, terminated, truncated, _ = env.step(action)
            done, steps = terminated or truncated, steps + 1
        assert env.observation_space.contains(inputs), inputs
        lengths.append(steps)
    # The good ones see more than the beginning.
    assert not good or max(lengths) == {"llmrl/Maze-v0": 4, "llmrl/Nim-v0": 3}.get(name, 1000)


# Maze


def test_maze_has_unique_four_step_path():
    """Check the path 0 S, 3 S, 6 E, 7 E with return 1 - 3 * 0.1 / 9."""
    env = gymnasium.make("llmrl/Maze-v0")
    env.reset(seed=0)
    inputs, rewards, ends = zip(*[env.step(action)[:3] for action in (1, 1, 2, 2)], strict=True)
    assert inputs == (3, 6, 7, 8)
    assert sum(rewards) == pytest.approx(1 - 0.3 / 9, abs=1e-12)
    assert ends == (False, False, False, True)
    table = TransitionTable.from_rules(maze.build_rules(), np.eye(9)[0])
    assert table.expected_return(table.best_policy(), 200) == pytest.approx(0.96667, abs=1e-5)


def test_maze_walls_match_publication():
    """Open: 0-1, 1-2, 2-5, 5-4, 0-3, 3-6, 6-7, 7-8, and nothing else."""
    step = dict(enumerate((-3, 3, 1, -1)))
    rules = maze.build_rules()
    passages = {
        (min(cell, next_cell), max(cell, next_cell))
        for cell in range(8)
        for action in range(4)
        if (next_cell := rules[cell][action][0][1]) != cell
    }
    assert passages == {(0, 1), (1, 2), (2, 5), (4, 5), (0, 3), (3, 6), (6, 7), (7, 8)}
    assert all(
        next_cell in (cell, cell + step[action])
        for cell in range(8)
        for action in range(4)
        for _, next_cell, _, _ in rules[cell][action]
    )


@pytest.mark.parametrize(("parity", "terminated"), [(False, True), (True, False)])
@pytest.mark.parametrize("engine", ["stock", "batched"])
def test_published_maze_removes_goal_at_step_200(parity, terminated, engine):
    games = EnvFactory("llmrl/Maze-v0", {"parity": parity}, engine=engine).make(1)
    active = np.ones(1, dtype=bool)
    for start in range(2):
        games.reset(np.array([start]), active)
        for action in [0] * 196 + [1, 1, 2]:
            _, _, is_terminated, is_truncated = games.step(np.array([action]), active)
            assert not (is_terminated | is_truncated)[0]
        inputs, reward, is_terminated, is_truncated = games.step(np.array([2]), active)
        assert (inputs[0], reward[0], is_terminated[0], is_truncated[0]) == (8, 1.0, terminated, True)


# Nim


def optimum(takes: tuple[int, ...]) -> float:
    """Return the maximum expected return over all tables of actions for 1 to 10 sticks, computed exactly."""
    table = TransitionTable.from_rules(nim.build_rules(takes), np.eye(11)[10])
    chance = table.interval_probabilities
    # Fewer sticks are left after every move, so the states 1 to 10 can be valued in this order for all tables at once.
    tables = np.array([*itertools.product(range(3), repeat=10)])
    value = np.zeros((len(tables), 11))
    for remaining in range(1, 11):
        rows = remaining * 3 + tables[:, remaining - 1]
        next_values = np.take_along_axis(value, table.next_state[rows], axis=1)
        value[:, remaining] = (table.reward[rows] + np.where(table.terminated[rows], 0.0, next_values)) @ chance
    return float(value[:, 10].max())


def test_nim_is_winnable_with_all_actions():
    """Check the optimum over all 3^10 tables: +1, and -1/9 with {0, 1, 2}."""
    assert optimum((1, 2, 3)) == pytest.approx(1.0, abs=1e-12)
    assert optimum((0, 1, 2)) == pytest.approx(-1 / 9, abs=1e-12)


def test_nim_winning_moves():
    table = TransitionTable.from_rules(nim.build_rules(), np.eye(11)[10])
    sticks = table.best_policy() + 1
    assert [int(sticks[remaining]) for remaining in (10, 8, 7, 6, 4, 3, 2)] == [1, 3, 2, 1, 3, 2, 1]


@pytest.mark.parametrize(
    ("remaining", "sticks", "outcomes"),
    [
        (10, 1, [(8, 0, False), (7, 0, False), (6, 0, False)]),
        (6, 1, [(4, 0, False), (3, 0, False), (2, 0, False)]),
        (10, 2, [(5, 0, False)]),
        (3, 2, [(0, 1, True)]),
        (4, 3, [(0, 1, True)]),
        (2, 2, [(0, -1, True)]),
        (2, 3, [(2, -1, True)]),
        (7, 0, [(7, -1, True)]),
    ],
)
def test_nim_moves(remaining, sticks, outcomes):
    """Check that the opponent leaves 1 more than a multiple of 4 if possible, and otherwise moves at random."""
    move_outcomes = nim.build_rules((0, 1, 2, 3))[remaining][sticks]
    assert [outcome[1:] for outcome in move_outcomes] == outcomes
    assert [outcome[0] for outcome in move_outcomes] == [1 / len(outcomes)] * len(outcomes)


def test_nim_requires_three_heaps():
    with pytest.raises(ConfigError, match="sticks"):
        nim.make_nim_games(1, takes=[1, 2])


# Pong


def test_pong_rewards_returns_until_miss():
    env = gymnasium.make("llmrl/Pong-v0")
    for seed in range(4):
        inputs, _ = env.reset(seed=seed)
        assert inputs[:3].tolist() == [300.0, 400.0, 300.0]
        assert abs(inputs[3]) == 5
        assert abs(inputs[4]) <= 5
        steps, returned, done = 0, 0.0, False
        while not done:
            inputs, reward, terminated, truncated, _ = env.step(1 if inputs[2] > inputs[0] else 0)
            steps, returned, done = steps + 1, returned + reward, terminated or truncated
        # There and back takes 308 steps, the first return 78 or 230.
        assert (steps, returned) == (1000, 3.0)
    env.reset(seed=1)
    rows = [env.step(0) for _ in range(400)]
    ends = [t for t, row in enumerate(rows) if row[2]]
    assert rows[ends[0]][0][1] < 0


def reference_pong(seed, follow):
    """Play one episode by the rules published with ProPS and return its observations and rewards.

    The agent moves at random or, if `follow`, after the ball.
    """
    source, actions = np.random.Generator(np.random.PCG64(seed)), np.random.default_rng([seed, 1])
    mine = opponent = 260
    x, y = 400, 300
    dx, dy = int(source.choice([-5, 5])), source.uniform(-5, 5)
    inputs, rewards = [[mine + 40, x, y, dx, dy]], []
    while len(rewards) < 1000 and 0 <= x <= 790:
        action = (1 if np.float32(y) > mine + 40 else 0) if follow else actions.integers(3)
        mine = min(max(mine + (-5, 5, 0)[action], 0), 520)
        opponent = min(max(opponent + (5 if opponent + 40 < y else -5), 0), 520)
        x, y = x + dx, y + dy
        if y <= 0 or y >= 590:
            dy = -dy
        reward, paddle = 0, mine if dx < 0 else opponent
        if (x <= 10 if dx < 0 else x >= 780) and paddle <= y <= paddle + 80:
            reward, dx, dy = int(dx < 0), -dx, 5 * (2 * (y - paddle) / 80 - 1)
        inputs.append([mine + 40, x, y, dx, dy])
        rewards.append(reward)
    return np.array(inputs, dtype=np.float32), rewards


@pytest.mark.parametrize("follow", [False, True])
def test_pong_matches_reference(follow):
    for seed in range(40):
        expected, reference_rewards = reference_pong(seed, follow)
        env, actions = gymnasium.make("llmrl/Pong-v0"), np.random.default_rng([seed, 1])
        inputs, rewards = [env.reset(seed=seed)[0]], []
        done = False
        while not done:
            action = (1 if inputs[-1][2] > inputs[-1][0] else 0) if follow else int(actions.integers(3))
            observation, reward, terminated, truncated, _ = env.step(action)
            done = terminated or truncated
            inputs.append(observation)
            rewards.append(reward)
        assert rewards == reference_rewards
        assert np.allclose(inputs, expected, rtol=0, atol=1e-3)


def test_paddle_position_determines_bounce():
    env = gymnasium.make("llmrl/Pong-v0").unwrapped
    env.reset(seed=0)
    games = env._games
    for offset, speed in ((0, -5.0), (40, 0.0), (80, 5.0), (60, 2.5)):
        games._state[[0, 2, 3, 4, 5], 0] = 300, 15, 300 + offset, -5, 0
        inputs, reward, *_ = env.step(2)
        assert reward == 1.0
        assert (inputs[3], inputs[4]) == (5.0, speed)
    games._state[2:, 0] = 15, 381, -5, 0
    assert env.step(2)[1] == 0.0


def test_pong_ball_distance_below_field():
    """Send the ball down as steeply as possible from the lowest position of a paddle. It goes no further later."""
    games = pong.PongGames(5000)
    games.reset(np.arange(5000), np.ones(5000, dtype=bool))
    rng = np.random.default_rng(0)
    # Just before either paddle, which is anywhere, at any height that is possible then.
    player_y, opponent_y, x, y, dx, dy = games._state
    x[:] = np.where(np.arange(5000) % 2, 15, 775)
    dx[:] = np.where(np.arange(5000) % 2, -5, 5)
    y[:], dy[:] = rng.uniform(-5, 600, 5000), rng.uniform(-5, 5, 5000)
    y[:100], dy[:100] = 600, 0
    player_y[:], opponent_y[:] = rng.uniform(0, 520, 5000), rng.uniform(0, 520, 5000)
    player_y[:2500], opponent_y[:2500] = 520, 520
    low, high = games.observation_space.low, games.observation_space.high
    # A ball may turn at the edge and at once meet a paddle; from an impossible height it may leave as it came.
    possible = (y + dy >= -5) & (y + dy <= 600)
    assert possible.mean() > 0.9
    inputs = games.observe()
    for _ in range(60):
        inputs, *_ = games.step(np.full(5000, 2), np.ones(5000, dtype=bool))
        in_range = ((inputs >= low) & (inputs <= high))[:, 2]
        assert in_range[possible].all()
        if high[2] - inputs[possible, 2].max() < 0.5:
            break
    else:
        pytest.fail("no ball came close to the bound")


# Navigation


def test_sensors_measure_wall_distance():
    games = navigation.NavigationGames(3)
    # Middle of the left straight, looking north; the same looking east; the lower right corner of the upper straight.
    pose = np.array([(1.5, 1.0, 18.5), (10.0, 10.0, 10.0), (0.0, math.pi / 2, math.pi)])
    distances = games._measure_distances(pose, np.zeros((3, 5)))
    slant = math.sqrt(2)
    assert distances[0] == pytest.approx([1.5, 1.5 * slant, 10.0, 1.5 * slant, 1.5])
    assert distances[1] == pytest.approx([10.0, 2.0 * slant, 2.0, 2.0 * slant, 10.0])
    assert distances[2, [0, 2]] == pytest.approx([1.5, 1.5])


def test_robot_moves():
    games = navigation.NavigationGames(2000, horizon=1000)
    games.reset(np.arange(2000), np.ones(2000, dtype=bool))
    for action, distance, turn, reward in ((0, 0.2, 0.0, 5.0), (1, 0.04, 0.2, -0.5), (2, 0.04, -0.2, -0.5)):
        games._poses[:] = np.array([1.5, 10.0, 0.0])[:, None]
        _, rewards, terminated, _ = games.step(np.full(2000, action), np.ones(2000, dtype=bool))
        assert set(rewards) == {reward}
        assert not terminated.any()
        # North is along y: 0.02 m and 0.02 rad of noise, so 0.0004 of their means.
        _, y, heading = games._poses
        assert (y - 10.0).mean() == pytest.approx(distance, abs=0.002)
        assert (y - 10.0).std() == pytest.approx(0.02, abs=0.002)
        assert heading.mean() == pytest.approx(turn, abs=0.002)
        assert heading.std() == pytest.approx(0.02, abs=0.002)


def test_robot_crashes_near_walls():
    games = navigation.NavigationGames(500)
    inputs = games.reset(np.arange(500), np.ones(500, dtype=bool))
    assert (inputs > 1.0).all()
    games._poses[:] = np.array([0.5, 10.0, -math.pi / 2])[:, None]
    _, reward, terminated, _ = games.step(np.zeros(500, dtype=np.int64), np.ones(500, dtype=bool))
    assert set(reward) == {-200.0}
    assert terminated.all()
