"""Searches in the unit cube, with proposals rounded to the decimals of their space."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shipped
from known_functions import PRINCIPALS
from llmrl.core.errors import ConfigError
from llmrl.core.records import Outcome
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.core.unit_cube import count_values, from_unit, to_unit
from llmrl.principals.bandits import EpsilonGreedyPrincipal
from llmrl.principals.evolution import CMAESPrincipal
from llmrl.principals.gp import GaussianProcessPrincipal
from llmrl.principals.grid import find_default_grid_points, make_grid_vectors
from llmrl.principals.nonadaptive import FixedPrincipal, RandomPrincipal
from societies import make_toy_spec


def space(*parameters):
    """Return a space with parameters of (low, high, decimals)."""
    return ParameterSpace(
        "numbers", tuple(Parameter(f"x{i}", *p[:2], "u", "d", p[2]) for i, p in enumerate(parameters))
    )


MIXED_SPACE = space((0.0, 3.0, 0), (-6.0, 6.0, 1), (-1.0, 1.0, None), (2.0, 2.0, 0))
TABLE = space(*[(0.0, 3.0, 0)] * 6)


@given(st.lists(st.floats(0, 1), min_size=4, max_size=4))
def test_vector_point_round_trip(point):
    vector = from_unit(MIXED_SPACE, np.array(point))
    MIXED_SPACE.check(vector)
    assert np.array_equal(vector, MIXED_SPACE.round_values(vector))
    recovered = to_unit(MIXED_SPACE, vector)
    assert ((recovered >= 0) & (recovered <= 1)).all()
    np.testing.assert_allclose(from_unit(MIXED_SPACE, recovered), vector, atol=1e-12)
    # What is rounded moves by half a step at most.
    assert (np.abs(recovered - point)[:3] <= 0.5 / np.array([4, 121, np.inf]) + 1e-9).all()


def test_values_are_equally_likely():
    assert count_values(MIXED_SPACE).tolist() == [4, 121, np.inf, 1]
    vectors = from_unit(MIXED_SPACE, np.random.default_rng(0).random((40000, 4)))
    assert np.bincount(vectors[:, 0].astype(int)) / 40000 == pytest.approx([0.25] * 4, abs=0.01)
    edges = np.mean(np.abs(vectors[:, 1]) == 6.0)
    assert edges == pytest.approx(2 / 121, abs=0.002)


def test_spaces_with_no_decimals_are_unchanged():
    plain, points = make_toy_spec(d=3).proposal_space, np.random.default_rng(0).random((50, 3))
    reference = np.clip(plain.low + points * (plain.high - plain.low), plain.low, plain.high)
    assert np.array_equal(from_unit(plain, points), reference)


SEARCHES = {
    "random": RandomPrincipal,
    "cem": lambda s, seeds: shipped.build_cem(s, seeds, population=12),
    "cmaes": lambda s, seeds: CMAESPrincipal(s, seeds, population=12),
}


def hamming(vector):
    """Return the number of coordinates that match the optimum."""
    return float(np.sum(vector == np.array([3, 0, 2, 1, 3, 0])))


def search(principal, steps, n=4):
    best_values = []
    for _ in range(steps):
        vectors = principal.ask(None, n)
        assert np.array_equal(vectors, TABLE.check(TABLE.round_values(vectors)))
        principal.tell([Outcome(v, hamming(v), np.array([hamming(v)])) for v in vectors])
        best_values += [hamming(v) for v in vectors]
    return best_values


@pytest.mark.parametrize("name", ["cem", "cmaes"])
def test_integer_optimum(name):
    """The search learns from the unrounded candidates and finds more than the same number of random samples."""
    best_values = [search(SEARCHES[name](TABLE, Seeds(seed)), 60) for seed in range(4)]
    chance = [search(RandomPrincipal(TABLE, Seeds(seed)), 60) for seed in range(4)]
    assert np.mean([np.mean(f[-40:]) for f in best_values]) > 4.5 > 2 > np.mean([np.mean(c[-40:]) for c in chance])


@pytest.mark.slow
def test_gp_proposes_integers():
    assert max(search(GaussianProcessPrincipal(TABLE, Seeds(0), initial=8), 5, 2)) >= 2


@pytest.mark.parametrize("name", SEARCHES)
@settings(max_examples=5)
@given(at=st.integers(0, 4))
def test_integer_search_resumes(name, at):
    """The state between ask and tell contains the unrounded candidates."""
    trails = []
    for is_restart in (False, True):
        principal, trail = SEARCHES[name](TABLE, Seeds(5)), []
        for step in range(5):
            vectors = principal.ask(None, 4)
            if is_restart and step == at:
                principal, state = SEARCHES[name](TABLE, Seeds(5)), principal.state_dict()
                principal.load_state_dict(state)
            principal.tell([Outcome(v, hamming(v), np.array([hamming(v)])) for v in vectors])
            trail.append(vectors.tolist())
        trails.append(trail)
    assert trails[0] == trails[1]


class TestGrids:
    def test_points_have_space_decimals(self):
        bandit = EpsilonGreedyPrincipal(space((-1.0, 1.0, 1), (0.0, 3.0, 0)), Seeds(0), points=4)
        assert {vector[0] for vector in bandit.arms} == {-1.0, -0.3, 0.3, 1.0}
        assert [bandit.find_arm(vector) for vector in bandit.arms] == list(range(16))
        with pytest.raises(ValueError, match="none of"):
            bandit.find_arm(np.array([-0.4, 1.0]))

    def test_default_grid_covers_integers(self):
        assert find_default_grid_points(TABLE, {3: 21, 5: 6}) == 4
        bandit = EpsilonGreedyPrincipal(TABLE, Seeds(0), proposals=3 * 4**6)
        assert bandit.n_arms == 4**6
        vectors = bandit.ask(None, 3)
        bandit.tell([Outcome(v, hamming(v), np.array([1.0])) for v in vectors])

    def test_short_runs_list_integers(self):
        bandit = EpsilonGreedyPrincipal(TABLE, Seeds(0), proposals=40)
        arms = bandit.arms
        assert arms.shape == (13, 6) and np.array_equal(arms, TABLE.round_values(arms))
        vectors = bandit.ask(None, 3)
        bandit.tell([Outcome(v, hamming(v), np.array([1.0])) for v in vectors])

    def test_points_exceed_values(self):
        with pytest.raises(ConfigError, match=r"principal.points=5.*4"):
            make_grid_vectors(TABLE, 5)

    def test_no_small_grid(self):
        wide = space(*[(-6.0, 6.0, 1)] * 30)
        with pytest.raises(ConfigError, match=r"principal\.points=2"):
            EpsilonGreedyPrincipal(wide, Seeds(0))


def test_fixed_numbers_are_not_rounded():
    assert FixedPrincipal(TABLE, [3, 0, 2, 1, 3, 0]).ask().tolist() == [[3, 0, 2, 1, 3, 0]]
    with pytest.raises(ConfigError, match=r"x1=0.5.*0"):
        FixedPrincipal(TABLE, [3, 0.5, 2, 1, 3, 0])


def test_principals_with_warmup():
    """Principals whose search may begin with random vectors."""
    spec = make_toy_spec()
    learns = {name for name, build in PRINCIPALS.items() if getattr(build(spec, Seeds(0)), "learns_from_others", False)}
    assert learns == {"random", "gp"}
