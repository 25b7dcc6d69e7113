"""Texts about a mechanism match its rules and its payments."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.envs.mechanism_text import MechanismReport, build_example_report, describe_report_fields, describe_rules
from llmrl.envs.mechanisms import BracketedTax, Incentives, SocietyEvents
from llmrl.envs.melting_pot.vec_env import MeltingPotEnv
from llmrl.envs.native.vec_env import NativeEnv
from llmrl.envs.substrate.society_env import SubstrateSettings

MECHANISMS = {
    "tax": BracketedTax,
    "tax of the present": lambda: BracketedTax(window=0, edges=[0, 1], multiplier=1),
    "incentives": Incentives,
    "published incentives": lambda: Incentives(clean_count="exactly_one", reward_removed=True, eat_reward=0.1),
}


def read(observation, game, player):
    return json.loads(observation["text"][game, player])


def check(facts, step, values, space, game, player, show_mechanism):
    """Compare the words on one player's last reward with the settlement of the step."""
    last = facts["last_reward"]
    payment = step.reward_jacobian[game, player] * values[game]
    assert last["before_payments"] == pytest.approx(float(step.base_reward[game, player]), abs=1e-4)
    if show_mechanism:
        assert facts["mechanism"] == pytest.approx(dict(zip(space.names, values[game], strict=True)), abs=1e-4)
        parts = np.array([last["payments"].get(name, 0) for name in space.names])
        np.testing.assert_allclose(parts, payment, atol=1e-4)
    else:
        assert "mechanism" not in facts
        assert last["payments"] == pytest.approx(float(payment.sum()), abs=1e-4)
        parts = np.array([last["payments"]])
    total = last["before_payments"] + parts.sum()
    assert total == pytest.approx(float(step.reward[game, player]), abs=1e-3)


@given(
    st.sampled_from(sorted(MECHANISMS)),
    st.booleans(),
    st.integers(0, 2**31),
)
@settings(max_examples=60)
def test_text_equals_jacobian_times_values(name, show_mechanism, seed):
    mechanism, rng = MECHANISMS[name](), np.random.default_rng(seed)
    space, shape = mechanism.space, (2, 3)
    report = MechanismReport(space, *shape, show_mechanism, mechanism.player_facts)
    events_eaten = np.zeros((0, *shape))
    for t in range(14):
        raw = rng.integers(0, 2, shape).astype(np.float32)
        events = SocietyEvents(raw, rng.integers(0, 3, shape).astype(np.float32), rng.random(shape) < 0.8)
        values = rng.uniform(space.low, space.high, (2, space.dim)).astype(np.float32)
        settlement = mechanism.settle(events, values)
        live = rng.random(2) < 0.7 if t else np.ones(2, bool)
        report.record(settlement.base_reward, settlement.reward_jacobian, values, live, settlement.player_facts)
        events_eaten = np.concatenate([events_eaten, raw[None]])
        for game in np.flatnonzero(live):
            for player in range(3):
                facts = report.build_entries(game, player, values[game])
                step = SocietyStep(settlement.reward, settlement.base_reward, settlement.reward_jacobian)
                check(facts, step, values, space, game, player, show_mechanism)
                if mechanism.player_facts:
                    (fact,) = mechanism.player_facts
                    assert facts[fact] == events_eaten[-10:, game, player].sum()


class SocietyStep:
    """The part of a `Step` that is compared."""

    def __init__(self, reward, base_reward, reward_jacobian):
        self.reward, self.base_reward, self.reward_jacobian = reward, base_reward, reward_jacobian


def society(substrate, mechanism, show_mechanism=True, n_envs=2, horizon=30):
    game = SubstrateSettings(
        substrate,
        n_envs,
        n_agents=4,
        horizon=horizon,
        observe=["text"],
        mechanism=mechanism,
        show_mechanism=show_mechanism,
        map="own",
    )
    return NativeEnv(game, Seeds(3), tile_source="plain")


GAMES = {
    "taxed harvest": lambda show_mechanism: society("harvest", BracketedTax(), show_mechanism),
    "paid cleanup": lambda show_mechanism: society("cleanup", Incentives(), show_mechanism),
    "cleanup as published": lambda show_mechanism: society(
        "cleanup", MECHANISMS["published incentives"](), show_mechanism
    ),
    "taxed fishery": lambda show_mechanism: make_env(
        "fishery", n_envs=2, show_mechanism=show_mechanism, observe=["text"], growth=9, max_catch=5, horizon=40
    ),
    "escape room": lambda show_mechanism: make_env(
        "escape_room", n_envs=2, show_mechanism=show_mechanism, observe=["text"], horizon=30
    ),
}


