"""Particle worlds as domains: sentences of agents and their plans."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import models
from llmrl.envs.particles.mpe_scenarios import SimpleReference, SimpleSpeakerListener, SimpleSpread, SimpleTag
from llmrl.envs.particles.scenario import Scenario
from llmrl.llms.invalid_reply import InvalidReply
from llmrl.teachers.particles.spread import assign_landmarks
from llmrl.teachers.plans import PlanStep, format_plan, parse_plan, parse_reply
from particle_games import (
    SCENARIOS,
    all_scenarios,
    make_domain,
    make_guide,
    make_world,
    observe_sentences,
    sample_world,
)
from shipped import build_llm_planner

# What agents are told


def test_spread_describes_nearest_agents() -> None:
    world = make_world(SimpleSpread(), [(0, 0), (0.5, 0), (-1, 1), (0.1, 0), (-0.2, 0.1), (0.6, -1)])
    common = (
        "Nearest to <landmark 0> is agent_0, nearest to <landmark 1> is agent_0 and nearest to <landmark 2> is agent_1."
    )
    assert observe_sentences(SimpleSpread(), world) == [[f"The agent is agent_{i}. {common}" for i in range(3)]]


def test_tag_describes_hunters() -> None:
    scenario = SimpleTag(2, 2, 1)
    world = make_world(scenario, [(0, 0), (0.5, 0), (0.9, 0), (-0.2, 0), (0.8, 0.8)])
    hunts = "the hunter nearest to <agent_0> is adversary_1 and the hunter nearest to <agent_1> is adversary_0."
    assert observe_sentences(scenario, world) == [
        [
            f"The agent is adversary_0. It is a hunter and is nearest to <agent_1>; {hunts}",
            f"The agent is adversary_1. It is a hunter and is nearest to <agent_0>; {hunts}",
            "The agent is agent_0. It is hunted; the nearest hunter, <adversary_1>, is close. It is near the edge of "
            "the arena.",
            "The agent is agent_1. It is hunted; the nearest hunter, <adversary_0>, is close. It is inside the arena.",
        ]
    ]
    world.position[0, :2] += 9
    assert observe_sentences(scenario, world)[0][3] == (
        "The agent is agent_1. It is hunted; the nearest hunter, <adversary_0>, is far. It is inside the arena."
    )


def test_reference_describes_previous_speaker() -> None:
    scenario = SimpleReference(3)
    world = make_world(scenario, np.zeros((6, 2)), goal=[0, 1, 2])  # agent 0 knows where agent 1 must go, ...
    previous = observe_sentences(scenario, world)[0]
    assert previous[0] == (
        "The agent is agent_0. It knows that agent_1 must go to <red>. agent_2, who knows where it must go itself, "
        "says nothing."
    )
    world.messages[0, 0, 7] = world.messages[0, 1, 1] = world.messages[0, 2, 2] = 1.0
    words = [sentence.rpartition("says ")[2] for sentence in observe_sentences(scenario, world)[0]]
    assert words == ["<blue>.", "a word without meaning.", "<green>."]


def test_speaker_sees_goals_listener_sees_words() -> None:
    scenario = SimpleSpeakerListener(3)
    world = make_world(scenario, np.zeros((6, 2)), goal=[2, 0])
    world.messages[0, 0, 1] = 1.0  # green to the first listener, nothing to the second
    assert observe_sentences(scenario, world)[0] == [
        "The agent is speaker_0, who speaks and cannot move. It knows that listener_0 must go to <blue> and listener_1 "
        "must go to <red>.",
        "The agent is listener_0. speaker_0, who knows where it must go, says <green>.",
        "The agent is listener_1. speaker_0, who knows where it must go, says nothing.",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "states"),
    [(SimpleSpread(), 81), (SimpleTag(), 9 + 12), (SimpleReference(), 30), (SimpleSpeakerListener(), 7)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_state_count_is_small(scenario: Scenario, states: int) -> None:
    """The number of states is small enough to request plans for all of them, and all of them occur."""
    sentences = set(itertools.chain(*observe_sentences(scenario, sample_world(scenario, 0, 3000))))
    assert len(sentences) == states


@all_scenarios
def test_advice_is_independent_across_games(scenario: Scenario) -> None:
    world, domain = sample_world(scenario, 1, 20), make_domain(scenario)
    vector = scenario.observe(world)
    n = scenario.bodies.n_agents
    order = np.random.default_rng(2).permutation(20)
    plan_policy = make_guide(domain)
    rows = plan_policy.advise(plan_policy.scenes({"vector": vector})).reshape(20, n, -1)
    permuted = plan_policy.advise(plan_policy.scenes({"vector": vector[order]})).reshape(20, n, -1)
    np.testing.assert_array_equal(permuted, rows[order])
    np.testing.assert_array_equal(rows.sum(-1), 1.0)


def test_sentences_use_only_observations() -> None:
    """Not others' velocities in spread, not their goals in the worlds of words."""
    scenario, world = SimpleSpread(), sample_world(SimpleSpread(), 3, 50)
    sentences = observe_sentences(scenario, world)
    world.velocity[:] = 0
    assert observe_sentences(scenario, world) == sentences
    listeners = SimpleSpeakerListener(3)
    world = sample_world(listeners, 3, 50)
    sentences = observe_sentences(listeners, world)
    world.goal_landmark = (world.goal_landmark + 1) % 3
    after = observe_sentences(listeners, world)
    assert [game[1:] for game in after] == [game[1:] for game in sentences]
    assert all(a[0] != b[0] for a, b in zip(after, sentences, strict=True))


