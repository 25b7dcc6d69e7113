"""Principal with Saez's formula, compared with the closed form and in an economy of best responses."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from environments import make_env
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Proposer
from llmrl.core.records import Outcome
from llmrl.principals.saez import SaezPrincipal, compute_saez_rates, estimate_elasticity
from societies import ESCAPE_ROOM, TAX_ECONOMY, make_toy_spec
from some import mark_long_except

UNIT = np.ones(1)


def test_top_rate_matches_literature():
    """Mean incomes of twice the bracket edge (a = 2), elasticity 0.25 and weight 0 give 1 / (1 + a e) = 2 / 3."""
    [rate] = compute_saez_rates(np.array([200.0]), np.array([100.0]), np.zeros(1), 0.25, np.zeros(1))
    assert rate == pytest.approx(2 / 3)
    [rate] = compute_saez_rates(np.array([200.0]), np.array([100.0]), np.array([40.0]), 0.25, np.zeros(1))
    assert rate == pytest.approx(0.6 / (0.6 + 2 * 0.25))


@given(st.floats(0.01, 1e3), st.floats(1.01, 10), st.floats(0, 0.99), st.floats(0.01, 5))
def test_rates_match_formula(taxed, pareto, weight, elasticity):
    [rate] = compute_saez_rates(taxed * pareto * UNIT, taxed * UNIT, weight * taxed * UNIT, elasticity, np.zeros(1))
    assert rate == pytest.approx((1 - weight) / (1 - weight + pareto * elasticity))


def test_formula_limits():
    rates = compute_saez_rates(
        np.array([10.0, 0.0, 5.0, 0.0]),
        np.array([10.0, 4.0, 5.0, 0.0]),
        np.array([12.0, 2.0, 5.0, 0.0]),
        0.4,
        np.full(4, 0.3),
    )
    # Worth more than average; nobody responds; worth as much as average; no income.
    assert rates.tolist() == [0, 1, 0, 0.3]


@pytest.mark.parametrize("elasticity", [0.1, 0.4, 1.5])
def test_elasticity_of_synthetic_incomes(elasticity):
    x = np.log(1 - np.array([0.0, 0.2, 0.4, 0.5]))
    assert estimate_elasticity(x, 3 + elasticity * x) == pytest.approx(elasticity)
    assert estimate_elasticity(np.zeros(3), np.arange(3.0)) is None


def answers(env, rates):
    """Return the outcome of rates in an economy of best responses to the rates and the transfer."""
    env.set_mechanism(rates)
    env.reset()
    rules, shape = env.rules, env._wage.shape
    transfer = np.zeros(shape)
    for _ in range(1 if rules.eta == 0 else 20):
        env.reset()
        step = env.step(rules.find_best_actions(env._wage, np.broadcast_to(rates, (*shape, len(rates))), transfer))
        transfer = (transfer + env._last[2]) / 2
    metrics = {name: float(x[0]) for name, x in step.info.items()}
    value = metrics["social_welfare"]
    return Outcome(np.asarray(rates), value, np.array([value]), summaries=metrics)


def economy(**options):
    return make_env(
        "tax_economy", n_envs=1, **{"n_agents": 300, "years": 1, "skills": "quantiles", "n_hours": 101, **options}
    )


@pytest.mark.parametrize("welfare", mark_long_except(["inverse_income"], ["inverse_wage", "inverse_income", "lowest"]))
def test_rates_are_nearly_optimal(welfare):
    """Compares with a scan in a society that satisfies the assumptions: no income effects, elasticity 1 / (3.5 - 1)."""
    env = economy(welfare=welfare, n_agents=100)
    principal = SaezPrincipal(env.spec)
    for _ in range(14):
        last = answers(env, principal.ask()[0])
        metrics = principal.tell([last])
    assert metrics["principal/elasticity"] == pytest.approx(0.4, rel=0.1) and metrics["principal/distance"] < 0.05
    scanned = [answers(env, np.array(rates)).value for rates in itertools.product([0.3, 0.5, 0.7, 0.9], repeat=4)]
    none = answers(env, np.zeros(4)).value
    assert last.value > none + 0.95 * (max(scanned) - none)


def test_equal_weights_give_zero_rates():
    env = economy(welfare="utilitarian")
    principal = SaezPrincipal(env.spec, elasticity=0.4, step=1.0)
    principal.tell([answers(env, principal.ask()[0])])
    assert not principal.ask()[0].any()


@pytest.mark.long
def test_concave_utility_redistributes():
    env = economy(welfare="utilitarian", eta=1.0, n_agents=60)
    principal = SaezPrincipal(env.spec)
    values = []
    for _ in range(8):
        outcome = answers(env, principal.ask()[0])
        principal.tell([outcome])
        values.append(outcome.value)
    assert values[-1] > values[0] + 0.05 and principal.rates.min() > 0.1


def test_first_rates_are_monotonic():
    principal = SaezPrincipal(TAX_ECONOMY)
    flat = []
    for _ in range(4):
        flat.append(principal.ask()[0])
        principal.tell([answers(economy(n_agents=20), flat[-1])])
    assert np.allclose(flat, np.linspace(0, 0.54, 4)[:, None])


@settings(max_examples=10)
@given(st.integers(0, 8), st.booleans())
def test_resume_matches_uninterrupted_principal(n_initial, has_elasticity):
    env = economy(n_agents=20)
    options = {"elasticity": 0.4} if has_elasticity else {}
    original, two = SaezPrincipal(env.spec, **options), SaezPrincipal(env.spec, **options)
    for _ in range(n_initial):
        original.tell([answers(env, original.ask()[0])])
    two.load_state_dict(original.state_dict())
    for _ in range(3):
        first, second = original.ask()[0], two.ask()[0]
        assert (first == second).all() and isinstance(original, Proposer)
        assert original.tell([answers(env, first)]) == two.tell([answers(env, second)])


def test_zero_incomes_keep_rates():
    """Such incomes contain no information, so the rates do not change."""
    principal = SaezPrincipal(TAX_ECONOMY, elasticity=0.4)
    rates = principal.ask()[0]
    principal.tell([Outcome(rates, 0.0, np.zeros(1), summaries=dict.fromkeys(TAX_ECONOMY.principal_metrics, 0.0))])
    assert (principal.ask()[0] == rates).all()


@pytest.mark.parametrize("spec", [ESCAPE_ROOM, make_toy_spec()], ids=lambda spec: spec.name)
def test_environments_lacking_brackets_raise(spec):
    with pytest.raises(ConfigError, match=r"'earned_1'.*env=tax_economy"):
        SaezPrincipal(spec)


def test_insufficient_observations_raise():
    with pytest.raises(ConfigError, match=r"2.*principal\.elasticity"):
        SaezPrincipal(TAX_ECONOMY, n_initial=1)
    with pytest.raises(ConfigError, match="first rates"):
        SaezPrincipal(TAX_ECONOMY, step=0.0)
