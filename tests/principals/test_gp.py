"""principal=gp: proposals with and without a model, contexts, recommendations and global state."""

import json
import sys

import numpy as np
import pytest
import torch

from known_functions import CONTEXTUAL, QUADRATIC, SMOOTH, find_lowest_regret, optimize
from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.seeding import Seeds
from llmrl.core.unit_cube import from_unit
from llmrl.principals.gp import GaussianProcessPrincipal
from societies import make_outcome, make_toy_spec
from some import mark_long_except

pytestmark = pytest.mark.slow


def after_steps(society, n, value=None, seed=0, context=None, **kwargs):
    """Return a principal with n outcomes of random vectors."""
    principal = GaussianProcessPrincipal(society.proposal_space, Seeds(seed), initial=1, **kwargs)
    low, high = society.mechanism.low, society.mechanism.high
    vectors = np.random.default_rng(seed).uniform(low, high, (n, len(low)))
    values = [None if value is None else value(vector, i) for i, vector in enumerate(vectors)]
    principal.tell([make_outcome(society, v, context, value=x) for v, x in zip(vectors, values, strict=True)])
    return principal


def test_initial_points_fill_the_space():
    society = make_toy_spec(contexts=("calm", "storm"))
    principal = GaussianProcessPrincipal(society.proposal_space, Seeds(0), initial=17)
    points = {context: [] for context in (0, 1)}
    for step in range(8):
        [vector] = principal.ask(step % 2)
        points[step % 2].append(vector)
        principal.tell([make_outcome(society, vector, step % 2)])
    points[0] += list(principal.ask(0, 4))
    for point, count in ((points[0], 8), (points[1], 4)):
        assert len(point) == count
        halves = np.array(point) > 1.0  # of [-1, 3]
        # A Sobol sequence in base two: every quarter of the square gets as many points as any other.
        assert all((halves == corner).all(1).sum() == count // 4 for corner in np.ndindex(2, 2))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_smooth_function_is_optimized_in_30_evaluations(seed):
    principal = GaussianProcessPrincipal(SMOOTH.spec.proposal_space, Seeds(seed))
    assert find_lowest_regret(SMOOTH, optimize(SMOOTH, principal, seed, 30)) < 0.01


@pytest.mark.long
@pytest.mark.slow
def test_batch_is_diverse():
    principal = GaussianProcessPrincipal(SMOOTH.spec.proposal_space, Seeds(0), initial=8)
    regrets = optimize(SMOOTH, principal, 0, 36, n=4)
    assert find_lowest_regret(SMOOTH, regrets, 4) < 0.02
    batch = principal.ask(None, 4) / (np.array(SMOOTH.high) - np.array(SMOOTH.low))
    distances = np.linalg.norm(batch[:, None] - batch[None], axis=-1)[np.triu_indices(4, 1)]
    assert distances.min() > 1e-3


def test_contexts_share_information():
    """The best vector of two contexts with many outcomes is proposed in a third context without outcomes."""
    society = make_toy_spec(contexts=("a", "b", "c"))
    principal = GaussianProcessPrincipal(society.proposal_space, Seeds(0), initial=1)
    rng = np.random.default_rng(0)
    for context in (0, 2):  # both best at 70 %
        for vector in rng.uniform(-1, 3, (15, 2)):
            principal.tell([make_outcome(society, vector, context)])
    assert np.abs(principal.ask(1)[0] - 1.8).max() < 0.5


@pytest.mark.slow
@pytest.mark.long
def test_contexts_are_distinguished():
    principal = GaussianProcessPrincipal(CONTEXTUAL.spec.proposal_space, Seeds(0))
    optimize(CONTEXTUAL, principal, 0, 45)
    for context in range(3):
        close_values = [v for row, v in zip(principal.rows, principal.vectors, strict=True) if row == context][-3:]
        assert min(np.abs(v - CONTEXTUAL.best[context]).max() for v in close_values) < 0.15


@pytest.mark.parametrize(
    "value",
    [
        lambda vector, i: 3.0,
        pytest.param(lambda vector, i: 1e6 * vector.sum(), marks=pytest.mark.long),
        lambda vector, i: 1e-9 * vector.sum(),
        pytest.param(lambda vector, i: 1e8 + vector.sum(), marks=pytest.mark.long),
        lambda vector, i: -1e9 if i == 5 else vector.sum(),
        lambda vector, i: float(vector[0] > 1),
    ],
    ids=["constant", "large", "small", "offset", "outlier", "step"],
)
def test_values_at_any_scale(value, recwarn):
    society = make_toy_spec(contexts=("calm", "storm"))
    principal = after_steps(society, 14, value, context=0)
    for context in (0, 1):
        society.mechanism.check(principal.ask(context, 3))
    # One outcome is not enough for a spread, but for a proposal.
    society.mechanism.check(after_steps(society, 1, value, context=0).ask(1, 2))
    assert not [w for w in recwarn if "botorch" in str(w.filename) and not issubclass(w.category, DeprecationWarning)]


def test_the_best_is_the_highest():
    """The proposal maximizes the objective and does not minimize it."""
    society = make_toy_spec(1)
    assert after_steps(society, 15, lambda vector, i: vector[0]).ask()[0, 0] > 2.5
    assert after_steps(society, 15, lambda vector, i: -vector[0]).ask()[0, 0] < -0.5


def test_noise_estimate_is_logged():
    rng = np.random.default_rng(0)
    society = make_toy_spec(1)
    principal = after_steps(society, 60, lambda vector, i: vector[0] + 5 * rng.normal())
    [vector] = principal.ask()
    metrics = principal.tell([make_outcome(society, vector)])
    assert 3 < metrics["principal/noise"] < 7
    assert -5 < metrics["principal/predicted_objective"] < 5


def test_global_rng_is_unchanged():
    principal = after_steps(make_toy_spec(), 10)
    np.random.seed(3)
    torch.manual_seed(3)
    rng_states = torch.random.get_rng_state(), np.random.get_state()[1].copy()
    first = principal.ask(None, 2)
    assert torch.equal(torch.random.get_rng_state(), rng_states[0])
    assert np.array_equal(np.random.get_state()[1], rng_states[1])
    torch.manual_seed(4)
    assert np.array_equal(after_steps(make_toy_spec(), 10).ask(None, 2), first)


def test_resume_between_ask_tell():
    society, runs = QUADRATIC.spec, []
    for resume in (False, True):
        principal, vectors = GaussianProcessPrincipal(society.proposal_space, Seeds(2), initial=4), []
        for step in range(5):
            proposals = principal.ask(None, 2)
            if resume and step == 3:
                state = principal.state_dict()
                json.dumps({key: value for key, value in state.items() if key not in ("vectors", "values")})
                principal = GaussianProcessPrincipal(society.proposal_space, Seeds(2), initial=4)
                principal.load_state_dict(state)
            rng = np.random.default_rng(step)
            vectors += [
                proposals.tolist(),
                principal.tell([QUADRATIC.outcome(vector, None, rng) for vector in proposals]),
            ]
        runs.append(vectors)
    assert runs[0] == runs[1] and runs[0][-1]["principal/noise"] > 0


def play_and_estimate(society, principal, context=None):
    """Return pooled estimates of the outcomes of a principal."""
    estimates = PooledEstimates()
    for vector, value in zip(principal.vectors, principal.values, strict=True):
        estimates.add(from_unit(society.proposal_space, vector), value, None, 1, 1, context)
    return estimates


def test_recommendation_is_the_highest_posterior_mean():
    """The highest measurement is not recommended if it is an outlier."""
    society = make_toy_spec(1)
    rng = np.random.default_rng(1)
    principal = after_steps(
        society, 40, lambda vector, i: 50.0 if i == 0 else -10 * (vector[0] - 2) ** 2 + rng.normal()
    )
    principal.vectors[0] = np.array([0.1])
    estimates = play_and_estimate(society, principal)
    recommendations = principal.recommend(None, 3, estimates)
    assert recommendations.shape == (3, 1) and np.abs(recommendations - 2.0).max() < 0.5
    assert estimates.best().vector[0] < 0
    all_vectors = principal.recommend(None, 100, estimates)
    assert {tuple(vector) for vector in all_vectors} == {estimate.vector for estimate in estimates.ranked()}
    assert np.array_equal(all_vectors[:3], recommendations)


def test_default_recommendation_is_incumbent():
    society = make_toy_spec()
    principal = GaussianProcessPrincipal(society.proposal_space, Seeds(0), initial=9)
    principal.tell([make_outcome(society, vector) for vector in principal.ask(None, 8)])
    estimates = play_and_estimate(society, principal)
    assert principal.recommend(None, 2, estimates).tolist() == [list(e.vector) for e in estimates.ranked()[:2]]
    assert principal.recommend(None, 2, PooledEstimates()).shape == (0, 2)


def test_recommendation_is_context_specific():
    society = make_toy_spec(contexts=("calm", "storm"))
    principal = GaussianProcessPrincipal(society.proposal_space, Seeds(0), initial=1)
    estimates = PooledEstimates()
    for context in (0, 1) * 6:
        [vector] = np.random.default_rng(len(principal.values)).uniform(-1, 3, (1, 2))
        result = make_outcome(society, vector, context)
        principal.tell([result])
        estimates.add(vector, result.value, None, 1, 1, context)
    for context, best in ((0, 1.8), (1, 0.2)):
        recommendations = principal.recommend(context, 6, estimates)
        assert {tuple(vector) for vector in recommendations} == {
            estimate.vector for estimate in estimates.ranked(context)
        }
        distances = np.linalg.norm(recommendations - best, axis=1)
        assert distances[0] < np.median(distances)


def test_recommendation_keeps_search_state():
    society, (plain, recommending) = make_toy_spec(), (after_steps(make_toy_spec(), 10) for _ in range(2))
    recommending.ask()
    plain.ask()
    torch.manual_seed(3)
    rng_state, state = torch.random.get_rng_state(), json.dumps(recommending.state_dict(), default=np.ndarray.tolist)
    first = recommending.recommend(None, 2, play_and_estimate(society, recommending))
    assert torch.equal(torch.random.get_rng_state(), rng_state)
    assert json.dumps(recommending.state_dict(), default=np.ndarray.tolist) == state
    assert np.array_equal(recommending.recommend(None, 2, play_and_estimate(society, recommending)), first)
    assert np.array_equal(plain.ask(), recommending.ask())


@pytest.mark.parametrize("seed", mark_long_except([0], range(3)))
def test_batch_proposals_are_diverse(seed):
    """The first proposal of a batch is that of a single proposal and is not repeated."""
    society = make_toy_spec(1)
    principal = after_steps(society, 12, seed=seed)
    batch, single = principal.ask(None, 4)[:, 0], after_steps(society, 12, seed=seed).ask()[0, 0]
    assert abs(batch[0] - single) < 1e-6
    assert np.diff(np.sort(batch)).min() > 1e-6
    # Exploitation: most of a batch lies near the maximum, at 1.8.
    assert np.median(np.abs(batch - 1.8)) < 0.5


def test_missing_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "botorch", None)
    with pytest.raises(ConfigError, match=r"BoTorch.*'llmrl\[search\]'"):
        GaussianProcessPrincipal(make_toy_spec().proposal_space, Seeds(0))
