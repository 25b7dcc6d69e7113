"""Properties of all principals."""

import functools
import itertools
import json
import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import shipped
from llmrl.core.errors import ConfigError
from llmrl.core.protocols import Proposer
from llmrl.core.seeding import Seeds
from llmrl.principals.bandits import EpsilonGreedyPrincipal
from llmrl.principals.evolution import CMAESPrincipal
from llmrl.principals.gp import GaussianProcessPrincipal
from llmrl.principals.nonadaptive import FixedPrincipal, RandomPrincipal, SobolPrincipal
from models import make_scripted_client
from shipped import build_llm_principal, build_principal
from societies import CLEANUP, make_outcome, make_spec, make_toy_spec
from some import mark_long_except

pytestmark = pytest.mark.slow

MAKE = {
    "fixed": lambda spec, seeds: FixedPrincipal(spec.proposal_space),
    "random": lambda spec, seeds: RandomPrincipal(spec.proposal_space, seeds),
    "sobol": lambda spec, seeds: SobolPrincipal(spec.proposal_space, seeds),
    "random_grid": lambda spec, seeds: RandomPrincipal(spec.proposal_space, seeds, points=5),
    "egreedy": lambda spec, seeds: EpsilonGreedyPrincipal(spec.proposal_space, seeds, points=5, epsilon=0.3),
    "ucb": lambda spec, seeds: shipped.build_ucb(spec.proposal_space, seeds, points=3),
    "thompson": lambda spec, seeds: shipped.build_thompson(spec.proposal_space, seeds, points=5, prior_rate=1.0),
    # Most of what the tests ask for comes before the first model, each of which costs about a tenth of a second.
    "gp": lambda spec, seeds: GaussianProcessPrincipal(spec.proposal_space, seeds, initial=16),
    "cem": lambda spec, seeds: shipped.build_cem(spec.proposal_space, seeds, population=4),
    "cmaes": lambda spec, seeds: CMAESPrincipal(spec.proposal_space, seeds, population=4),
    "dual_rl": lambda spec, seeds: build_principal("dual_rl", spec, seeds, hidden=[16], learning_rate=3e-3),
    "metagrad": lambda spec, seeds: build_principal("metagrad", spec, seeds, hidden=[16], learning_rate=3e-3),
    "llm": lambda spec, seeds: build_llm_principal(spec, make_scripted_client(seeds.seed)),
}
CONTEXTS = {"plain": (), "contextual": ("calm", "storm")}


def play(principal, spec, contexts, steps, n=1):
    """Return proposals, payoffs and metrics of several generations; `contexts` is the random generator of contexts."""
    rows = []
    for _ in range(steps):
        context = int(contexts.integers(len(spec.contexts))) if spec.contexts else None
        [vector] = principal.ask(context)
        spec.mechanism.check(vector)
        assert vector.dtype == np.float64 and vector.shape == (spec.mechanism.dim,)
        outcome_ = make_outcome(spec, vector, context, n=n)
        rows.append((vector.tolist(), outcome_.value, principal.tell([outcome_])))
    return rows


def file_round_trip(value):
    """Return a state after saving and loading, as numbers, strings, lists, dicts and arrays without shared objects."""
    if isinstance(value, dict):
        return {key: file_round_trip(item) for key, item in value.items()}
    if isinstance(value, list):
        return [file_round_trip(item) for item in value]
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, torch.Tensor):
        return value.clone()
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "case", mark_long_except(zip(MAKE, itertools.cycle(CONTEXTS)), itertools.product(MAKE, CONTEXTS))
)
@settings(max_examples=3)
@given(seed=st.integers(0, 10**6), n_initial=st.integers(0, 15), after=st.integers(1, 6))
def test_resume_matches_uninterrupted_principal(case, seed, n_initial, after):
    name, contexts = case
    society = make_toy_spec(contexts=CONTEXTS[contexts])
    reference, first, second = (MAKE[name](society, Seeds(seed)) for _ in range(3))
    stream = lambda: np.random.default_rng(seed)  # noqa: E731
    vectors = play(reference, society, stream(), n_initial + after, n=2)
    draws = stream()
    first_vectors = play(first, society, draws, n_initial, n=2)
    state = file_round_trip(first.state_dict())
    play(first, society, stream(), 3)  # the state must not change with the principal it was taken from
    second.load_state_dict(state)
    assert first_vectors + play(second, society, draws, after, n=2) == vectors