@pytest.mark.parametrize("show_mechanism", [True, False])
@pytest.mark.parametrize("name", GAMES)
def test_games_report_step_payments(name, show_mechanism):
    env, rng = GAMES[name](show_mechanism), np.random.default_rng(1)
    space = env.spec.mechanism
    values = rng.uniform(space.low, space.high, (2, space.dim)).astype(np.float32)
    env.set_mechanism(values)
    observation = env.reset(seed=5)
    assert all("last_reward" not in read(observation, 0, i) for i in range(env.spec.n_agents))
    n_facts = 0
    for _ in range(29):
        step = env.step(rng.integers(0, env.spec.n_actions, (2, env.spec.n_agents)))
        for game in range(2):
            for player in range(env.spec.n_agents):
                if step.observation["text"][game, player]:
                    check(read(step.observation, game, player), step, values, space, game, player, show_mechanism)
                    n_facts += 1
    assert n_facts > 100
    observation_texts = dict(env.spec.text.observation)
    assert set(read(step.observation, 0, 0)) <= observation_texts.keys() | {f"nearest_{x}" for x in ("apple", "dirt")}
    start = env.reset(np.array([True, False]))
    assert "last_reward" not in read(start, 0, 0)
    assert "last_reward" in read(start, 1, 0) or not start["text"][1, 0]


@pytest.mark.parametrize("name", GAMES)
def test_restored_game_reports_equal_payments(name):
    env, second_env, rng = GAMES[name](True), GAMES[name](True), np.random.default_rng(1)
    env.set_mechanism(env.spec.mechanism.high / 3)
    env.reset(seed=5)
    for _ in range(4):
        env.step(rng.integers(0, env.spec.n_actions, (2, env.spec.n_agents)))
    second_env.reset(seed=1)
    second_env.load_state_dict(env.state_dict())
    # The first game goes on; of the other one the last reward is told once more.
    first = np.array([True, False])
    np.testing.assert_array_equal(env.reset(first)["text"], second_env.reset(first)["text"])


@pytest.mark.meltingpot
@pytest.mark.slow
def test_reference_engine_reports_payments():
    settings_ = SubstrateSettings(
        "cleanup", 1, n_agents=3, horizon=40, observe=["text"], mechanism=Incentives(max_incentive=2.0)
    )
    env, rng = MeltingPotEnv(settings_, Seeds(0)), np.random.default_rng(0)
    values = np.array([[0.5, 1.5, 0.25]], dtype=np.float32)
    env.set_mechanism(values)
    env.reset(seed=0)
    for _ in range(30):
        step = env.step(rng.integers(0, env.spec.n_actions, (1, 3)))
        for player in range(3):
            if step.observation["text"][0, player]:
                check(read(step.observation, 0, player), step, values, env.spec.mechanism, 0, player, True)
    env.close()


def test_rules_list_parameter_ranges():
    for mechanism in (BracketedTax(), Incentives(max_incentive=2.5)):
        words = describe_rules(mechanism.space, mechanism.base_reward_text, mechanism.rule_text, True)
        for parameter in mechanism.space.parameters:
            assert f"{parameter.name} (from 0 to {parameter.high:g}" in words and parameter.description in words
        assert mechanism.rule_text in words
        hidden = describe_rules(mechanism.space, mechanism.base_reward_text, mechanism.rule_text, False)
        assert not any(parameter.name + " (" in hidden for parameter in mechanism.space.parameters)
        assert "mechanism" not in dict(describe_report_fields(mechanism.space, mechanism.player_facts, False))


def test_goal_is_true_for_any_mechanism():
    plain = society("cleanup", None).spec.text.goal
    goal_text = society("cleanup", Incentives(clean_reward=-1.0)).spec.text.goal
    assert "nothing else does" in plain and "cleaning itself is not rewarded" in plain
    assert "nothing else does" not in goal_text and "not rewarded" not in goal_text
    assert "a step of cleaning -1" in goal_text