# Plans


@given(st.lists(st.integers(0, 5), min_size=6, max_size=6).map(tuple))
def test_assignment_respects_owners(nearest: tuple[int, ...]) -> None:
    plan = assign_landmarks(nearest)
    assert sorted(plan) == list(range(6))
    assert sum(nearest[landmark] == agent for agent, landmark in enumerate(plan)) == len(set(nearest))


@settings(max_examples=60)
@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_agents_agree_on_assignment(n: int, seed: int) -> None:
    """Each agent uses only its observation."""
    scenario = SimpleSpread(n)
    world = sample_world(scenario, seed, 1)
    distances = np.sort(
        np.linalg.norm(world.agent_positions[0][:, None] - world.landmark_positions[0], axis=-1), axis=0
    )
    assume(n == 1 or (np.diff(distances, axis=0)[0] > 1e-5).all())  # else float32 may tell them different things
    domain = make_domain(scenario)
    plans = [domain.best_plan(sentence) for sentence in observe_sentences(scenario, world)[0]]
    assert sorted(plan[0].object for plan in plans) == [f"landmark {k}" for k in range(n)]


@all_scenarios
def test_grammar_plans_are_legal_actions(scenario: Scenario) -> None:
    domain, world = make_domain(scenario), sample_world(scenario, 4, 6)
    scenes = make_guide(domain).scenes({"vector": scenario.observe(world)})
    for k, scene in enumerate(scenes):
        objects = domain.objects(scene.sentence)
        steps = [PlanStep(s.name, object_) for s in domain.skills for object_ in (objects if s.takes_object else [""])]
        plans = [domain.fallback, domain.best_plan(scene.sentence), *((step,) for step in steps), tuple(steps)]
        for plan in plans:
            assert parse_plan(format_plan(plan), domain.skills, objects) == plan
            action = domain.action(scene, plan)
            assert 0 <= action < domain.n_actions
            assert scenario.legal_actions is None or scenario.legal_actions[k % scenario.bodies.n_agents, action]


@all_scenarios
def test_planner_rules_answer_all_states(scenario: Scenario) -> None:
    """Through the prompt, which names every skill and ends with the state, and the parser."""
    domain = make_domain(scenario)
    planner = build_llm_planner(domain, models.make_scripted_client(), samples=1)
    sentences = sorted(set(itertools.chain(*observe_sentences(scenario, sample_world(scenario, 5, 40)))))
    question = planner.render_question(sentences[0]).text
    assert all(f"- {skill.name}" in question for skill in domain.skills) and f"State: {sentences[0]}" in question
    assert "several agents" in question or "other agents" in question
    for sentence, ((plan, share),) in zip(sentences, planner.plans(sentences), strict=True):
        assert share == 1.0
        assert parse_plan(format_plan(plan), domain.skills, domain.objects(sentence)) == plan
    assert planner.metrics()["teacher/fallbacks"] == 0 and planner.metrics()["llm/repairs"] == 0


def test_prompt_examples_are_valid() -> None:
    for scenario in SCENARIOS[::3]:
        domain = make_domain(scenario)
        text = build_llm_planner(domain, models.make_scripted_client()).render_question("The agent is nobody.").text
        example = text.partition("## Example\n")[2].partition("\n\n")[0].strip()
        state, _, answer = example.removeprefix("State: ").partition("\n")
        assert parse_reply(answer, domain.skills, domain.objects(state)) == domain.best_plan(state)


def test_plan_references_must_exist() -> None:
    domain = make_domain(SimpleReference())
    sentence = "The agent is agent_0. It knows that agent_1 must go to <red>. agent_1, who knows ..., says <red>."
    with pytest.raises(InvalidReply, match="blue"):
        parse_plan("go to <blue>", domain.skills, domain.objects(sentence))


# Words


def test_word_with_move_is_single_action() -> None:
    scenario = SimpleReference()
    domain, world = (
        make_domain(scenario),
        make_world(scenario, [(0, 0), (0, 0), (1, 0), (-1, 0), (0, 1)], goal=[0, 0]),
    )
    scene = make_guide(domain).scenes({"vector": scenario.observe(world)})[0]

    def does(*steps: tuple[str, str]) -> str:
        return scenario.action_names[domain.action(scene, tuple(PlanStep(*step) for step in steps))]

    assert does(("say", "blue"), ("go to", "red")) == "right_say_2"
    assert does(("go to", "green"), ("say", "red")) == "left_say_0"
    assert does(("go to", "blue")) == "up_say_9"
    assert does(("say", "green")) == "stay_say_1"


def test_speaker_addresses_listeners_separately() -> None:
    scenario = SimpleSpeakerListener(4)
    domain, world = make_domain(scenario), make_world(scenario, np.zeros((7, 2)), goal=[2, 1, 0])
    scene = make_guide(domain).scenes({"vector": scenario.observe(world)})[0]
    plan = domain.best_plan(scene.sentence)
    assert plan == (
        PlanStep("tell listener_0", "blue"),
        PlanStep("tell listener_1", "green"),
        PlanStep("tell listener_2", "red"),
    )
    assert scenario.action_names[domain.action(scene, plan)] == "say_2_1_0"
    assert scenario.action_names[domain.action(scene, plan[1:2])] == "say_0_1_0"
