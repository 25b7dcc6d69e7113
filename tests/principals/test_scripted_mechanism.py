"""Scripted mechanism design: unbiased proposals and progress without knowledge of the environment."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from known_functions import make_river, optimize
from llmrl.core.seeding import Seeds
from llmrl.principals import scripted_mechanism
from llmrl.principals.nonadaptive import RandomPrincipal
from models import make_scripted_client
from shipped import build_llm_principal
from societies import CLEANUP, ESCAPE_ROOM, make_outcome, make_spec, make_toy_spec

SEEDS = 400


def answers(prompt, names, seeds=SEEDS):
    """Return the proposals of the rule under many seeds, [seeds, d]."""
    replies = [
        json.loads(scripted_mechanism.reply([{"role": "user", "content": prompt}], seed)) for seed in range(seeds)
    ]
    return np.array([[reply[name] for name in names] for reply in replies])


def with_payoffs(society, vectors, payoffs, context=None, **kwargs):
    """Return a principal with the given outcomes of one generation."""
    principal = build_llm_principal(society, make_scripted_client(), **kwargs)
    outcomes = [make_outcome(society, np.array(v), context, value) for v, value in zip(vectors, payoffs, strict=True)]
    principal.tell([replace(outcome, draw=f"measurement {i}") for i, outcome in enumerate(outcomes)])
    return principal


@pytest.mark.parametrize(("number", "n_proposals"), [(2, 8), (3, 8), (8, 8)])
def test_first_proposals_are_unbiased(number, n_proposals):
    """Both ends of each range are equally frequent, and pairs of parameters are independent."""
    prompt = build_llm_principal(CLEANUP, make_scripted_client()).build_prompt(None, number, n_proposals).text
    unit = answers(prompt, CLEANUP.mechanism.names) / 3
    assert set(unit.ravel()) == {0, 1}
    assert np.abs(unit.mean(0) - 1 / 2).max() < 5 * 0.5 / SEEDS**0.5  # five standard errors
    assert np.abs(np.corrcoef(unit.T) - np.eye(3)).max() < 5 / SEEDS**0.5


def spreads(society, n):
    """Return the first n proposals in the unit cube: of seed 0 in one step and in n steps, and of seed 1."""
    context = 1 if society.contexts else None
    mechanism, design = society.mechanism, []
    for seed, batch_size in ((0, n), (0, 1), (1, n)):
        principal = build_llm_principal(society, make_scripted_client(seed))
        for _ in range(n // batch_size):
            vectors = principal.ask(context, batch_size)
            principal.tell([make_outcome(society, vector, context) for vector in vectors])
        vectors = np.array([record["vector"] for record in principal.history.records])
        design.append((vectors - mechanism.low) / (mechanism.high - mechanism.low))
    return design


def test_low_dimensional_design_is_factorial():
    first, repeated, second = spreads(CLEANUP, 9)
    np.testing.assert_array_equal(first, repeated)
    assert not np.array_equal(first, second)
    for vectors in (first, second):
        assert sorted(map(tuple, vectors[:8])) == list(itertools.product((0.0, 1.0), repeat=3))
        assert np.allclose(vectors[8], 0.5)


def test_high_dimensional_design_is_latin_hypercube():
    first, repeated, second = spreads(ESCAPE_ROOM, 10)
    np.testing.assert_array_equal(first, repeated)
    assert not np.isclose(first, second)[1:].any()
    assert np.allclose(first[0], 0.5)
    parts = np.sort(np.floor(first[1:] * 9), axis=0)
    np.testing.assert_array_equal(parts, np.tile(np.arange(9)[:, None], (1, 5)))


def test_changes_are_unbiased():
    """The changes of a best proposal and of its mirror image with renamed numbers have the same distribution."""
    names, history = CLEANUP.mechanism.names, np.random.default_rng(0).uniform(0, 3, (20, 3))
    payoffs, changes = -((history - [0.4, 2.8, 1.0]) ** 2).sum(1), []
    for order, mirrored in (([0, 1, 2], [False] * 3), ([1, 2, 0], [True, False, True])):
        history_ = np.where(mirrored, 3 - history[:, order], history[:, order])
        unit = answers(with_payoffs(CLEANUP, history_.round(4), payoffs).build_prompt(None).text, names)
        restored = np.empty_like(unit)
        restored[:, order] = np.where(mirrored, 3 - unit, unit)
        changes.append(restored)
    first, two = changes
    assert (first.std(0) > 0.1).all()
    error = np.sqrt((first.var(0) + two.var(0)) / SEEDS)
    assert (np.abs(first.mean(0) - two.mean(0)) < 5 * error).all()
    assert first.std(0) / two.std(0) == pytest.approx(1, rel=0.25)


def test_changes_shrink():
    def deviation(n_measurements):
        payoffs = [10.0] + [0.0] * (n_measurements - 1)
        vectors = [[1.0, 1.0], *np.random.default_rng(1).uniform(-1, 3, (n_measurements - 1, 2)).round(3)]
        return answers(with_payoffs(make_toy_spec(), vectors, payoffs).build_prompt(None).text, ("x0", "x1"), 100).std()

    assert deviation(7) > 2 * deviation(30)


def test_lucky_payoff_is_not_best():
    close_vectors = np.random.default_rng(0).normal(0, 0.02, (10, 2))
    vectors = np.concatenate([close_vectors + 2.0, close_vectors]).round(3)
    payoffs = [9.0, *[-10.0] * 9, *[6.0] * 10]
    changes = answers(with_payoffs(make_toy_spec(), vectors, payoffs).build_prompt(None).text, ("x0", "x1"), 50)
    assert np.linalg.norm(np.median(changes, axis=0)) < 0.2


def test_repeated_payoff_has_larger_weight():
    """A payoff of 9 and ten payoffs of 2 have a lower estimate than 5."""
    vectors = [[0.0, 0.0], [0.01, 0.0], [2.0, 2.0], *[[0.01, 0.0]] * 9]
    prompt = with_payoffs(make_toy_spec(), vectors, [9.0, 2.0, 5.0, *[2.0] * 9]).build_prompt(None).text
    assert prompt.count("x0=0.01, x1=0 -> payoff 2") == 10 and "x0=0.01, x1=0: 10 times (" in prompt
    best = with_payoffs(make_toy_spec(), vectors, [9.0, 2.0, 5.0, *[2.0] * 9], history="best").build_prompt(None).text
    assert "(mean of 10 measurements" in best
    for prompt_ in (prompt, best):
        changes = answers(prompt_, ("x0", "x1"), 50)
        assert np.linalg.norm(np.median(changes, axis=0) - 2.0) < 0.2


def test_batch_changes_best_few():
    """Distant vectors with similar payoffs are each the starting point of a proposal."""
    best = np.array([[-0.8, -0.8], [2.8, -0.8], [2.8, 2.8], [-0.8, 2.8]])
    principal = with_payoffs(
        make_toy_spec(), [*best, *[[1.0, 1.0]] * 30], [10.0, 9.9, 9.8, 0.0, *[-10.0] * 30], measurements="separate"
    )
    vectors = principal.ask(n=6)
    nearest = np.linalg.norm(vectors[:, None] - best[None], axis=-1).argmin(1)
    assert nearest.tolist() == [0, 1, 2, 0, 1, 2]


def test_contexts_are_independent():
    society = make_spec(make_toy_spec().mechanism, contexts=("a", "b"))
    principal = build_llm_principal(society, make_scripted_client())
    context_vectors = []
    for context in (0, 1):
        vectors = principal.ask(context, 5)
        context_vectors.append(vectors)
        principal.tell([make_outcome(society, vector, context) for vector in vectors])
    assert sorted(map(tuple, context_vectors[0])) == sorted(map(tuple, context_vectors[1])) and not np.array_equal(
        *context_vectors
    )


def late(proposer, society, seed):
    """Return the mean noise-free value of the last twelve of 64 proposals with eight per step."""
    return 85 - 105 * float(optimize(society, proposer, seed, 64, 8)[-12:].mean())


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "mirrored"),
    [((0, 1, 2), (False, False, False)), ((0, 1, 2), (False, False, True)), ((1, 2, 0), (True, False, True))],
    ids=["as it is", "mirrored", "renamed and mirrored"],
)
def test_search_is_invariant_to_names(order, mirrored):
    """The maximum is 85 and random search has about -4; benchmarks/scripted_principal.py tests all permutations."""
    society = make_river(order, mirrored)
    payoffs = [late(build_llm_principal(society.spec, make_scripted_client(seed)), society, seed) for seed in range(4)]
    chance = [late(RandomPrincipal(society.spec.proposal_space, Seeds(seed)), society, seed) for seed in range(4)]
    assert np.mean(payoffs) > 45 > 15 > np.mean(chance)


def test_rivers_are_recognized():
    """Mirrored functions have the same maximum and minimum."""
    points = np.random.default_rng(0).random((200, 3))
    plain = make_river()
    for order, mirrored in (((2, 0, 1), (True, False, False)), ((1, 0, 2), (True, True, True))):
        renamed = make_river(order, mirrored)
        original_points = np.where(mirrored, 1 - points[:, list(order)], points[:, list(order)])
        worth = [[f.evaluate(x, 0)[0] for x in xs] for f, xs in ((plain, points), (renamed, original_points))]
        np.testing.assert_allclose(*worth)
        assert renamed.evaluate(renamed.best[0], 0)[0] == 85
    assert plain.evaluate(np.array([0.0, 1.0, 0.0]), 0)[0] == 85
    assert plain.evaluate(np.array([1.0, 1.0, 1.0]), 0)[0] == plain.evaluate(np.array([0.5, 0.5, 0.5]), 0)[0] == -20
