"""The rule behind llm=scripted knows nothing of which number matters, and searches all the same."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from known_functions import optimize, river
from llmrl.core.seeding import Seeds
from llmrl.principals import scripted_mechanism
from llmrl.principals.llm_factory import llm_principal
from llmrl.principals.random_principal import RandomPrincipal
from models import scripted
from societies import CLEANUP, ESCAPE_ROOM, outcome, spec, toy

SEEDS = 400


def answers(prompt, names, seeds=SEEDS):
    """What the rule proposes under many seeds, [seeds, d]."""
    replies = [
        json.loads(scripted_mechanism.reply([{"role": "user", "content": prompt}], seed)) for seed in range(seeds)
    ]
    return np.array([[reply[name] for name in names] for reply in replies])


def told(society, vectors, payoffs, context=None, **kwargs):
    """A principal that was told these outcomes in one generation."""
    principal = llm_principal(society, scripted(), **kwargs)
    outcomes = [outcome(society, np.array(v), context, value) for v, value in zip(vectors, payoffs, strict=True)]
    principal.tell([replace(each, draw=f"measurement {i}") for i, each in enumerate(outcomes)])
    return principal


@pytest.mark.parametrize(("number", "of"), [(2, 8), (3, 8), (8, 8)])
def test_the_first_proposals_favour_no_number_and_no_end(number, of):
    """Either end of each range as often as the other, and pairs of numbers independent."""
    prompt = llm_principal(CLEANUP, scripted()).question(None, number, of).text
    unit = answers(prompt, CLEANUP.mechanism.names) / 3
    assert set(unit.ravel()) == {0, 1}
    assert np.abs(unit.mean(0) - 1 / 2).max() < 5 * 0.5 / SEEDS**0.5  # five standard errors
    assert np.abs(np.corrcoef(unit.T) - np.eye(3)).max() < 5 / SEEDS**0.5


def spreads(society, n):
    """The first n proposals of seed 0, asked for at once and one by one, and of seed 1; on the unit cube."""
    context = 1 if society.contexts else None
    mechanism, found = society.mechanism, []
    for seed, at_once in ((0, n), (0, 1), (1, n)):
        principal = llm_principal(society, scripted(seed))
        for _ in range(n // at_once):
            vectors = principal.ask(context, at_once)
            principal.tell([outcome(society, vector, context) for vector in vectors])
        vectors = np.array([record["vector"] for record in principal.history.records])
        found.append((vectors - mechanism.low) / (mechanism.high - mechanism.low))
    return found


def test_the_spread_of_few_numbers_is_every_corner_and_the_centre():
    first, again, other = spreads(CLEANUP, 9)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    for found in (first, other):
        assert sorted(map(tuple, found[:8])) == list(itertools.product((0.0, 1.0), repeat=3))
        assert np.allclose(found[8], 0.5)


def test_the_spread_of_many_numbers_is_the_centre_and_a_latin_hypercube():
    first, again, other = spreads(ESCAPE_ROOM, 10)
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, other)[1:].any()
    assert np.allclose(first[0], 0.5)
    parts = np.sort(np.floor(first[1:] * 9), axis=0)
    np.testing.assert_array_equal(parts, np.tile(np.arange(9)[:, None], (1, 5)))


def test_changes_favour_no_number_and_no_end():
    """Of one best proposal and of its mirror image with renamed numbers: the same changes, in distribution."""
    names, history = CLEANUP.mechanism.names, np.random.default_rng(0).uniform(0, 3, (20, 3))
    payoffs, changes = -((history - [0.4, 2.8, 1.0]) ** 2).sum(1), []
    for order, mirrored in (([0, 1, 2], [False] * 3), ([1, 2, 0], [True, False, True])):
        seen = np.where(mirrored, 3 - history[:, order], history[:, order])
        unit = answers(told(CLEANUP, seen.round(4), payoffs).question(None).text, names)
        back = np.empty_like(unit)
        back[:, order] = np.where(mirrored, 3 - unit, unit)
        changes.append(back)
    one, two = changes
    assert (one.std(0) > 0.1).all()
    error = np.sqrt((one.var(0) + two.var(0)) / SEEDS)
    assert (np.abs(one.mean(0) - two.mean(0)) < 5 * error).all()
    assert one.std(0) / two.std(0) == pytest.approx(1, rel=0.25)


def test_changes_shrink():
    def spread_after(made):
        payoffs = [10.0] + [0.0] * (made - 1)
        vectors = [[1.0, 1.0], *np.random.default_rng(1).uniform(-1, 3, (made - 1, 2)).round(3)]
        return answers(told(toy(), vectors, payoffs).question(None).text, ("x0", "x1"), 100).std()

    assert spread_after(7) > 2 * spread_after(30)


def test_a_lucky_payoff_among_bad_ones_is_not_the_best():
    near = np.random.default_rng(0).normal(0, 0.02, (10, 2))
    vectors = np.concatenate([near + 2.0, near]).round(3)
    payoffs = [9.0, *[-10.0] * 9, *[6.0] * 10]
    found = answers(told(toy(), vectors, payoffs).question(None).text, ("x0", "x1"), 50)
    assert np.linalg.norm(np.median(found, axis=0)) < 0.2


def test_a_payoff_that_was_measured_often_weighs_more():
    """Once 9 beside ten times 2 is worth less than 5."""
    vectors = [[0.0, 0.0], [0.01, 0.0], [2.0, 2.0], *[[0.01, 0.0]] * 9]
    prompt = told(toy(), vectors, [9.0, 2.0, 5.0, *[2.0] * 9]).question(None).text
    assert prompt.count("x0=0.01, x1=0 -> payoff 2") == 10 and "- x0=0.01, x1=0: 10 times, mean payoff 2," in prompt
    best = told(toy(), vectors, [9.0, 2.0, 5.0, *[2.0] * 9], history="best").question(None).text
    assert "(mean of 10 measurements" in best
    for each in (prompt, best):
        found = answers(each, ("x0", "x1"), 50)
        assert np.linalg.norm(np.median(found, axis=0) - 2.0) < 0.2


def test_side_by_side_the_best_few_are_changed():
    """Far apart, and alike in their worth: each is somebody's starting point."""
    best = np.array([[-0.8, -0.8], [2.8, -0.8], [2.8, 2.8], [-0.8, 2.8]])
    principal = told(toy(), [*best, *[[1.0, 1.0]] * 30], [10.0, 9.9, 9.8, 0.0, *[-10.0] * 30], measurements="separate")
    found = principal.ask(n=6)
    nearest = np.linalg.norm(found[:, None] - best[None], axis=-1).argmin(1)
    assert nearest.tolist() == [0, 1, 2, 0, 1, 2]


