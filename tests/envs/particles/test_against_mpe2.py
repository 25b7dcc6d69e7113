"""Particle worlds, compared step for step with mpe2."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.physics import MOVE_DIRECTIONS, MOVES, Bodies, ParticleWorld
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.vec_env import ParticlesEnv

GAMES: list[tuple[Scenario, str, dict[str, Any]]] = [
    (SimpleSpread(), "simple_spread_v3", {}),
    (SimpleSpread(n_agents=1), "simple_spread_v3", {"N": 1}),
    (SimpleSpread(n_agents=6, local_ratio=0.2), "simple_spread_v3", {"N": 6, "local_ratio": 0.2}),
    (SimpleTag(), "simple_tag_v3", {}),
    (SimpleTag(5, 3, 4), "simple_tag_v3", {"num_adversaries": 5, "num_good": 3, "num_obstacles": 4}),
    (SimpleTag(1, 2, 0), "simple_tag_v3", {"num_adversaries": 1, "num_good": 2, "num_obstacles": 0}),
    (SimpleReference(), "simple_reference_v3", {}),
    (SimpleReference(local_ratio=0.9), "simple_reference_v3", {"local_ratio": 0.9}),
    (SimpleSpeakerListener(), "simple_speaker_listener_v4", {}),
]


def sampled(env: ParticlesEnv, rng: np.random.Generator) -> np.ndarray:
    """Draw legal actions, [n_envs, n_agents]."""
    spec = env.spec
    mask = env._scenario.legal_actions
    if mask is None:
        return rng.integers(spec.n_actions, size=(spec.n_envs, spec.n_agents))
    return np.stack([rng.choice(np.flatnonzero(row), size=spec.n_envs) for row in mask], axis=1)


def crowded(position: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move all discs of some games close together, so that they collide."""
    shrink = rng.choice([0.2, 0.5, 1.0], size=(len(position), 1, 1))
    return position * shrink


def overlap(world: ParticleWorld) -> bool:
    """Return whether two solid discs overlap in some game."""
    solid = np.flatnonzero(world.bodies.is_solid)
    x, y = solid[np.array(np.triu_indices(len(solid), k=1))]
    distance = np.linalg.norm(world.position[:, x] - world.position[:, y], axis=-1)
    return bool((distance < world.bodies.radius[x] + world.bodies.radius[y]).any())


@pytest.mark.slow
@pytest.mark.parametrize(("scenario", "module", "options"), GAMES, ids=lambda x: getattr(x, "name", None))
def test_steps_match_package(scenario: Scenario, module: str, options: dict[str, Any]) -> None:
    """Drive the package through its own interface from the positions of our games."""
    rng = np.random.default_rng(1)
    env = ParticlesEnv(Seeds(3), scenario, n_envs=8)
    env.reset()
    env.world.position = crowded(env.world.position, rng)
    first = env._observe()["vector"]
    games = [importlib.import_module(f"mpe2.{module}").parallel_env(**options) for _ in range(8)]
    for i, game in enumerate(games):
        game.reset(seed=i)
        raw = game.unwrapped
        assert tuple(game.agents) == env.spec.agent_names
        for entity, position in zip(raw.world.entities, env.world.position[i], strict=True):
            entity.state.p_pos = position.copy()
        if module == "simple_reference_v3":
            for agent, goal in zip(raw.world.agents, env.world.goal_landmark[i], strict=True):
                agent.goal_b = raw.world.landmarks[goal]
        if module == "simple_speaker_listener_v4":
            raw.world.agents[0].goal_b = raw.world.landmarks[env.world.goal_landmark[i, 0]]
        for j, name in enumerate(env.spec.agent_names):
            observation = raw.observe(name)
            assert np.array_equal(observation, first[i, j, : len(observation)])
            n_actions = env.spec.n_actions if scenario.legal_actions is None else scenario.legal_actions[j].sum()
            assert game.action_space(name).n == n_actions
    touching = False
    for t in range(25):
        action = sampled(env, rng)
        touching |= overlap(env.world)
        step = env.step(action)
        reward = scenario.compute_rewards(env.world)
        assert np.allclose(step.reward, reward, atol=1e-6, rtol=1e-6)
        for i, game in enumerate(games):
            numbers = action[i] if scenario.legal_actions is None else action[i] - [5, 0]
            observation, rewards, terminated, truncated, _ = game.step(
                dict(zip(env.spec.agent_names, numbers.tolist(), strict=True))
            )
            world = game.unwrapped.world
            for j, name in enumerate(env.spec.agent_names):
                assert np.allclose(world.agents[j].state.p_pos, env.world.position[i, j], rtol=0, atol=1e-9)
                assert np.allclose(world.agents[j].state.p_vel, env.world.velocity[i, j], rtol=0, atol=1e-9)
                assert np.allclose(
                    observation[name], step.observation["vector"][i, j, : len(observation[name])], rtol=0, atol=1e-6
                )
                assert not step.observation["vector"][i, j, len(observation[name]) :].any()
                assert np.isclose(rewards[name], reward[i, j], rtol=0, atol=1e-9)
                assert not terminated[name]
                assert truncated[name] == step.truncated[i] == (t == 24)
    assert touching == (scenario.bodies.is_solid.sum() > 1)


