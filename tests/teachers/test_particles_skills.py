"""The skills of discs and their teams: whether they get where they are to be."""

from __future__ import annotations

import numpy as np
import pytest

from llmrl.envs.particles.mpe_scenarios import SimpleSpread, SimpleTag
from llmrl.envs.particles.scenario import Scenario
from llmrl.teachers.domain import Domain
from llmrl.teachers.plans import Plan, PlanStep
from particle_games import (
    SCENARIOS,
    choose_best_plan,
    make_constant_chooser,
    make_domain,
    make_guide,
    make_world,
    play,
    sample_world,
)


def test_go_to_arrives() -> None:
    scenario = SimpleSpread(1)
    world = sample_world(scenario, 6, 300)
    world.velocity *= 0.5
    env, _, _ = play(scenario, 300, make_constant_chooser(PlanStep("go to", "landmark 0")), world)
    distance = np.linalg.norm(env.world.agent_positions - env.world.landmark_positions, axis=-1)
    assert distance.max() < 0.15 and distance.mean() < 0.08
    assert np.abs(env.world.velocity).max() <= 0.6  # hovering: at most the push of a step and what is left of one


def test_stay_stops() -> None:
    scenario = SimpleSpread(1)
    world = sample_world(scenario, 7, 100)
    env, _, _ = play(scenario, 100, make_constant_chooser(PlanStep("stay")), world)
    assert np.linalg.norm(env.world.velocity, axis=-1).max() < 0.05


def test_keep_apart_separates_agents() -> None:
    scenario = SimpleSpread(2)
    close_bodies = make_world(scenario, [(0, 0), (0.1, 0), (1, 1), (-1, -1)])
    plan = (PlanStep("keep apart"), PlanStep("go to", "landmark 0"))
    scenes = make_guide(make_domain(scenario)).scenes({"vector": scenario.observe(close_bodies)})
    assert [scene.act(plan[0]) for scene in scenes] == [1, 2]
    close_bodies.position[0, 1] = 0.9
    scene = make_guide(make_domain(scenario)).scenes({"vector": scenario.observe(close_bodies)})[0]
    assert scene.act(plan[0]) is None and make_domain(scenario).action(scene, plan) == scene.act(plan[1])


def test_hunters_avoid_obstacles() -> None:
    scenario = SimpleTag(1, 1, 1)
    hunter_targets = make_world(scenario, [(-0.8, 0), (0.8, 0), (0, 0)])

    def chase(domain: Domain, agent: int, sentence: str) -> Plan:
        return (PlanStep("stay"),) if agent == 1 else (PlanStep("chase", "agent_0"),)

    _, _, metrics = play(scenario, 1, chase, hunter_targets)
    assert metrics["catches"] > 0
    _, _, metrics = play(SimpleTag(1, 1, 2), 100, chase)
    assert metrics["catches"] > 3


@pytest.mark.slow
def test_fleeing_beats_standing_still() -> None:
    def prey(plan: tuple[PlanStep, ...] | None) -> tuple[float, float]:
        def choose(domain: Domain, agent: int, sentence: str) -> Plan:
            if agent < 3:
                return domain.best_plan(sentence)
            return (PlanStep("flee from", domain.objects(sentence)[0]),) if plan is None else plan

        _, total, metrics = play(SimpleTag(), 60, choose)
        return metrics["catches"], float(total[:, 3].mean())

    idle, single_hunter, from_all = (prey(p) for p in ((PlanStep("stay"),), None, (PlanStep("keep away"),)))
    assert single_hunter[0] < idle[0] / 3 and from_all[0] < idle[0] / 3
    assert min(single_hunter[1], from_all[1]) > idle[1] + 20


def test_go_to_middle_returns_from_outside() -> None:
    scenario = SimpleTag(1, 1, 0)
    env, _, _ = play(
        scenario,
        1,
        make_constant_chooser(PlanStep("go to the middle")),
        make_world(scenario, [(1.2, 0.3), (-0.9, 1.1)]),
    )
    assert np.linalg.norm(env.world.agent_positions, axis=-1).max() < 0.3  # both want to be there


# Teams


def test_the_oracle_covers_landmarks() -> None:
    """Random agents get -27; an agent that stays where it is could not even cover its own."""
    _, total, metrics = play(SimpleSpread(), 100, choose_best_plan)
    assert total.mean() > -9.5
    assert metrics["landmarks_covered"] > 2.6 and metrics["success"] > 0.85


@pytest.mark.parametrize("scenario", SCENARIOS[6:], ids=lambda s: f"{s.name}-{s.bodies.n_agents}")
def test_oracle_follows_words(scenario: Scenario) -> None:
    _, _, metrics = play(scenario, 50, choose_best_plan)
    assert metrics["success"] == 1.0 and metrics["distance_to_goal"] < 0.06


def test_oracle_hunters_catch_random_prey() -> None:
    rng = np.random.default_rng(0)

    def choose(domain: Domain, agent: int, sentence: str) -> Plan:
        if agent < 3:
            return domain.best_plan(sentence)
        wander = [PlanStep("stay"), PlanStep("go to the middle"), PlanStep("chase", domain.objects(sentence)[0])]
        return (wander[rng.integers(3)],)

    _, _, metrics = play(SimpleTag(), 60, choose)
    assert metrics["catches"] > 4
