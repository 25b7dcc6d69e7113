"""`principal=scan`: a coarse scan followed by its best vector."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.principals.bandits import ScanPrincipal
from societies import make_outcome, make_toy_spec

SPACE = make_toy_spec().mechanism


def tell_payoffs(principal: ScanPrincipal, vectors: np.ndarray, value) -> list[Outcome]:
    outcomes = [
        dataclasses.replace(make_outcome(make_toy_spec(), vector), value=float(value(vector))) for vector in vectors
    ]
    principal.tell(outcomes)
    return outcomes


@given(repeats=st.integers(1, 3), n=st.integers(1, 4), peak=st.integers(0, len(SPACE.probe_vectors) - 1))
def test_scan_repeats_and_exploits_best(repeats, n, peak):
    principal = ScanPrincipal(SPACE, Seeds(0), repeats)
    best, vectors = SPACE.probe_vectors[peak], []
    while len(vectors) < repeats * principal.n_arms:
        proposals = principal.ask(n=n)
        vectors += [tuple(vector) for vector in proposals]
        tell_payoffs(principal, proposals, lambda vector: -np.abs(vector - best).sum())
    for vector in SPACE.probe_vectors:
        assert vectors[: repeats * principal.n_arms].count(tuple(vector)) == repeats
    assert principal.ask(n=n).tolist() == [best.tolist()] * n


def test_candidates_may_exceed_vectors():
    principal = ScanPrincipal(SPACE, Seeds(0))
    proposals = principal.ask(n=2 * principal.n_arms)
    assert proposals.tolist() == SPACE.probe_vectors.tolist() * 2


def test_lucky_scan_result_is_abandoned():
    principal = ScanPrincipal(SPACE, Seeds(0))
    scan = principal.ask(n=principal.n_arms)
    lucky, good = tuple(scan[1]), tuple(scan[2])
    tell_payoffs(principal, scan, lambda vector: {lucky: 5.0, good: 4.0}.get(tuple(vector), 0.0))
    assert tuple(principal.ask()[0]) == lucky
    tell_payoffs(principal, principal.ask(), lambda vector: 1.0)  # so its mean is 3
    assert tuple(principal.ask()[0]) == good


def test_state_round_trip():
    principal, restored = ScanPrincipal(SPACE, Seeds(0)), ScanPrincipal(SPACE, Seeds(0))
    tell_payoffs(principal, principal.ask(n=3), lambda vector: vector.sum())
    restored.load_state_dict(principal.state_dict())
    assert restored.ask(n=4).tolist() == principal.ask(n=4).tolist()
    restored.tell([dataclasses.replace(make_outcome(make_toy_spec(), restored.arms[0]), value=9.0)])
    assert principal.means[0, 0] != 9.0  # a copy