@settings(max_examples=25)
@given(data=st.data())
def test_disc_physics(data: st.DataObject) -> None:
    """Draw sizes, accelerations, maximum speeds, mobility and solidity at random."""
    from mpe2._mpe_utils.core import Agent, Landmark
    from mpe2._mpe_utils.core import World as Published

    n_agents, n_landmarks = data.draw(st.integers(1, 6)), data.draw(st.integers(0, 4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    bodies = Bodies(
        agent_names=tuple(f"agent_{i}" for i in range(n_agents)),
        radius=rng.uniform(0.02, 0.3, n_agents + n_landmarks),
        is_solid=rng.random(n_agents + n_landmarks) < 0.8,
        is_movable=rng.random(n_agents) < 0.8,
        acceleration=rng.uniform(1, 6, n_agents),
        max_speed=np.where(rng.random(n_agents) < 0.5, np.inf, rng.uniform(0.2, 1.5, n_agents)),
    )
    native, reference = ParticleWorld(bodies, 2, 2, 0), [Published(), Published()]
    start = rng.uniform(-0.7, 0.7, (2, n_agents + n_landmarks, 2))
    native.reset(np.ones(2, dtype=bool), start, np.zeros((2, 0), dtype=np.int64))
    for game, world in enumerate(reference):
        world.dim_c = 2
        world.agents, world.landmarks = [Agent() for _ in range(n_agents)], [Landmark() for _ in range(n_landmarks)]
        for i, entity in enumerate(world.entities):
            entity.size, entity.collide = bodies.radius[i], bool(bodies.is_solid[i])
            entity.state.p_pos, entity.state.p_vel = start[game, i].copy(), np.zeros(2)
        for i, agent in enumerate(world.agents):
            agent.movable, agent.silent = bool(bodies.is_movable[i]), True
            agent.max_speed = None if np.isinf(bodies.max_speed[i]) else float(bodies.max_speed[i])
    for _ in range(15):
        move = rng.integers(len(MOVES), size=(2, n_agents))
        native.step(move, np.zeros((2, n_agents, 2)), np.ones(2, dtype=bool))
        for game, world in enumerate(reference):
            for i, agent in enumerate(world.agents):
                agent.action.u = MOVE_DIRECTIONS[move[game, i]] * bodies.acceleration[i]
            world.step()
            for i, entity in enumerate(world.entities):
                assert np.allclose(entity.state.p_pos, native.position[game, i], rtol=0, atol=1e-9)
            for i, agent in enumerate(world.agents):
                assert np.allclose(agent.state.p_vel, native.velocity[game, i], rtol=0, atol=1e-9)