def test_contexts_are_searched_apart():
    society = spec(toy().mechanism, contexts=("a", "b"))
    principal = llm_principal(society, scripted())
    found = []
    for context in (0, 1):
        vectors = principal.ask(context, 5)
        found.append(vectors)
        principal.tell([outcome(society, vector, context) for vector in vectors])
    assert sorted(map(tuple, found[0])) == sorted(map(tuple, found[1])) and not np.array_equal(*found)


def late(proposer, society, seed):
    """Mean worth of the last twelve of 64 proposals, eight a step, noise aside."""
    return 85 - 105 * float(optimize(society, proposer, seed, 64, 8)[-12:].mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "mirrored"),
    [((0, 1, 2), (False, False, False)), ((0, 1, 2), (False, False, True)), ((1, 2, 0), (True, False, True))],
    ids=["as it is", "mirrored", "renamed and mirrored"],
)
def test_it_finds_what_pays_whatever_it_is_called(order, mirrored):
    """The best is 85, and random search has about -4; benchmarks/scripted_principal.py tries all renamings."""
    society = river(order, mirrored)
    found = [late(llm_principal(society.spec, scripted(seed)), society, seed) for seed in range(4)]
    chance = [late(RandomPrincipal(society.spec.proposals, Seeds(seed)), society, seed) for seed in range(4)]
    assert np.mean(found) > 45 > 15 > np.mean(chance)


def test_rivers_are_one_river():
    """Mirror images of one another, with the same best and worst."""
    points = np.random.default_rng(0).random((200, 3))
    plain = river()
    for order, mirrored in (((2, 0, 1), (True, False, False)), ((1, 0, 2), (True, True, True))):
        other = river(order, mirrored)
        there = np.where(mirrored, 1 - points[:, list(order)], points[:, list(order)])
        worth = [[f.evaluate(x, 0)[0] for x in xs] for f, xs in ((plain, points), (other, there))]
        np.testing.assert_allclose(*worth)
        assert other.evaluate(other.best[0], 0)[0] == 85
    assert plain.evaluate(np.array([0.0, 1.0, 0.0]), 0)[0] == 85
    assert plain.evaluate(np.array([1.0, 1.0, 1.0]), 0)[0] == plain.evaluate(np.array([0.5, 0.5, 0.5]), 0)[0] == -20
