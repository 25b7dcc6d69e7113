"""`principal=scan`: the coarse scan, then its best vector."""

import dataclasses

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.principals.scan import ScanPrincipal
from societies import outcome, toy

SPACE = toy().mechanism


def told(principal: ScanPrincipal, vectors: np.ndarray, value) -> list[Outcome]:
    found = [dataclasses.replace(outcome(toy(), vector), value=float(value(vector))) for vector in vectors]
    principal.tell(found)
    return found


@given(repeats=st.integers(1, 3), n=st.integers(1, 4), peak=st.integers(0, len(SPACE.coarse_scan) - 1))
def test_every_vector_is_tried_so_often_and_then_the_best(repeats, n, peak):
    principal = ScanPrincipal(SPACE, Seeds(0), repeats)
    best, tried = SPACE.coarse_scan[peak], []
    while len(tried) < repeats * principal.n_arms:
        asked = principal.ask(n=n)
        tried += [tuple(vector) for vector in asked]
        told(principal, asked, lambda vector: -np.abs(vector - best).sum())
    for vector in SPACE.coarse_scan:
        assert tried[: repeats * principal.n_arms].count(tuple(vector)) == repeats
    assert principal.ask(n=n).tolist() == [best.tolist()] * n


def test_more_candidates_than_vectors_before_any_outcome():
    principal = ScanPrincipal(SPACE, Seeds(0))
    asked = principal.ask(n=2 * principal.n_arms)
    assert asked.tolist() == SPACE.coarse_scan.tolist() * 2


def test_luck_of_the_scan_is_left_again():
    principal = ScanPrincipal(SPACE, Seeds(0))
    scan = principal.ask(n=principal.n_arms)
    lucky, good = tuple(scan[1]), tuple(scan[2])
    told(principal, scan, lambda vector: {lucky: 5.0, good: 4.0}.get(tuple(vector), 0.0))
    assert tuple(principal.ask()[0]) == lucky
    told(principal, principal.ask(), lambda vector: 1.0)  # so its mean is 3
    assert tuple(principal.ask()[0]) == good


def test_it_goes_on_where_it_was():
    principal, resumed = ScanPrincipal(SPACE, Seeds(0)), ScanPrincipal(SPACE, Seeds(0))
    told(principal, principal.ask(n=3), lambda vector: vector.sum())
    resumed.load_state_dict(principal.state_dict())
    assert resumed.ask(n=4).tolist() == principal.ask(n=4).tolist()
    resumed.tell([dataclasses.replace(outcome(toy(), resumed.grid.vector(0)), value=9.0)])
    assert principal.means[0, 0] != 9.0  # a copy
