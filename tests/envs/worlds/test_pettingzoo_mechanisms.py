"""Mechanisms of worlds from outside: those that a world declares, and a tax around any world."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from experiments import only_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.core.trust import Trust
from llmrl.envs.mechanisms import RewardTax, SocietyEvents
from llmrl.envs.pettingzoo.declarations import mechanism_of
from llmrl.envs.pettingzoo.vec_env import PettingZooEnv

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_world"


def own(name, n_envs=2, **options):
    return PettingZooEnv(Seeds(0), f"own_worlds:{name}", n_envs=n_envs, trust=Trust(("own_worlds",)), **options)


class TestOfTheWorld:
    def test_what_it_declares_is_what_a_principal_sets(self):
        env = own("Governed", show_mechanism=True)
        assert env.spec.mechanism.names == ("wage", "unused") and env.spec.mechanism.parameters[1].unit == "m"
        assert env.spec.metrics == {"worked": "sum"} and env.spec.horizon == 5
        env.set_mechanism(np.array([[0.5, 0.0], [2.0, 1.0]]))
        seen = env.reset(seed=0)
        assert seen["vector"][:, 0, 1].tolist() == [0.5, 2.0] and seen["mechanism"][1, 0].tolist() == [2.0, 1.0]
        step = env.step(np.array([[1, 0], [2, 2]]))
        assert step.reward.tolist() == [[1.5, 0.5], [4, 4]] and step.base_reward.tolist() == [[1, 0], [2, 2]]
        assert step.info["worked"].tolist() == [1, 2]
        told = json.loads(step.observation["text"][1, 0])
        assert told["mechanism"] == {"wage": 2.0, "unused": 1.0}
        assert told["last_reward"] == {"before_payments": 2.0, "payments": 2.0}
        with pytest.raises(ConfigError, match="wage=3 is outside"):
            env.set_mechanism([3, 0])

    def test_values_hold_from_the_next_step_on(self):
        env = own("Governed", 1)
        env.set_mechanism([1, 0])
        env.reset(seed=0)
        env.set_mechanism([2, 0])
        assert env.step(np.zeros((1, 2), dtype=np.int64)).observation["vector"][0, 0].tolist() == [1, 3]
        assert env.reset()["vector"][0, 0].tolist() == [0, 2]

    @pytest.mark.parametrize(
        ("declared", "message"),
        [
            ([{"name": "a", "low": 1, "high": 0}], "a needs finite bounds low < high"),
            ([{"name": "a", "low": 0}], "must be a mapping with name, low and high"),
            ([{"name": "a", "low": 0, "high": 1, "colour": "red"}], "must be a mapping with name, low and high"),
            ("rate", "neither a ParameterSpace nor a list of numbers"),
            ([], "neither a ParameterSpace nor a list of numbers"),
        ],
    )
    def test_what_is_declared_wrongly_is_named(self, declared, message):
        env = own("Governed").games[0].world
        env.mechanism = declared
        with pytest.raises(ConfigError, match=message):
            mechanism_of("it", env)

    def test_parameters_may_be_declared_as_they_are_here(self):
        env = own("Governed").games[0].world
        env.mechanism = space = ParameterSpace("x", (Parameter("a", 0, 1, "", ""),))
        assert mechanism_of("it", env) is space
        env.mechanism = [space.parameters[0]]
        assert mechanism_of("it", env).parameters == space.parameters


class TestTheTax:
    numbers = st.floats(-100, 100, width=32)

    @settings(max_examples=60)
    @given(st.data(), st.integers(1, 3), st.integers(1, 4))
    def test_it_takes_from_gains_and_gives_to_all_in_the_game(self, data, games, agents):
        raw = data.draw(arrays(np.float32, (games, agents), elements=self.numbers))
        present = data.draw(arrays(bool, (games, agents)))
        raw *= present
        rate = data.draw(arrays(np.float32, (games, 1), elements=st.floats(0, 1, width=32)))
        settled = RewardTax().settle(SocietyEvents(raw, None, present), rate)
        after = settled.reward(rate)
        np.testing.assert_allclose(after.sum(1), raw.sum(1), atol=1e-2)
        paid = rate * np.maximum(raw, 0)
        heads = np.maximum(present.sum(1, keepdims=True), 1)
        np.testing.assert_allclose(after, raw - paid + present * paid.sum(1, keepdims=True) / heads, atol=1e-3)
        assert not after[~present].any()
        np.testing.assert_allclose(settled.metrics["tax_collected"], paid.sum(1), rtol=1e-5, atol=1e-3)

    def test_around_a_world_whose_agents_die(self):
        env = own("Mortal", tax=True)
        assert env.spec.mechanism.names == ("rate",) and env.spec.has_reward_jacobian
        env.set_mechanism([[0.5], [0.0]])
        env.reset(seed=0)
        first, second = (env.step(np.array([[0, 1, 3]] * 2)) for _ in range(2))
        assert first.base_reward.tolist() == [[1, 2, 3]] * 2 and first.reward.tolist() == [[1.5, 2, 2.5], [1, 2, 3]]
        assert second.reward.tolist() == [[0, 2.25, 2.75], [0, 2, 3]], "the dead get no share"
        assert second.info["tax_collected"].tolist() == [2.5, 0]
        values = np.array([[0.5], [0.0]])
        for step in (first, second):
            np.testing.assert_allclose(step.reward, step.base_reward + (step.reward_jacobian * values[:, None]).sum(-1))

    def test_players_are_told_of_it(self):
        env = own("Mortal", tax=True, show_mechanism=True)
        assert "rate (from 0 to 1, share of a reward)" in env.spec.text.goal
        env.set_mechanism([0.25])
        env.reset(seed=0)
        told = json.loads(env.step(np.array([[0, 1, 3]] * 2)).observation["text"][0, 2])
        assert told["mechanism"] == {"rate": 0.25}
        assert told["last_reward"] == {"before_payments": 3.0, "payments": -0.25}


@pytest.mark.slow
def test_an_orchard_from_outside_is_governed(tmp_path, monkeypatch):
    """The example, as its author runs it: from a folder of one's own, without a change of the package."""
    (tmp_path / "orchard.py").write_text((EXAMPLE / "orchard.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    small = ("design.steps=2", "design.adapt_rounds=1", "design.validate_episodes=2", "env.n_envs=2", "agent=ppo")
    world = ("env=pettingzoo", "env.id=orchard:Orchard", "trusted_modules=[orchard]", "principal=cmaes")
    run(*world, *small, f"output_root={tmp_path / 'outputs'}")
    summary = json.loads((only_run_folder(tmp_path / "outputs") / "summary.json").read_text())
    assert summary["proposals"] == 2 and set(summary["recommendations"][0]["mechanism"]) == {"fee", "bonus"}
    with pytest.raises(ConfigError, match="orchard:Orchard is outside the trusted modules"):
        run(*(each for each in world if "trusted" not in each), *small, f"output_root={tmp_path / 'other'}")
