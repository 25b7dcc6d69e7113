"""Successive halving of leading candidates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.loops.confirmation import Confirmation, SuccessiveHalving, n_candidates

STEPS, SLOTS = st.integers(1, 30), st.integers(1, 12)


def vectors(n):
    return np.arange(float(n))[:, None]


@given(STEPS, SLOTS)
def test_every_candidate_is_measured_in_the_first_round(steps, slots):
    halving = SuccessiveHalving(vectors(50), steps, slots)
    n = len(halving.survivors)
    while not halving.finished and len(halving.survivors) == n:
        halving.advance(lambda vector: -float(vector[0]))
    assert n == n_candidates(steps, slots) and min(halving.counts) >= 1


@given(STEPS, SLOTS, st.integers(2, 20), st.randoms(use_true_random=False))
def test_the_budget_is_spent_on_survivors_and_the_best_remains(steps, slots, n, random):
    values = list(range(n))
    random.shuffle(values)
    halving = SuccessiveHalving(vectors(n), steps, slots)
    best = max(range(len(halving.vectors)), key=lambda i: values[i])
    while not halving.finished:
        trial = halving.trial
        assert len(trial) == slots and {i for i, _ in trial} <= set(halving.survivors)
        # Measurements of equal index are compared under common random numbers, so each candidate counts its own.
        assert len(set(trial)) == slots
        halving.advance(lambda vector: values[int(vector[0])])
    assert sum(halving.counts) == steps * slots
    assert halving.survivors[0] == best
    assert halving.counts[best] >= max(halving.counts) - 1


def test_rounds_halve_the_candidates():
    halving = SuccessiveHalving(vectors(9), 16, 1)
    sizes = []
    while not halving.finished:
        sizes.append(len(halving.survivors))
        halving.advance(lambda vector: float(vector[0]))
    assert sizes == [4] * 8 + [2] * 8
    assert halving.counts == [2, 2, 6, 6] and halving.survivors == [3, 2]


@given(st.integers(1, 20), SLOTS, st.integers(1, 5), st.integers(0, 40))
def test_a_restored_confirmation_continues_alike(steps, slots, contexts, pause):
    def run(interrupt):
        confirmation = Confirmation({i: vectors(i + 1) for i in range(contexts)}, steps + contexts, slots)
        record = []
        while not confirmation.finished:
            if len(record) == pause and interrupt:
                confirmation = Confirmation.from_state(confirmation.state_dict())
            context = confirmation.context
            record.append((context, confirmation.halvings[context].trial))
            confirmation.halvings[context].advance(lambda vector: float(np.sin(vector[0])))
        return record, [confirmation.survivors(i) for i in range(contexts)]

    (record, survivors), (resumed, others) = run(False), run(True)
    assert record == resumed
    for mine, theirs in zip(survivors, others, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_single_candidate_is_not_confirmed():
    confirmation = Confirmation({0: vectors(1), 1: vectors(3)}, 6, 2)
    assert list(confirmation.halvings) == [1] and confirmation.survivors(0) is None
    assert confirmation.halvings[1].steps == 3


def test_confirmation_finds_the_best_of_noisy_candidates_more_often_than_the_first_measurement():
    rng, n = np.random.default_rng(0), 400
    first = confirmed = 0
    for _ in range(n):
        true = rng.normal(0, 5, 20)
        measured = [[value] for value in true + rng.normal(0, 5, 20)]
        order = np.argsort([-values[0] for values in measured])
        halving = SuccessiveHalving(order[:, None].astype(float), 16, 1)
        while not halving.finished:
            for i, _ in halving.trial:
                arm = int(halving.vectors[i, 0])
                measured[arm].append(true[arm] + rng.normal(0, 5))
            halving.advance(lambda vector, measured=measured: float(np.mean(measured[int(vector[0])])))
        first += true[order[0]]
        confirmed += true[int(halving.vectors[halving.survivors[0], 0])]
    assert (confirmed - first) / n > 1.0, "mean true value of the choice"


@pytest.mark.parametrize(
    ("steps", "slots", "n"), [(1, 8, 3), (16, 1, 4), (2, 1, 2), (1, 1, 1), (4, 1, 2), (1, 2, 2), (24, 1, 5)]
)
def test_number_of_candidates(steps, slots, n):
    assert n_candidates(steps, slots) == n
