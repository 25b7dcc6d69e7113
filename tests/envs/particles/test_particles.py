"""Particle worlds as environments: specs, masks, metrics, determinism and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.agents.random_agent import RandomPolicy
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import VecEnv
from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.vec_env import ParticlesEnv

ALL = [SimpleSpread(), SimpleTag(), SimpleReference(), SimpleSpeakerListener()]


def make(scenario: Scenario, n_envs: int = 4, seed: int = 0, **options: Any) -> ParticlesEnv:
    return ParticlesEnv(Seeds(seed), scenario, n_envs, **options)


def place_agents(scenario: Scenario, positions: list[list[float]], goal: list[int] | None = None) -> ParticlesEnv:
    """Return one game with all agents at the given positions."""
    env = make(scenario, 1)
    env.reset()
    env.world.position[0] = positions
    if goal is not None:
        env.world.goal_landmark[0] = goal
    return env


def random_actions(env: ParticlesEnv, rng: np.random.Generator) -> np.ndarray:
    legal = env.reset(np.zeros(env.spec.n_envs, dtype=bool)).get("action_mask")
    shape = (env.spec.n_envs, env.spec.n_agents, env.spec.n_actions)
    return np.asarray((rng.random(shape) * (1 if legal is None else legal)).argmax(-1))


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_spec_matches_observations(scenario: Scenario) -> None:
    env = make(scenario)
    spec = env.spec
    assert isinstance(env, VecEnv)
    assert (spec.horizon, spec.objective.name, spec.name) == (25, "mean", scenario.name)
    assert len(spec.agent_names) == spec.n_agents
    assert len(set(spec.action_names)) == len(spec.action_names) == spec.n_actions
    observation = env.reset()
    step = env.step(random_actions(env, np.random.default_rng(0)))
    for channels in (observation, step.observation):
        assert channels.keys() == spec.observation.keys()
        for name, channel in spec.observation.items():
            assert channels[name].shape == (4, spec.n_agents, *channel.shape)
            assert channels[name].dtype == channel.dtype
    assert step.info.keys() == spec.metrics.keys()
    assert all(value.shape == (4,) and value.dtype == np.float32 for value in step.info.values())
    assert step.reward.shape == (4, spec.n_agents)
    assert step.reward.dtype == np.float32
    assert np.array_equal(step.reward, step.base_reward)


@settings(max_examples=60)
@given(
    scenario=st.one_of(
        st.builds(SimpleSpread, st.integers(1, 7)),
        st.builds(SimpleTag, st.integers(1, 4), st.integers(1, 4), st.integers(0, 4)),
        st.builds(SimpleReference, st.integers(2, 5)),
        st.builds(SimpleSpeakerListener, st.integers(2, 5)),
    ),
    seed=st.integers(0, 1000),
)
def test_parts_name_all_entries(scenario: Scenario, seed: int) -> None:
    rng = np.random.default_rng(seed)
    env = make(scenario, 2, seed)
    env.reset()
    for _ in range(3):
        action = random_actions(env, rng)
        vector = env.step(action).observation["vector"]
    world, names = env.world, env.spec.agent_names
    channel = env.spec.observation["vector"]
    assert len(channel.parts) == len(names)
    for i, parts in enumerate(channel.parts):
        coverage = np.zeros(channel.shape[0], dtype=int)
        for part in parts.values():
            coverage[part] += 1
        used = max(part.stop for part in parts.values())
        assert (coverage[:used] == 1).all()
        assert not coverage[used:].any()
        assert not vector[:, i, used:].any()

        me = world.agent_positions[:, i]
        groups = {
            "landmarks": world.landmark_positions,
            "obstacles": world.landmark_positions,
            "agents": world.agent_positions[:, [j for j in range(len(names)) if j != i]],
            "adversaries": world.agent_positions[
                :, [j for j, n in enumerate(names) if j != i and n.startswith("adversary")]
            ],
            "good": world.agent_positions[:, [j for j, n in enumerate(names) if j != i and n.startswith("agent")]],
        }
        expected = {name: (group - me[:, None]).reshape(2, -1) for name, group in groups.items()}
        good = [j for j, n in enumerate(names) if j != i and n.startswith("agent")]
        expected |= {"velocity": world.velocity[:, i], "position": me}
        expected["good_velocities"] = world.velocity[:, good].reshape(2, -1)
        for name in parts.keys() & expected.keys():
            assert np.allclose(vector[:, i, parts[name]], expected[name], rtol=0, atol=1e-6)
        if "told_goal" in parts:  # one color per goal; its strongest entry is the landmark's number
            mine = [g for g, (knows, _) in enumerate(scenario.guide_pairs) if knows == i]
            assert np.array_equal(
                vector[:, i, parts["told_goal"]].reshape(2, -1, 3).argmax(2), world.goal_landmark[:, mine]
            )
        assert parts.keys() - expected.keys() <= {"told_goal", "heard"}


def test_three_player_ring_rewards_next() -> None:
    env = place_agents(SimpleReference(3), [[0, 0], [3, 0], [0, 4], [0, 0], [1, 0], [0, 1]], goal=[0, 1, 2])
    step = env.step(np.array([[0 + 5 * 7, 0 + 5 * 2, 0]]))
    heard_slice = env.spec.observation["vector"].parts[0]["heard"]
    words = step.observation["vector"][0, :, heard_slice].reshape(3, 2, 10).argmax(2)
    assert words.tolist() == [[2, 0], [7, 0], [7, 2]]
    # Agent 0 guides agent 1 to landmark 0: 3 away. 1 guides 2 to landmark 1. 2 guides 0 to landmark 2: 1 away.
    local = -np.array([3, np.sqrt(17), 1])
    assert np.allclose(step.reward[0], 0.5 * local + 0.5 * local.mean())
    assert np.isclose(step.info["distance_to_goal"][0], -local.mean())


def test_speaker_has_word_per_listener() -> None:
    env = place_agents(SimpleSpeakerListener(3), [[0, 0], [1, 0], [0, 2], [0, 0], [0, 2.1], [9, 9]], goal=[0, 1])
    spec = env.spec
    assert spec.n_actions == 5 + 9
    mask = env.reset(np.array([False]))["action_mask"][0]
    assert mask.sum(axis=1).tolist() == [9, 5, 5]
    step = env.step(np.array([[spec.action_names.index("say_2_1"), 0, 0]]))
    for listener, word in ((1, 2), (2, 1)):
        heard_slice = spec.observation["vector"].parts[listener]["heard"]
        assert step.observation["vector"][0, listener, heard_slice].argmax() == word
    assert np.allclose(step.reward, -(1.0 + 0.01) / 2)
    assert np.isclose(step.info["distance_to_goal"][0], (1.0 + 0.1) / 2)
    assert step.info["success"][0] == 0
    assert env.step(np.array([[5, 1, 0]])).info["success"][0] == 0  # nobody has moved far yet
    env.world.position[0, 1] = [0.14, 0]
    env.world.velocity[:] = 0
    assert env.step(np.array([[5, 0, 0]])).info["success"][0] == 1


def test_spread_metrics() -> None:
    positions = [[-0.1, 0], [0.1, 0], [5, 5], [-0.1, 0.09], [0.1, 0.14], [5, 6]]
    info = place_agents(SimpleSpread(), positions).step(np.zeros((1, 3), dtype=int)).info
    assert info["collisions"] == 1
    assert info["landmarks_covered"] == 1
    assert np.isclose(info["mean_distance"], (0.09 + 0.14 + 1) / 3)
    assert info["success"] == 0
    positions[5] = [5, 5.14]
    assert place_agents(SimpleSpread(), positions).step(np.zeros((1, 3), dtype=int)).info["success"] == 1


def test_tag_rewards_catches_and_fines_leaving() -> None:
    env = place_agents(SimpleTag(2, 1, 0), [[0, 0], [-0.5, 0], [0, 0.1]])
    step = env.step(np.zeros((1, 3), dtype=int))
    assert step.reward[0].tolist() == [10, 10, -10]
    assert step.info["catches"] == 1
    for distance, fine in ((0.8, 0), (0.95, 0.5), (1.5, np.e), (8.0, 10.0)):
        env = place_agents(SimpleTag(1, 1, 0), [[0, 0], [-distance, 0]])
        assert np.allclose(env.step(np.zeros((1, 2), dtype=int)).reward[0], [0, -fine], atol=1e-6)


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_games_are_truncated_at_horizon(scenario: Scenario) -> None:
    rng = np.random.default_rng(0)
    env = make(scenario, 3, horizon=4)
    env.reset()
    for t in range(4):
        step = env.step(random_actions(env, rng))
        assert (step.truncated == (t == 3)).all()
        assert not step.terminated.any()
    after = env.step(random_actions(env, rng))
    assert np.array_equal(after.observation["vector"], step.observation["vector"])
    assert after.truncated.all()
    assert not after.reward.any()
    assert all(not value.any() for value in after.info.values())
    mask = np.array([False, True, False])
    start = env.reset(mask)["vector"]
    assert np.array_equal(start[~mask], step.observation["vector"][~mask])
    assert not np.array_equal(start[mask], step.observation["vector"][mask])
    step = env.step(random_actions(env, rng))
    assert step.truncated.tolist() == [True, False, True]
    assert step.reward.any(axis=1).tolist() == [False, scenario.name != "simple_tag" or step.reward[1].any(), False]


def test_starts_follow_seed() -> None:
    env, second_env = make(SimpleReference(), 50, seed=4), make(SimpleReference(), 50, seed=4)
    first = env.reset()["vector"]
    assert np.array_equal(first, second_env.reset()["vector"])
    assert len(np.unique(first[:, 0, 2])) == 50
    second = env.reset()["vector"]
    assert not np.isclose(second, first).all(axis=(1, 2)).any()
    assert np.array_equal(env.reset(seed=9)["vector"], make(SimpleReference(), 50).reset(seed=9)["vector"])
    # One game's episodes do not hang on when the others end.
    env.reset(seed=9)
    second_env.reset(seed=9)
    mask = np.arange(50) < 10
    assert np.array_equal(env.reset(mask)["vector"][:10], second_env.reset()["vector"][:10])


def test_paired_games_share_starts() -> None:
    env = make(SimpleReference(), 6)
    env.share_random_numbers(2)
    vector = env.reset()["vector"]
    assert np.array_equal(vector[:3], vector[3:])
    assert not np.array_equal(vector[0], vector[1])
    env.share_random_numbers(1)
    vector = env.reset()["vector"]
    assert not np.array_equal(vector[:3], vector[3:])
    with pytest.raises(ConfigError, match="equal groups"):
        env.share_random_numbers(4)


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_restored_game_is_bit_identical(scenario: Scenario) -> None:
    rng = np.random.default_rng(5)
    env = make(scenario, 3, horizon=8)
    env.reset()
    for t in range(5):
        env.step(random_actions(env, rng))
        if t == 2:
            env.reset(np.array([True, False, False]))
    state = env.state_dict()
    world_state = {name: value.copy() for name, value in state["world"].items()}
    restored_env = make(scenario, 3, seed=77, horizon=8)
    restored_env.load_state_dict(state)
    for _ in range(9):
        action = random_actions(env, rng)
        random_actions(restored_env, rng)  # draws as much from its own stream of starts
        x, y = env.step(action), restored_env.step(action)
        assert np.array_equal(x.reward, y.reward)
        assert np.array_equal(x.truncated, y.truncated)
        assert all(np.array_equal(x.info[name], y.info[name]) for name in x.info)
        assert np.array_equal(x.observation["vector"], y.observation["vector"])
        assert np.array_equal(env.reset(x.truncated)["vector"], restored_env.reset(y.truncated)["vector"])
    assert all(np.array_equal(world_state[name], state["world"][name]) for name in world_state)  # a snapshot


def test_action_mask_is_enforced() -> None:
    env = make(SimpleSpeakerListener(), 200)
    observation = {name: torch.as_tensor(value) for name, value in env.reset().items()}
    policy = RandomPolicy(env.spec)
    assert policy.channels == ("action_mask",)
    action = policy.act(observation, generator=torch.Generator().manual_seed(0)).action.numpy()
    assert sorted(set(action[:, 0])) == [5, 6, 7]
    assert sorted(set(action[:, 1])) == [0, 1, 2, 3, 4]
    env.step(action)
    with pytest.raises(ValueError, match=r"listener_0.*say_1"):
        env.step(np.tile([5, 6], (200, 1)))
    assert "action_mask" not in make(SimpleTag()).spec.observation


def test_error_names_invalid_calls() -> None:
    env = make(SimpleSpread(), 2)
    with pytest.raises(ValueError, match=r"reset\(\)"):
        env.step(np.zeros((2, 3), dtype=int))
    env.reset()
    for bad in (np.full((2, 3), 5), np.full((2, 3), -1), np.zeros((2, 2), dtype=int)):
        with pytest.raises(ValueError, match="actions of"):
            env.step(bad)
    with pytest.raises(ConfigError, match="no mechanism"):
        env.set_mechanism(np.zeros(1))
    with pytest.raises(ConfigError, match="no contexts"):
        env.set_context(0)


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_picture_shows_all_discs(scenario: Scenario) -> None:
    env = make(scenario, 2)
    env.reset()
    count = len(env.world.bodies.radius)
    env.world.position[1] = np.stack([np.linspace(-1, 1, count), np.linspace(1, -0.5, count)], axis=1)
    image = env.render(1)
    assert image.shape == (320, 320, 3)
    assert image.dtype == np.uint8
    fill, outline = scenario.compute_colors(env.world.goal_landmark[1])
    n_agents = env.spec.n_agents
    assert len(np.unique(fill[:n_agents], axis=0)) == n_agents
    x, y = ((np.array([1, -1]) * env.world.position[1] / 1.25 + 1) * 160).astype(int).T
    assert np.array_equal(image[y, x], fill)
    for goal, (_, agent) in zip(env.world.goal_landmark[1], scenario.guide_pairs, strict=True):
        assert np.array_equal(outline[agent], fill[n_agents + goal])
    env.world.position[1, 0] = [7, 0]  # far outside: the view widens
    assert (env.render(1) == fill[0]).all(axis=2).any()


@pytest.mark.parametrize("scenario", ALL, ids=lambda s: s.name)
def test_pettingzoo_api(scenario: Scenario) -> None:
    from pettingzoo.test import parallel_api_test

    from llmrl.envs.adapters.parallel import ParallelAdapter

    parallel_api_test(ParallelAdapter(make(scenario, 1)), num_cycles=60)


def test_command_line_options_build() -> None:
    from experiments import compose
    from llmrl.config.builder import Builder

    injected = {"seeds": Seeds(0)}
    for scenario in ALL:
        env = Builder(injected).build(dict(compose(f"env={scenario.name}")["env"]), "env")
        assert (env.spec.name, env.spec.n_envs, env.spec.n_agents) == (scenario.name, 128, scenario.bodies.n_agents)
    config = compose("env=simple_tag", "env.scenario.n_good=4", "env.n_envs=2")["env"]
    assert Builder(injected).build(dict(config), "env").spec.n_agents == 7
    for option, message in (
        ("env=simple_speaker_listener env.scenario.n_agents=6", "less than or equal to 5"),
        ("env=simple_reference env.scenario.n_agents=1", "greater than or equal to 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            Builder(injected).build(dict(compose(*option.split())["env"]), "env")