SPACE = ParameterSpace(
    "toll", (Parameter("toll", 0.0, 2.0, "coins", "paid a step"), Parameter("gift", -1.0, 1.0, "coins", "got a step"))
)
FACTS = {"steps": "steps that you took"}


class TestWords:
    """Exact texts for players."""

    def test_rules(self):
        sentence = "Before payments, a step is rewarded like this: an apple 1."
        facts = (
            f"{sentence} A planner sets these numbers, the same for all players, and they can change: "
            "toll (from 0 to 2, coins): paid a step; gift (from -1 to 1, coins): got a step."
        )
        assert describe_rules(SPACE, "an apple 1", "Nobody pays.", True) == f"{facts} Nobody pays."
        assert describe_rules(SPACE, "an apple 1", "", True) == facts
        hidden = f"{sentence} A planner adds payments, positive or negative, whose rules you are not told."
        assert describe_rules(SPACE, "an apple 1", "Nobody pays.", False) == hidden

    def test_fields(self):
        composition = "what your last reward was made of. before_payments: what the game paid; payments: "
        facts = ("steps", "steps that you took")
        assert describe_report_fields(SPACE, FACTS, True) == (
            ("mechanism", "the numbers that are set now: toll, gift"),
            ("last_reward", f"{composition}what each number added to it or took from it, without zeros"),
            facts,
        )
        assert describe_report_fields(SPACE, FACTS, False) == (("last_reward", f"{composition}the rest"), facts)

    def test_longest_report(self):
        parts = {"toll": 0.246, "gift": 0.123}
        last = {"before_payments": 1, "payments": parts}
        assert build_example_report(SPACE, FACTS, True) == {"mechanism": parts, "last_reward": last, "steps": 1}
        assert build_example_report(SPACE, FACTS, False) == {
            "last_reward": {"before_payments": 1, "payments": 0.369},
            "steps": 1,
        }
        assert type(build_example_report(SPACE, FACTS, True)["steps"]) is int, "1 and not 1.0 is what players read"

    def test_report_covers_player_episode(self):
        report = MechanismReport(SPACE, 2, 2, True, FACTS)
        first, second = {"toll": 0.5, "gift": 0}, {"toll": 2, "gift": -1}
        values = np.array([list(first.values()), list(second.values())])
        fresh = {"mechanism": second, "steps": 0}
        assert report.build_entries(1, 1, values[1]) == fresh
        jacobian = np.array([[[-1.0, 0.0], [1.0, 1.0]], [[-0.5, 3.0], [0.00001, 0.0]]])
        amounts = {"steps": np.array([[1.0, 2.0], [3.0, 4.5]])}
        report.record(np.array([[1.0, 2.0], [0.123456, 7.0]]), jacobian, values, np.array([True, True]), amounts)
        facts = {
            (0, 0): {"mechanism": first, "last_reward": {"before_payments": 1, "payments": {"toll": -0.5}}, "steps": 1},
            (0, 1): {"mechanism": first, "last_reward": {"before_payments": 2, "payments": {"toll": 0.5}}, "steps": 2},
            (1, 0): {
                "mechanism": second,
                "last_reward": {"before_payments": 0.1235, "payments": {"toll": -1, "gift": -3}},
                "steps": 3,
            },
            (1, 1): {"mechanism": second, "last_reward": {"before_payments": 7, "payments": {}}, "steps": 4.5},
        }

        def collect_facts(source):
            return {(game, player): source.build_entries(game, player, values[game]) for game, player in facts}

        assert collect_facts(report) == facts
        # A step of the first game alone leaves what the second had; so does a new episode of the first.
        zeros, no_change = np.zeros((2, 2)), {"steps": np.zeros((2, 2))}
        second_env = MechanismReport(SPACE, 2, 2, True, FACTS)
        second_env.load_state_dict(report.state_dict())
        second_env.record(zeros, np.zeros((2, 2, 2)), values, np.array([True, False]), no_change)
        unpaid = {"mechanism": first, "last_reward": {"before_payments": 0, "payments": {}}, "steps": 0}
        assert collect_facts(second_env) == {**facts, (0, 0): unpaid, (0, 1): unpaid}
        assert collect_facts(report) == facts, "a state is a copy"
        report.clear(np.array([True, False]))
        start = {"mechanism": first, "steps": 0}
        assert collect_facts(report) == {**facts, (0, 0): start, (0, 1): start}
