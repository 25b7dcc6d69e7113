"""principal=cem and principal=cmaes: generations, batches, restarts and options."""

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shipped
from known_functions import MULTIMODAL, QUADRATIC, find_lowest_regret, optimize
from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.principals.evolution import CMAESPrincipal
from societies import make_outcome, make_toy_spec

PRINCIPALS = {"cem": shipped.build_cem, "cmaes": CMAESPrincipal}


def step(principal, society, n=1, context=None):
    vectors = principal.ask(context, n)
    society.mechanism.check(vectors)
    return vectors, principal.tell([make_outcome(society, vector, context) for vector in vectors])


@pytest.mark.parametrize("name", PRINCIPALS)
@pytest.mark.parametrize(("n", "generations"), [(1, 2), (2, 2), (3, 2), (4, 2)])
def test_generation_is_integer_number_of_steps(name, n, generations):
    """A population of 6 has 6, 6, 6 and 8 candidates with 1, 2, 3 and 4 proposals per step."""
    principal, society = PRINCIPALS[name](make_toy_spec().proposal_space, Seeds(0), population=6), make_toy_spec()
    size = -(-6 // n) * n
    generations_ = [step(principal, society, n)[1]["principal/generation"] for _ in range(generations * size // n)]
    assert generations_ == [float((i + 1) * n // size) for i in range(len(generations_))]


@pytest.mark.parametrize("name", PRINCIPALS)
def test_batch_size_keeps_generation(name):
    results = []
    for n in (1, 2, 4):
        principal, society = PRINCIPALS[name](make_toy_spec().proposal_space, Seeds(0), population=8), make_toy_spec()
        results.append(np.concatenate([step(principal, society, n)[0] for _ in range(24 // n)]))
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


@pytest.mark.parametrize("name", PRINCIPALS)
@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 7), min_size=1, max_size=12), at=st.integers(0, 12), seed=st.integers(0, 99))
def test_batches_in_contexts_resume(name, sizes, at, seed):
    society = make_toy_spec(contexts=("calm", "storm"))
    runs = []
    for is_restart in (False, True):
        principal, rows = PRINCIPALS[name](society.proposal_space, Seeds(seed), population=5), []
        for i, n in enumerate(sizes):
            context = i % 3 % 2
            vectors = principal.ask(context, n)
            if is_restart and i == at % len(sizes):  # asked, not yet told
                fresh = PRINCIPALS[name](society.proposal_space, Seeds(seed), population=5)
                fresh.load_state_dict(principal.state_dict())
                principal = fresh
            rows.append((vectors.tolist(), principal.tell([make_outcome(society, v, context) for v in vectors])))
        runs.append(rows)
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINCIPALS)
@pytest.mark.parametrize("d", [1, 2, 30])
def test_converges_in_all_dimensions(name, d):
    society = make_toy_spec(d)
    principal = PRINCIPALS[name](society.proposal_space, Seeds(1))
    payoffs, spreads = [], []
    for _ in range(1500 if d == 30 else 150):
        vectors, metrics = step(principal, society)
        payoffs.append(make_outcome(society, vectors[0]).value)
        spreads += [metrics["principal/spread"]] if "principal/spread" in metrics else []
    assert np.mean(payoffs[-20:]) > 9.9 and spreads[-1] < spreads[0] / 3


@pytest.mark.parametrize("name", PRINCIPALS)
def test_contexts_are_independent(name):
    society = make_toy_spec(contexts=("calm", "storm"))
    separate, interleaved = (PRINCIPALS[name](society.proposal_space, Seeds(0)) for _ in range(2))
    first = [step(separate, society, 2, 0)[0] for _ in range(10)]
    second = []
    for _ in range(10):
        second.append(step(interleaved, society, 2, 0)[0])
        step(interleaved, society, 2, 1)
    assert np.array_equal(first, second)


class TestCMAES:
    def test_doubling_restarts_escape_local_optimum(self):
        """With constant payoffs the search restarts after each generation with a doubled population."""
        society = make_toy_spec()
        principal = CMAESPrincipal(society.proposal_space, Seeds(0), population=4)
        restarts = []
        for _ in range(2000):
            vectors = principal.ask()
            restarts.append(principal.tell([make_outcome(society, vectors[0], value=1.0)])["principal/generation"])
        sizes = np.diff(np.flatnonzero(np.diff(restarts)))
        assert sizes.max() >= 8 and set(sizes) <= {4 * 2**i for i in range(10)} and (np.diff(sizes) >= 0).all()

    @pytest.mark.long
    @pytest.mark.slow
    def test_restarts_find_better_hills(self):
        n_solved = {}
        for restarts in (True, False):
            regrets = []
            for seed in range(4):
                principal = CMAESPrincipal(MULTIMODAL.spec.proposal_space, Seeds(seed), sigma=0.05, restarts=restarts)
                regrets.append(find_lowest_regret(MULTIMODAL, optimize(MULTIMODAL, principal, seed, 1000)))
            n_solved[restarts] = sum(regret < 1e-2 for regret in regrets)
        assert n_solved[True] > n_solved[False]

    def test_missing_library(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "cmaes", None)
        with pytest.raises(ConfigError, match=r"'llmrl\[search\]'"):
            CMAESPrincipal(make_toy_spec().proposal_space, Seeds(0))


class TestCEM:
    def test_generation_matches_manual_update(self):
        """Two of four are elites, the smoothing is 0.5, and noise is added to the elite's variance."""
        society = make_toy_spec(1, low=0.0, high=1.0)
        principal = shipped.build_cem(
            society.proposal_space, Seeds(0), population=4, elite=0.5, smoothing=0.5, sigma=0.2, noise=0.1
        )
        vectors = principal.ask(None, 4)
        principal.tell([make_outcome(society, vector, value=vector[0]) for vector in vectors])
        elite = np.sort(vectors[:, 0])[-2:]
        search = principal.contexts[0].search
        assert search.mean[0] == pytest.approx((0.5 + elite.mean()) / 2)
        assert search.std[0] == pytest.approx((0.2 + np.sqrt(elite.var() + 0.1**2)) / 2)

    def test_noise_decays_to_minimum(self):
        society = make_toy_spec()
        spreads = {}
        for generations in (0, 20):
            principal = shipped.build_cem(
                society.proposal_space, Seeds(0), noise=0.3, noise_generations=generations, min_sigma=0.02
            )
            for _ in range(12 * 40):
                _, metrics = step(principal, society)
                spreads.setdefault(generations, []).append(metrics.get("principal/spread", 1.0))
        assert spreads[20][12 * 10] > 3 * spreads[0][12 * 10]
        assert spreads[20][-1] == pytest.approx(spreads[0][-1], rel=0.6)
        assert 0.005 < spreads[20][-1] < 0.03


@pytest.mark.parametrize("name", PRINCIPALS)
def test_partial_generation_is_random_search(name):
    principal = PRINCIPALS[name](QUADRATIC.spec.proposal_space, Seeds(0), population=50)
    assert len(np.unique(principal.ask(None, 40), axis=0)) == 40


@pytest.mark.parametrize(("d", "warned"), [(500, False), (501, True)])
def test_high_dimension_suggests_cem(d, warned, caplog):
    numbers = tuple(Parameter(f"x{i}", 0.0, 1.0, "", "") for i in range(d))
    CMAESPrincipal(ParameterSpace("many", numbers), Seeds(0))
    assert ("principal=cem" in caplog.text) == warned
