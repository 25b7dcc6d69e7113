"""Mechanisms of external worlds: declared parameters, and a tax for any world."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from environments import make_env
from experiments import find_run_folder, run
from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.envs.mechanisms import RewardTax, SocietyEvents
from llmrl.envs.pettingzoo.games import read_mechanism

EXAMPLE = Path(__file__).parents[3] / "examples" / "own_world"


def make_test_env(name, n_envs=2, **options):
    return make_env("pettingzoo", id=f"own_worlds:{name}", n_envs=n_envs, trusted=("own_worlds",), **options)


class TestWorldMechanism:
    def test_declared_parameters_are_set_by_principal(self):
        env = make_test_env("Governed", show_mechanism=True)
        assert env.spec.mechanism.names == ("wage", "unused") and env.spec.mechanism.parameters[1].unit == "m"
        assert env.spec.metrics == {"worked": "sum"} and env.spec.horizon == 5
        env.set_mechanism(np.array([[0.5, 0.0], [2.0, 1.0]]))
        observation = env.reset(seed=0)
        assert observation["vector"][:, 0, 1].tolist() == [0.5, 2.0] and observation["mechanism"][1, 0].tolist() == [
            2.0,
            1.0,
        ]
        step = env.step(np.array([[1, 0], [2, 2]]))
        assert step.reward.tolist() == [[1.5, 0.5], [4, 4]] and step.base_reward.tolist() == [[1, 0], [2, 2]]
        assert step.info["worked"].tolist() == [1, 2]
        facts = json.loads(step.observation["text"][1, 0])
        assert facts["mechanism"] == {"wage": 2.0, "unused": 1.0}
        assert facts["last_reward"] == {"before_payments": 2.0, "payments": 2.0}
        with pytest.raises(ConfigError, match=r"wage=3 .*\["):
            env.set_mechanism([3, 0])

    def test_parameters_apply_from_next_step(self):
        env = make_test_env("Governed", 1)
        env.set_mechanism([1, 0])
        env.reset(seed=0)
        env.set_mechanism([2, 0])
        assert env.step(np.zeros((1, 2), dtype=np.int64)).observation["vector"][0, 0].tolist() == [1, 3]
        assert env.reset()["vector"][0, 0].tolist() == [0, 2]

    @pytest.mark.parametrize(
        ("declaration", "message"),
        [
            ([{"name": "a", "low": 1, "high": 0}], "a .* low < high"),
            ([{"name": "a", "low": 0}], "mechanism: .*name, low and high"),
            ([{"name": "a", "low": 0, "high": 1, "color": "red"}], "mechanism: .*'red'.*name, low and high"),
            ("rate", "ParameterSpace"),
            ([], "ParameterSpace"),
        ],
    )
    def test_error_names_invalid_declarations(self, declaration, message):
        env = make_test_env("Governed").games[0].world
        env.mechanism = declaration
        with pytest.raises(ConfigError, match=message):
            read_mechanism("it", env)

    def test_native_parameter_declarations_are_accepted(self):
        env = make_test_env("Governed").games[0].world
        env.mechanism = space = ParameterSpace("x", (Parameter("a", 0, 1, "", ""),))
        assert read_mechanism("it", env) is space
        env.mechanism = [space.parameters[0]]
        assert read_mechanism("it", env).parameters == space.parameters


class TestTax:
    numbers = st.floats(-100, 100, width=32)

    @settings(max_examples=60)
    @given(st.data(), st.integers(1, 3), st.integers(1, 4))
    def test_tax_redistributes_gains(self, data, games, agents):
        raw = data.draw(arrays(np.float32, (games, agents), elements=self.numbers))
        present = data.draw(arrays(bool, (games, agents)))
        raw *= present
        rate = data.draw(arrays(np.float32, (games, 1), elements=st.floats(0, 1, width=32)))
        settlement = RewardTax().settle(SocietyEvents(raw, None, present), rate)
        after = settlement.reward
        np.testing.assert_allclose(after.sum(1), raw.sum(1), atol=1e-2)
        tax = rate * np.maximum(raw, 0)
        heads = np.maximum(present.sum(1, keepdims=True), 1)
        np.testing.assert_allclose(after, raw - tax + present * tax.sum(1, keepdims=True) / heads, atol=1e-3)
        assert not after[~present].any()
        np.testing.assert_allclose(settlement.metrics["tax_collected"], tax.sum(1), rtol=1e-5, atol=1e-3)

    def test_world_with_dying_agents(self):
        env = make_test_env("Mortal", tax=True)
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

    def test_players_receive_description(self):
        env = make_test_env("Mortal", tax=True, show_mechanism=True)
        assert "rate (from 0 to 1, share of a reward)" in env.spec.text.goal
        env.set_mechanism([0.25])
        env.reset(seed=0)
        facts = json.loads(env.step(np.array([[0, 1, 3]] * 2)).observation["text"][0, 2])
        assert facts["mechanism"] == {"rate": 0.25}
        assert facts["last_reward"] == {"before_payments": 3.0, "payments": -0.25}


@pytest.mark.slow
def test_third_party_orchard_has_mechanism(tmp_path, monkeypatch):
    """Run the example as its author does: from a separate folder, without a change of the package."""
    (tmp_path / "orchard.py").write_text((EXAMPLE / "orchard.py").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    small = (
        "design.evaluations=1",
        "design.steps=2",
        "design.adapt_rounds=1",
        "design.validate_episodes=2",
        "env.n_envs=2",
        "agent=ppo",
    )
    world = ("env=pettingzoo", "env.id=orchard:Orchard", "principal=cmaes")
    run(*world, *small, f"output_root={tmp_path / 'outputs'}")
    summary = json.loads((find_run_folder(tmp_path / "outputs") / "summary.json").read_text())
    assert summary["proposals"] == 2 and set(summary["recommendations"][0]["mechanism"]) == {"fee", "bonus"}
