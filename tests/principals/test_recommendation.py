"""Recommendations of principals, which do not change their state."""

import json

import numpy as np
import pytest
import torch

import shipped
from environments import make_env
from llmrl.core.pooling import PooledEstimates
from llmrl.core.protocols import Recommender
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.principals.nonadaptive import FixedPrincipal
from llmrl.principals.saez import SaezPrincipal
from models import make_scripted_client
from shipped import build_principal
from societies import TAX_ECONOMY, make_outcome, make_toy_spec

CONTEXTUAL = make_toy_spec(contexts=("calm", "storm"))
NETWORKS = {
    "dual_rl": lambda spec: build_principal("dual_rl", spec, Seeds(0), hidden=[16], points=4),
    "metagrad": lambda spec: build_principal("metagrad", spec, Seeds(0), hidden=[16], learning_rate=1e-2),
}
MAKE = {
    **NETWORKS,
    "thompson": lambda spec: shipped.build_thompson(spec.proposal_space, Seeds(0), points=3),
    "fixed": lambda spec: FixedPrincipal(spec.proposal_space, contexts=[[0.0, 1.0], [2.0, 3.0]]),
}


def step(principal, spec, estimates, context=None, n=1):
    """Ask, tell, and add the outcomes to the estimates."""
    outcomes = [make_outcome(spec, vector, context) for vector in principal.ask(context, n)]
    principal.tell(outcomes)
    for record in outcomes:
        estimates.add(record.vector, record.value, None, 1, 1, record.context)


def as_text(state):
    """Return a state as text that is equal only for equal states."""

    def plain(value):
        if isinstance(value, np.ndarray | torch.Tensor):
            return value.tolist()
        return str(value)

    return json.dumps({str(key): value for key, value in state.items()}, default=plain, sort_keys=True)


def copy_state(principal):
    """Return the state with dicts of any keys, as text."""

    def text_keys(value):
        if isinstance(value, dict):
            return {str(key): text_keys(item) for key, item in value.items()}
        return [text_keys(item) for item in value] if isinstance(value, list | tuple) else value

    return as_text(text_keys(principal.state_dict()))


@pytest.mark.parametrize("name", MAKE)
def test_recommending_keeps_state(name):
    principal, estimates = MAKE[name](CONTEXTUAL), PooledEstimates()
    for i in range(10):
        step(principal, CONTEXTUAL, estimates, i % 2)
    initial = copy_state(principal)
    random_state = torch.get_rng_state()
    first, second = (principal.recommend(1, 3, estimates) for _ in range(2))
    assert np.array_equal(first, second) and copy_state(principal) == initial
    assert torch.equal(torch.get_rng_state(), random_state)
    first[:] = 0.0
    assert np.array_equal(principal.recommend(1, 3, estimates), second), "the caller can change what is recommended"


@pytest.mark.parametrize("name", MAKE)
def test_recommendations_are_distinct_in_bounds(name):
    principal, estimates = MAKE[name](CONTEXTUAL), PooledEstimates()
    assert isinstance(principal, Recommender)
    for i in range(12):
        step(principal, CONTEXTUAL, estimates, i % 2)
    for n in range(5):
        vectors = principal.recommend(0, n, estimates)
        assert vectors.shape == (n if name == "thompson" else min(n, 1), 2) and vectors.dtype == np.float64
        assert len(np.unique(vectors, axis=0)) == len(vectors)
        CONTEXTUAL.mechanism.check(vectors.reshape(-1, 2))


@pytest.mark.parametrize("name", sorted(set(MAKE) - {"fixed"}))
def test_empty_history_recommends_nothing(name):
    assert MAKE[name](CONTEXTUAL).recommend(1, 3, PooledEstimates()).shape == (0, 2)