@functools.cache
def late_payoff(name, contexts, seed):
    """Return the mean payoff of the last 50 of 150 generations."""
    society = make_toy_spec(contexts=CONTEXTS[contexts])
    rows = play(MAKE[name](society, Seeds(seed)), society, np.random.default_rng(seed), 150)
    return np.mean([payoff for _, payoff, _ in rows[-50:]])


@pytest.mark.parametrize("contexts", mark_long_except(["contextual"], CONTEXTS))
@pytest.mark.parametrize("name", ["egreedy", "ucb", "thompson", "cem", "cmaes", "llm"])
def test_learning_beats_chance(name, contexts):
    payoffs, chance = (
        np.array([late_payoff(n, contexts, seed) for seed in range(2 if name == "llm" else 4)])
        for n in (name, "random")
    )
    # The best payoff is 10: at least half of what chance leaves on the table is won.
    assert payoffs.mean() > (10 + chance.mean()) / 2 and payoffs.min() > chance.max()


@pytest.mark.parametrize("name", MAKE)
def test_seed_determines_proposals(name):
    society = make_toy_spec()
    runs = [play(MAKE[name](society, Seeds(seed)), society, None, 12) for seed in (5, 5, 6)]
    assert runs[0] == runs[1]
    if name != "fixed":
        assert runs[0] != runs[2]


@pytest.mark.parametrize("name", ["fixed", "egreedy", "ucb", "thompson", "gp", "cem", "cmaes", "llm"])
def test_unknown_contexts_raise(name):
    principal = MAKE[name](make_toy_spec(contexts=("calm", "storm")), Seeds(0))
    for wrong in (None, -1, 2):
        with pytest.raises(ValueError, match=r"context.*2"):
            principal.ask(wrong)[0]
    with pytest.raises(ValueError, match="0 contexts"):
        MAKE[name](make_toy_spec(), Seeds(0)).ask(0)[0]


@pytest.mark.parametrize("name", MAKE)
def test_protocol(name):
    assert isinstance(MAKE[name](make_toy_spec(), Seeds(0)), Proposer)


@pytest.mark.parametrize("name", MAKE)
def test_environment_lacking_mechanism_raises(name):
    with pytest.raises(ConfigError, match="env=bare"):
        MAKE[name](make_spec(None, name="bare"), Seeds(0))


class TestFixed:
    def test_values(self):
        assert FixedPrincipal(CLEANUP.proposal_space, [0.0, 3.0, 1.5]).ask()[0].tolist() == [0.0, 3.0, 1.5]
        assert FixedPrincipal(make_toy_spec().proposal_space).ask()[0].tolist() == [-1.0, -1.0]

    def test_contexts(self):
        principal = FixedPrincipal(make_toy_spec(contexts=("a", "b")).proposal_space, contexts=[[0, 1], [2, 3]])
        assert principal.ask(0)[0].tolist() == [0, 1] and principal.ask(1)[0].tolist() == [2, 3]

    def test_caller_mutation_has_no_effect(self):
        principal = FixedPrincipal(make_toy_spec().proposal_space)
        principal.ask()[:] = 2.0
        assert principal.ask()[0].tolist() == [-1.0, -1.0]

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"values": [0.0, 4.0, 0.0]}, r"clean=4 .*\[0, 3\]"),
            ({"values": [0.0, 1.0]}, r"3 numbers \(eat, clean, other\)"),
            ({"contexts": [[0.0, 0.0, 0.0]]}, "principal.values"),
            ({"values": [0.0] * 3, "contexts": []}, r"principal\.values .*principal\.contexts"),
        ],
    )
    def test_refusals(self, arguments, message):
        with pytest.raises(ConfigError, match=message):
            FixedPrincipal(CLEANUP.proposal_space, **arguments)


def test_random_covers_the_box_or_the_grid():
    society = make_toy_spec()
    free = np.array([row[0] for row in play(RandomPrincipal(society.proposal_space, Seeds(0)), society, None, 300)])
    assert free.min() < -0.9 and free.max() > 2.9 and len(np.unique(free)) == 600
    grid = np.array(
        [row[0] for row in play(RandomPrincipal(society.proposal_space, Seeds(0), points=3), society, None, 100)]
    )
    assert np.unique(grid).tolist() == [-1.0, 1.0, 3.0]


def test_rule_model_warns_at_start(caplog):
    society = make_toy_spec()
    with caplog.at_level(logging.WARNING):
        play(build_llm_principal(society, make_scripted_client()), society, None, 3)
    assert caplog.text.count("llm=scripted") == 1
