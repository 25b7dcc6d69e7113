"""Meta-gradient principal: its update, and gradients through the learning of agents."""

import json

import numpy as np
import pytest

from experiments import find_run_folder, load_comparable_metrics, run
from llmrl.algorithms.meta_gradient import MetaGradient
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import GradientProposer
from llmrl.core.seeding import Seeds
from shipped import build_principal
from societies import CLEANUP, make_outcome, make_toy_spec


@pytest.mark.slow
@pytest.mark.parametrize("contexts", [(), ("calm", "storm")])
def test_climbs_quadratic(contexts):
    society = make_toy_spec(contexts=contexts)
    principal = build_principal("metagrad", society, Seeds(0), learning_rate=1e-3)
    draws, values = np.random.default_rng(0), []
    for _ in range(300):
        context = int(draws.integers(len(contexts))) if contexts else None
        outcome_ = make_outcome(society, principal.ask(context)[0], context)
        metrics = principal.tell([outcome_])
        values.append(outcome_.value)
    assert max(values[:2]) < 9.5 and np.mean(values[-20:]) > 9.95
    assert metrics["principal/gradient_norm"] < 2


def test_step_matches_chain_rule():
    """The gradient is d objective / d vector times d vector / d weights, here for the last biases with Adam."""
    principal = build_principal("metagrad", CLEANUP, Seeds(0), max_grad_norm=1e9)
    vector = principal.ask()[0]
    outcome_ = make_outcome(CLEANUP, vector)
    outcome_.gradient = np.array([2.0, -1.0, 0.0])
    bias = principal.network.layers[-1].bias
    principal.tell([outcome_])
    share = vector / 3.0
    slope = outcome_.gradient * 3.0 * share * (1 - share)
    np.testing.assert_allclose(bias.detach(), 2e-4 * slope / (np.abs(slope) + 1e-5), rtol=1e-3, atol=1e-9)


def test_first_vector_is_near_center():
    vector = build_principal("metagrad", CLEANUP, Seeds(1)).ask()[0]
    np.testing.assert_allclose(vector, 1.5, atol=0.3)


def test_stays_in_bounds():
    society = make_toy_spec()
    principal = build_principal("metagrad", society, Seeds(0), learning_rate=1.0)
    for _ in range(60):
        outcome_ = make_outcome(society, society.mechanism.check(principal.ask()[0]))
        outcome_.gradient = np.array([1.0, -1.0])
        principal.tell([outcome_])
    assert outcome_.vector.tolist() == pytest.approx([3.0, -1.0])


def test_state_includes_mean_context_objectives():
    society = make_toy_spec(contexts=("calm", "storm"))
    principal = build_principal("metagrad", society, Seeds(0), gamma=0.9, baseline="past", observation_gradient=False)
    assert isinstance(principal, GradientProposer) and not principal.parallel
    for context, value in ((0, 4.0), (1, 100.0), (0, 8.0)):
        principal.tell([make_outcome(society, principal.ask(context)[0], context, value)])
    principal.ask(0)
    settings = principal.meta_settings
    assert (settings.past_return, settings.gamma, settings.baseline) == (6.0, 0.9, "past")
    assert not settings.observation_gradient
    principal.ask(1)
    assert principal.meta_settings.past_return == 100.0


def test_non_finite_gradient_raises():
    principal = build_principal("metagrad", make_toy_spec(), Seeds(0))
    outcome_ = make_outcome(make_toy_spec(), principal.ask()[0])
    outcome_.gradient = np.array([np.nan, 0.0])
    with pytest.raises(FloatingPointError, match=r"knobs.*\[nan, 0.0\]"):
        principal.tell([outcome_])


REAL = ("env=escape_room", "env.fixed_context=0", "agent=pg", "principal=metagrad", "env.n_envs=32")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("design.adapt_rounds=0",), "design.adapt_rounds=0"),
        (("design.candidates=2",), "design.candidates=2"),
        (("agent=random",), "agent=ppo.*agent=pg"),
        (("agent.freeze=all",), "agent.freeze=all"),
    ],
)
def test_non_differentiable_parts_raise(tmp_path, overrides, message):
    with pytest.raises(ConfigError, match=message):
        run(*REAL, *overrides, f"output_root={tmp_path}")


@pytest.mark.slow
def test_gradient_uses_all_validation_rounds(tmp_path, monkeypatch):
    """Rounds are copied before the collector reuses its memory, and a second run has the same gradients."""
    original, rounds = MetaGradient.gradient, []

    def record_rounds(self, rollouts, *arguments):
        rounds.append([rollout.action.clone() for rollout in rollouts])
        return original(self, rollouts, *arguments)

    monkeypatch.setattr(MetaGradient, "gradient", record_rounds)
    small = (
        "env.n_envs=8",
        "design.evaluations=1",
        "design.steps=2",
        "design.adapt_rounds=2",
        "design.validate_episodes=16",
    )
    for name in "ab":
        run(*REAL, *small, "env.show_mechanism=true", f"output_root={tmp_path}/{name}")
    assert [len(rounds) for rounds in rounds] == [2] * 4
    assert all((first != second).any() for first, second in rounds)
    first, second = (load_comparable_metrics(find_run_folder(tmp_path / name)) for name in "ab")
    assert first == second
    norms = [row["principal/gradient_norm"] for row in first if "principal/gradient_norm" in row]
    assert len(norms) == 2 and min(norms) > 0


@pytest.mark.long
@pytest.mark.parametrize("seed", [0, 1])
def test_escapes_escape_room(tmp_path, seed):
    """Without payments no agent uses the lever; after a few steps of gradient ascent it is paid and the door opens."""
    rounds = ("design.adapt_rounds=20", "design.validate_episodes=64")
    run(*REAL, *rounds, "principal=fixed", "design.steps=1", f"output_root={tmp_path}/nothing")
    ascent = ("principal.learning_rate=5e-3", "design.steps=8", f"seed={seed}", f"output_root={tmp_path}/ascent")
    run(*REAL, *rounds, *ascent)
    zero_principal, history = (
        json.loads((find_run_folder(tmp_path / name) / "summary.json").read_text())["history"]
        for name in ("nothing", "ascent")
    )
    late = history[-3:]
    assert np.mean([row["objective"] for row in late]) > zero_principal[0]["objective"] + 3
    assert min(row["mechanism"]["lever_0"] for row in late) > 4
    assert max(row["mechanism"]["lever_1"] + row["mechanism"]["lever_2"] for row in late) < 2
