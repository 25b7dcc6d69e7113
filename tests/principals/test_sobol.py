"""`principal=sobol`: a scrambled Sobol sequence for each context."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats.qmc import Sobol

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.principals.nonadaptive import SobolPrincipal
from societies import make_toy_spec

PLAIN, CONTEXTUAL = make_toy_spec().proposal_space, make_toy_spec(contexts=("calm", "storm")).proposal_space


def test_quarters_get_equal_points(recwarn):
    principal = SobolPrincipal(PLAIN, Seeds(0))
    points = np.concatenate([principal.ask(n=n) for n in (3, 5, 8)])
    upper = points > 1.0  # of [-1, 3]
    assert all((upper == corner).all(axis=1).sum() == 4 for corner in np.ndindex(2, 2))
    assert not recwarn.list


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=6), seed=st.integers(0, 2**20))
def test_points_ignore_batch_size(sizes, seed):
    batches, single = SobolPrincipal(PLAIN, Seeds(seed)), SobolPrincipal(PLAIN, Seeds(seed))
    points = np.concatenate([batches.ask(n=n) for n in sizes])
    assert np.array_equal(points, np.concatenate([single.ask() for _ in range(sum(sizes))]))


def test_contexts_have_independent_sequences():
    principal, different = SobolPrincipal(CONTEXTUAL, Seeds(0)), SobolPrincipal(CONTEXTUAL, Seeds(1))
    calm, storm = principal.ask(0, 4), principal.ask(1, 4)
    assert not np.isclose(calm, storm).any()
    assert not np.isclose(calm, different.ask(0, 4)).any()


def test_state_round_trip():
    principal, restored = SobolPrincipal(CONTEXTUAL, Seeds(0)), SobolPrincipal(CONTEXTUAL, Seeds(0))
    principal.ask(1, 3)
    state = principal.state_dict()
    restored.load_state_dict(state)
    assert np.array_equal(restored.ask(1, 2), principal.ask(1, 2))
    assert state["counts"] == [0, 3]


def test_dimension_limit_raises(monkeypatch):
    monkeypatch.setattr(Sobol, "MAXDIM", 1)
    with pytest.raises(ConfigError, match="principal=sobol"):
        SobolPrincipal(PLAIN, Seeds(0))
