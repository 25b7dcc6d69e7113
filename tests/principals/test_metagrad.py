"""The principal that follows a gradient: by itself, and through the learning of real agents."""

import json

import numpy as np
import pytest

from experiments import comparable_metrics, only_run_folder, run
from llmrl.algorithms.meta_gradient import MetaGradient
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import GradientProposer
from llmrl.core.seeding import Seeds
from llmrl.principals.metagrad import MetaGradPrincipal
from societies import CLEANUP, outcome, toy


@pytest.mark.slow
@pytest.mark.parametrize("contexts", [(), ("calm", "storm")])
def test_it_climbs_a_quadratic(contexts):
    society = toy(contexts=contexts)
    principal = MetaGradPrincipal(society, Seeds(0), learning_rate=1e-3)
    draws, values = np.random.default_rng(0), []
    for _ in range(300):
        context = int(draws.integers(len(contexts))) if contexts else None
        told = outcome(society, principal.ask(context)[0], context)
        metrics = principal.tell([told])
        values.append(told.value)
    assert max(values[:2]) < 9.5 and np.mean(values[-20:]) > 9.95
    assert metrics["principal/gradient_norm"] < 2


def test_a_step_is_the_chain_rule():
    """d objective / d vector times d vector / d weights: here of the last layer's biases, by Adam's first step."""
    principal = MetaGradPrincipal(CLEANUP, Seeds(0), max_grad_norm=1e9)
    vector = principal.ask()[0]
    told = outcome(CLEANUP, vector)
    told.gradient = np.array([2.0, -1.0, 0.0])
    bias = principal.network.layers[-1].bias
    principal.tell([told])
    share = vector / 3.0
    slope = told.gradient * 3.0 * share * (1 - share)
    np.testing.assert_allclose(bias.detach(), 2e-4 * slope / (np.abs(slope) + 1e-5), rtol=1e-3, atol=1e-9)


def test_the_first_vector_is_about_the_middle():
    vector = MetaGradPrincipal(CLEANUP, Seeds(1)).ask()[0]
    np.testing.assert_allclose(vector, 1.5, atol=0.3)


def test_it_stays_inside_the_bounds_under_a_constant_push():
    society = toy()
    principal = MetaGradPrincipal(society, Seeds(0), learning_rate=1.0)
    for _ in range(60):
        told = outcome(society, society.mechanism.check(principal.ask()[0]))
        told.gradient = np.array([1.0, -1.0])
        principal.tell([told])
    assert told.vector.tolist() == pytest.approx([3.0, -1.0])


def test_settings_carry_the_mean_of_past_objectives_of_the_context():
    society = toy(contexts=("calm", "storm"))
    principal = MetaGradPrincipal(society, Seeds(0), gamma=0.9, baseline="past", through_observation=False)
    assert isinstance(principal, GradientProposer) and not principal.parallel
    for context, value in ((0, 4.0), (1, 100.0), (0, 8.0)):
        principal.tell([outcome(society, principal.ask(context)[0], context, value)])
    principal.ask(0)
    settings = principal.meta_settings
    assert (settings.past_return, settings.gamma, settings.baseline) == (6.0, 0.9, "past")
    assert not settings.through_observation
    principal.ask(1)
    assert principal.meta_settings.past_return == 100.0


def test_a_gradient_that_is_not_finite_is_an_error():
    principal = MetaGradPrincipal(toy(), Seeds(0))
    told = outcome(toy(), principal.ask()[0])
    told.gradient = np.array([np.nan, 0.0])
    with pytest.raises(FloatingPointError, match=r"d objective / d knobs is \[nan, 0.0\]"):
        principal.tell([told])


REAL = ("env=escape_room", "env.fixed_context=0", "agent=pg", "principal=metagrad", "env.n_envs=32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("design.adapt_rounds=0",), "design.adapt_rounds=0 leaves none"),
        (("design.candidates=2",), "proposes one vector at a time"),
        (("agent=random",), "use agent=ppo or agent=pg"),
        (("agent.freeze=all",), "agent.freeze=all stops"),
    ],
)
def test_parts_that_cannot_give_a_gradient_are_refused(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run(*REAL, *overrides, f"output_root={tmp_path}")


@pytest.mark.slow
def test_a_gradient_looks_at_all_validation_rounds(tmp_path, monkeypatch):
    """Each as it was played, though the collector reuses its memory; and a second run finds the same gradients."""
    original, seen = MetaGradient.gradient, []

    def watched(self, rollouts, *arguments):
        seen.append([rollout.action.clone() for rollout in rollouts])
        return original(self, rollouts, *arguments)

    monkeypatch.setattr(MetaGradient, "gradient", watched)
    small = ("env.n_envs=8", "design.steps=2", "design.adapt_rounds=2", "design.validate_episodes=16")
    for name in "ab":
        run(*REAL, *small, "env.show_mechanism=true", f"output_root={tmp_path}/{name}")
    assert [len(rounds) for rounds in seen] == [2] * 4
    assert all((first != second).any() for first, second in seen)
    first, second = (comparable_metrics(only_run_folder(tmp_path / name)) for name in "ab")
    assert first == second
    norms = [row["principal/gradient_norm"] for row in first if "principal/gradient_norm" in row]
    assert len(norms) == 2 and min(norms) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_it_finds_the_incentive_that_frees_a_society(tmp_path, seed):
    """Nothing paid, nobody works the lever; a few steps of gradient ascent later it is paid for, and the door opens."""
    rounds = ("design.adapt_rounds=20", "design.validate_episodes=64")
    run(*REAL, *rounds, "principal=fixed", "design.steps=1", f"output_root={tmp_path}/nothing")
    ascent = ("principal.learning_rate=5e-3", "design.steps=8", f"seed={seed}", f"output_root={tmp_path}/ascent")
    run(*REAL, *rounds, *ascent)
    nothing, history = (
        json.loads((only_run_folder(tmp_path / name) / "summary.json").read_text())["history"]
        for name in ("nothing", "ascent")
    )
    late = history[-3:]
    assert np.mean([row["objective"] for row in late]) > nothing[0]["objective"] + 3
    assert min(row["mechanism"]["lever_0"] for row in late) > 4
    assert max(row["mechanism"]["lever_1"] + row["mechanism"]["lever_2"] for row in late) < 2