@pytest.mark.parametrize("name", ["thompson"])
def test_contexts_are_separate(name):
    principal, estimates = MAKE[name](CONTEXTUAL), PooledEstimates()
    for _ in range(8):
        step(principal, CONTEXTUAL, estimates, 0)
    assert len(principal.recommend(0, 3, estimates)) == 3
    assert principal.recommend(1, 3, estimates).shape == (0, 2)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_generalize_to_unseen_contexts(name):
    principal, estimates = MAKE[name](CONTEXTUAL), PooledEstimates()
    step(principal, CONTEXTUAL, estimates, 0)
    assert len(principal.recommend(1, 3, estimates)) == 1


def test_dual_rl_recommends_mode():
    spec, estimates = make_toy_spec(), PooledEstimates()
    principal = NETWORKS["dual_rl"](spec)
    step(principal, spec, estimates, n=3)
    with torch.no_grad():
        principal.network.actor.weight.zero_()
        principal.network.actor.bias.copy_(torch.tensor([0.0, 9, 0, 0, 0, 0, 0, 0, 0, 9]))
    previous = principal.previous[0, 1]
    vectors = principal.recommend(None, 2, estimates)
    assert vectors[0] == pytest.approx([-1.0 + 4.0 / 3, previous])  # the second head keeps its previous number
    assert len(vectors) == 1


def test_metagrad_recommends_next_proposal():
    spec, estimates = make_toy_spec(), PooledEstimates()
    principal = NETWORKS["metagrad"](spec)
    for _ in range(5):
        step(principal, spec, estimates)
    vectors = principal.recommend(None, 2, estimates)
    assert vectors[0].tolist() == principal.ask()[0].tolist()
    assert len(vectors) == 1


def test_saez_recommends_formula_rates():
    principal, estimates = SaezPrincipal(TAX_ECONOMY, elasticity=0.4), PooledEstimates()
    assert principal.recommend(None, 2, estimates).shape == (0, 4)
    [rates] = principal.ask()
    metrics = dict.fromkeys(TAX_ECONOMY.principal_metrics, 0.0) | {"earned_1": 10.0, "taxed_1": 10.0, "weighted_1": 4.0}
    principal.tell([Outcome(rates, 2.0, np.array([2.0]), summaries=metrics)])
    estimates.add(rates, 2.0, None, 1, 1)
    initial = copy_state(principal)
    vectors = principal.recommend(None, 5, estimates)
    # (1 - G) / (1 - G + a e) = 0.6 / (0.6 + 0.4) in the only bracket with income.
    assert vectors[0] == pytest.approx([0.6, 0.0, 0.0, 0.0]) and len(vectors) == 1
    assert copy_state(principal) == initial


def test_vote_recommends_latest_winner():
    spec = make_env("escape_room", n_envs=1, fixed_context=0).spec
    principal, estimates = (
        shipped.build_principal("vote", spec, Seeds(0), llm=make_scripted_client(), nominate="random"),
        PooledEstimates(),
    )
    assert principal.recommend(0, 2, estimates).shape == (0, 5)
    for value, vector in ((7.0, [1.0] * 5), (3.0, [2.0] * 5)):
        outcome = Outcome(np.array(vector), value, np.array([value]), context=0, net_returns=np.zeros(5))
        principal.tell([outcome])
        estimates.add(vector, value, None, 1, 1, 0)
    assert principal.recommend(0, 2, estimates).tolist() == [[2.0] * 5]
    assert not getattr(principal, "learns_from_others", False), "an outcome is that of the vector elected"


def test_fixed_recommends_vector():
    principal = MAKE["fixed"](CONTEXTUAL)
    assert [principal.recommend(row, 2, PooledEstimates()).tolist() for row in (0, 1)] == [[[0, 1]], [[2, 3]]]


@pytest.mark.parametrize("name", [*NETWORKS])
def test_principals_with_on_policy_updates(name):
    """Their updates require the outcomes of the last proposals."""
    assert not getattr(MAKE[name](make_toy_spec()), "learns_from_others", False)
