"""Particle worlds for tests of teachers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from llmrl.core.seeding import Seeds
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.physics import ParticleWorld
from llmrl.envs.particles.scenario import Scenario
from llmrl.envs.particles.vec_env import ParticlesEnv
from llmrl.teachers.domain import Domain
from llmrl.teachers.planners import OraclePlanner
from llmrl.teachers.plans import Plan, PlanStep
from llmrl.teachers.policy_teacher import PlanPolicy
from llmrl.teachers.teacher_factory import find_domain

SCENARIOS: list[Scenario] = [
    SimpleSpread(),
    SimpleSpread(5),
    SimpleSpread(1),
    SimpleTag(),
    SimpleTag(2, 3, 1),
    SimpleTag(1, 1, 0),
    SimpleReference(),
    SimpleReference(4),
    SimpleSpeakerListener(),
    SimpleSpeakerListener(4),
]
all_scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda s: f"{s.name}-{s.bodies.n_agents}")


def make_games(scenario: Scenario, n_envs: int = 1) -> ParticlesEnv:
    return ParticlesEnv(Seeds(0), scenario, n_envs=n_envs)


def make_domain(scenario: Scenario) -> Domain:
    return find_domain(scenario.name, spec=make_games(scenario).spec)


def observe_sentences(scenario: Scenario, world: ParticleWorld) -> list[list[str]]:
    """Return the sentence of each agent of each game."""
    scenes = make_guide(make_domain(scenario)).scenes({"vector": scenario.observe(world)})
    n = scenario.bodies.n_agents
    return [[scene.sentence for scene in scenes[i : i + n]] for i in range(0, len(scenes), n)]


def make_world(scenario: Scenario, position: Sequence[object], goal: Sequence[int] = ()) -> ParticleWorld:
    """Return the world of one game with resting bodies at `position` [n_bodies, 2]."""
    world = ParticleWorld(scenario.bodies, 1, scenario.message_dim, len(scenario.guide_pairs))
    world.reset(np.ones(1, dtype=bool), np.array([position], dtype=np.float64), np.array([goal], dtype=np.int64))
    return world


def sample_world(scenario: Scenario, seed: int, n_envs: int) -> ParticleWorld:
    """Sample worlds with random positions, velocities and messages."""
    rng = np.random.default_rng(seed)
    world = ParticleWorld(scenario.bodies, n_envs, scenario.message_dim, len(scenario.guide_pairs))
    world.reset(np.ones(n_envs, dtype=bool), *scenario.sample_start(rng, n_envs))
    world.velocity = rng.normal(size=world.velocity.shape) * scenario.bodies.is_movable[:, None]
    if scenario.guide_pairs:
        mask = (
            np.ones((scenario.bodies.n_agents, len(scenario.action_names)))
            if scenario.legal_actions is None
            else scenario.legal_actions
        )
        messages = [rng.choice(np.flatnonzero(row), n_envs) for row in mask]
        world.messages = scenario.decode_actions(np.stack(messages, axis=1))[1] * (rng.random((n_envs, 1, 1)) < 0.8)
    return world


def make_guide(domain: Domain) -> PlanPolicy:
    return PlanPolicy(OraclePlanner(domain))


PlanChooser = Callable[[Domain, int, str], Plan]
"""Function from a domain, the index of an agent and its sentence to its plan."""


def play(
    scenario: Scenario, n_envs: int, choose: PlanChooser, world: ParticleWorld | None = None, seed: int = 0
) -> tuple[ParticlesEnv, np.ndarray, dict[str, float]]:
    """Play one episode of each game and return the environment, the returns [n_envs, n_agents] and the mean metrics."""
    env, domain = make_games(scenario, n_envs), make_domain(scenario)
    observation = env.reset(seed=seed)
    if world is not None:
        env.world.load_state_dict(world.state_dict())
        observation = {"vector": scenario.observe(world)}
    n = scenario.bodies.n_agents
    total, metrics = np.zeros((n_envs, n)), dict.fromkeys(scenario.metrics, 0.0)
    for _ in range(25):
        scenes = make_guide(domain).scenes({"vector": observation["vector"]})
        plans = [choose(domain, k % n, scene.sentence) for k, scene in enumerate(scenes)]
        action = [domain.action(scene, plan) for scene, plan in zip(scenes, plans, strict=True)]
        step = env.step(np.array(action).reshape(n_envs, n))
        observation, total = step.observation, total + step.reward
        for name, value in step.info.items():
            metrics[name] = float(value.mean()) + (metrics[name] if scenario.metrics[name] == "sum" else 0.0)
    return env, total, metrics


def choose_best_plan(domain: Domain, agent: int, sentence: str) -> Plan:
    return domain.best_plan(sentence)


def make_constant_chooser(*plan: PlanStep) -> PlanChooser:
    return lambda domain, agent, sentence: plan
