"""Successive halving of leading candidates."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.loops.recommendation import Confirmation, SuccessiveHalving, count_candidates

STEPS, SLOTS = st.integers(1, 30), st.integers(1, 12)


def vectors(n):
    return np.arange(float(n))[:, None]


@given(STEPS, SLOTS)
def test_first_round_measures_all_candidates(steps, slots):
    halving = SuccessiveHalving(vectors(50), steps, slots)
    n = len(halving.survivors)
    while not halving.is_finished and len(halving.survivors) == n:
        halving.advance(lambda vector: -float(vector[0]))
    assert n == count_candidates(steps, slots) and min(halving.counts) >= 1


@given(STEPS, SLOTS, st.integers(2, 20), st.randoms(use_true_random=False))
def test_budget_goes_to_survivors(steps, slots, n, random):
    values = list(range(n))
    random.shuffle(values)
    halving = SuccessiveHalving(vectors(n), steps, slots)
    best = max(range(len(halving.vectors)), key=lambda i: values[i])
    while not halving.is_finished:
        trial = halving.next_trial
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
    while not halving.is_finished:
        sizes.append(len(halving.survivors))
        halving.advance(lambda vector: float(vector[0]))
    assert sizes == [4] * 8 + [2] * 8
    assert halving.counts == [2, 2, 6, 6] and halving.survivors == [3, 2]


@given(st.integers(1, 20), SLOTS, st.integers(1, 5), st.integers(0, 40))
def test_confirmation_state_round_trip(steps, slots, contexts, pause):
    def run(interrupt):
        confirmation = Confirmation({i: vectors(i + 1) for i in range(contexts)}, steps + contexts, slots)
        record = []
        while not confirmation.is_finished:
            if len(record) == pause and interrupt:
                confirmation = Confirmation.from_state(confirmation.state_dict())
            context = confirmation.context
            record.append((context, confirmation.halvings[context].next_trial))
            confirmation.halvings[context].advance(lambda vector: float(np.sin(vector[0])))
        return record, [confirmation.surviving_vectors(i) for i in range(contexts)]

    (record, survivors), (restored_record, restored_survivors) = run(False), run(True)
    assert record == restored_record
    for mine, second in zip(survivors, restored_survivors, strict=True):
        np.testing.assert_array_equal(mine, second)


def test_single_candidate_skips_confirmation():
    confirmation = Confirmation({0: vectors(1), 1: vectors(3)}, 6, 2)
    assert list(confirmation.halvings) == [1] and confirmation.surviving_vectors(0) is None
    assert confirmation.halvings[1].steps == 3


def test_confirmation_beats_first_measurement():
    rng, n = np.random.default_rng(0), 400
    first = n_correct_confirmations = 0
    for _ in range(n):
        true = rng.normal(0, 5, 20)
        samples = [[value] for value in true + rng.normal(0, 5, 20)]
        order = np.argsort([-values[0] for values in samples])
        halving = SuccessiveHalving(order[:, None].astype(float), 16, 1)
        while not halving.is_finished:
            for i, _ in halving.next_trial:
                arm = int(halving.vectors[i, 0])
                samples[arm].append(true[arm] + rng.normal(0, 5))
            halving.advance(lambda vector, samples=samples: float(np.mean(samples[int(vector[0])])))
        first += true[order[0]]
        n_correct_confirmations += true[int(halving.vectors[halving.survivors[0], 0])]
    assert (n_correct_confirmations - first) / n > 1.0, "mean true value of the choice"


@pytest.mark.parametrize(
    ("steps", "slots", "n"), [(1, 8, 3), (16, 1, 4), (2, 1, 2), (1, 1, 1), (4, 1, 2), (1, 2, 2), (24, 1, 5)]
)
def test_candidate_count(steps, slots, n):
    assert count_candidates(steps, slots) == n
