import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shipped
from llmrl.core.errors import ConfigError
from llmrl.core.pooling import PooledEstimates
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.principals.bandits import EpsilonGreedyPrincipal, ScanPrincipal
from llmrl.principals.grid import (
    COARSE_GRID_POINTS,
    FINE_GRID_POINTS,
    choose_arms,
    choose_grid_points,
    compute_max_points_per_axis,
    find_default_grid_points,
    list_representative_vectors,
    make_grid_vectors,
)
from societies import CLEANUP, ESCAPE_ROOM, make_outcome, make_toy_spec


class TestGrid:
    def test_first_coordinate_is_most_significant(self):
        vectors = make_grid_vectors(make_toy_spec(d=3, low=0.0, high=1.0).mechanism, 11)
        assert len(vectors) == 1331
        assert vectors[0].tolist() == [0, 0, 0]
        assert vectors[1].tolist() == [0, 0, 0.1]
        assert vectors[11].tolist() == [0, 0.1, 0]
        assert vectors[1330].tolist() == [1, 1, 1]

    @given(st.integers(1, 5), st.integers(2, 9), st.data())
    def test_arm_vector_round_trip(self, d, points, data):
        mechanism = make_toy_spec(d=d, low=-0.3, high=0.7).mechanism
        bandit = EpsilonGreedyPrincipal(mechanism, Seeds(0), points=points)
        arm = data.draw(st.integers(0, bandit.n_arms - 1))
        vector = mechanism.check(bandit.arms[arm])
        assert bandit.find_arm(vector) == arm

    def test_off_grid_vectors_raise(self):
        bandit = EpsilonGreedyPrincipal(make_toy_spec().mechanism, Seeds(0), points=5)
        for wrong in ([0.5, 0.1], [-2.0, 0.0], [4.0, 0.0]):
            with pytest.raises(ValueError, match="none of"):
                bandit.find_arm(np.array(wrong))

    def test_limits(self):
        with pytest.raises(ConfigError, match="at least 2"):
            make_grid_vectors(make_toy_spec().mechanism, 1)
        with pytest.raises(ConfigError, match=r"principal\.points=400 .*64,000,000 .*158"):
            make_grid_vectors(make_toy_spec(d=3).mechanism, 400)

    @given(st.integers(1, 8), st.integers(1, 10**6))
    def test_largest_points(self, dim, arms):
        n = compute_max_points_per_axis(dim, arms)
        assert n**dim <= arms < (n + 1) ** dim

    @pytest.mark.parametrize(
        ("principal", "spec", "arms"),
        [
            (EpsilonGreedyPrincipal, CLEANUP, (1, 9261)),
            (shipped.build_ucb, CLEANUP, (1, 1331)),
            (shipped.build_thompson, CLEANUP, (1, 1331)),
            (EpsilonGreedyPrincipal, ESCAPE_ROOM, (3, 7776)),
            (shipped.build_ucb, ESCAPE_ROOM, (3, 243)),
            (shipped.build_thompson, ESCAPE_ROOM, (3, 243)),
            (shipped.build_ucb, make_toy_spec(d=1), (1, 101)),
            (shipped.build_ucb, make_toy_spec(d=2), (1, 36**2)),
        ],
    )
    def test_paper_sizes(self, principal, spec, arms):
        """The published sizes apply if the length of the run is unknown or sufficient."""
        assert principal(spec.proposal_space, Seeds(0)).counts.shape == arms
        long_run = 3 * arms[0] * arms[1]
        assert principal(spec.proposal_space, Seeds(0), proposals=long_run).counts.shape == arms
        assert principal(spec.proposal_space, Seeds(0), proposals=long_run - 1).n_arms < arms[1]

    @pytest.mark.parametrize("principal", [EpsilonGreedyPrincipal, shipped.build_ucb, shipped.build_thompson])
    @pytest.mark.parametrize(
        ("spec", "proposals", "points"),
        [
            (CLEANUP, 81, 3),
            (CLEANUP, 375, 5),
            (ESCAPE_ROOM, 3 * 3 * 3**5, 3),
        ],
    )
    def test_grid_size_follows_run_length(self, principal, spec, proposals, points):
        """Each arm can be measured three times in its context; explicit points are not changed."""
        assert principal(spec.proposal_space, Seeds(0), proposals=proposals).n_arms == points**spec.proposal_space.dim
        assert (
            principal(spec.proposal_space, Seeds(0), points=4, proposals=proposals).n_arms == 4**spec.proposal_space.dim
        )

    @pytest.mark.parametrize("principal", [EpsilonGreedyPrincipal, shipped.build_ucb, shipped.build_thompson])
    @pytest.mark.parametrize(
        ("spec", "proposals", "arms"),
        [
            (CLEANUP, 2, 2),
            (CLEANUP, 12, 4),
            (CLEANUP, 24, 8),
            (CLEANUP, 48, 8),
            (CLEANUP, 80, 13),
            (ESCAPE_ROOM, 72, 8),
            (ESCAPE_ROOM, 287, 15),
        ],
    )
    def test_short_runs_list_arms(self, principal, spec, proposals, arms):
        """The run is too short for three points per parameter; explicit points still give the whole grid."""
        principal_ = principal(spec.proposal_space, Seeds(0), proposals=proposals)
        assert principal_.n_arms == arms and principal_.arms.shape == (arms, spec.proposal_space.dim)
        assert (
            principal(spec.proposal_space, Seeds(0), points=2, proposals=proposals).n_arms == 2**spec.proposal_space.dim
        )

    @given(
        st.integers(1, 7),
        st.integers(1, 10**5),
        st.integers(0, 4),
        st.sampled_from([FINE_GRID_POINTS, COARSE_GRID_POINTS]),
    )
    def test_maximum_points(self, d, proposals, contexts, default_points_):
        space = make_toy_spec(d=d, contexts=tuple("abcd"[:contexts])).proposal_space
        points, maximum = (
            choose_grid_points(space, default_points_, proposals),
            find_default_grid_points(space, default_points_),
        )
        per_context = proposals / max(contexts, 1)
        assert 2 <= points <= maximum
        assert points == 2 or 3 * points**d <= per_context
        assert points == maximum or 3 * (points + 1) ** d > per_context

    @given(
        st.integers(1, 7),
        st.integers(6, 2000),
        st.integers(0, 4),
        st.sampled_from([FINE_GRID_POINTS, COARSE_GRID_POINTS]),
    )
    def test_default_arms_get_three_measurements(self, d, proposals, contexts, default):
        space = make_toy_spec(d=d, contexts=tuple("abcd"[:contexts])).proposal_space
        arms = choose_arms(space, None, default, proposals)
        assert 3 * len(arms) <= max(proposals / max(contexts, 1), 6)


class TestVectorList:
    @given(st.integers(1, 6), st.integers(2, 40))
    def test_vectors_are_distinct_in_bounds(self, d, n):
        space = make_toy_spec(d=d).proposal_space
        vectors = list_representative_vectors(space, n)
        assert vectors.shape == (n, d) and len(np.unique(vectors, axis=0)) == n
        assert not space.is_out_of_bounds(vectors).any()

    @given(st.integers(2, 6), st.integers(0, 10))
    def test_coarse_scan_comes_first(self, d, n_extra):
        space = make_toy_spec(d=d).proposal_space
        scan = space.probe_vectors
        assert np.array_equal(list_representative_vectors(space, len(scan) + n_extra)[: len(scan)], scan)
        fewer = list_representative_vectors(space, len(scan) - 1)
        assert np.array_equal(fewer[:3], scan[:3])
        assert not any((vector == scan_vector).all() for vector in fewer[3:] for scan_vector in scan)

    def test_longer_lists_extend_shorter_ones(self):
        space = make_toy_spec(d=3).proposal_space
        assert np.array_equal(list_representative_vectors(space, 20)[:9], list_representative_vectors(space, 9))

    def test_small_space_is_enumerated(self):
        space = ParameterSpace("digits", tuple(Parameter(f"x{i}", 0.0, 2.0, "", "", decimals=0) for i in range(2)))
        vectors = list_representative_vectors(space, 20)
        assert sorted(map(tuple, vectors.tolist())) == [(float(i), float(j)) for i in range(3) for j in range(3)]

    def test_dimensions_exceed_sobol(self):
        space = ParameterSpace("many", tuple(Parameter(f"x{i}", 0.0, 1.0, "", "") for i in range(21_202)))
        with pytest.raises(ConfigError):
            list_representative_vectors(space, 4)


def play(principal, spec, payoffs, context=None):
    """Tell the payoffs of given arms and return the last metrics."""
    for arm, payoff in payoffs:
        metrics = principal.tell([make_outcome(spec, principal.arms[arm], context, payoff)])
    return metrics


arm_payoffs = st.lists(st.tuples(st.integers(0, 8), st.floats(-50, 50)), min_size=1, max_size=40)


@given(arm_payoffs)
def test_counts_with_means(payoffs):
    spec = make_toy_spec()
    principal = EpsilonGreedyPrincipal(spec.proposal_space, Seeds(0), points=3)
    metrics = play(principal, spec, payoffs)
    means = {arm: np.mean([p for a, p in payoffs if a == arm]) for arm, _ in payoffs}
    for arm, mean in means.items():
        assert principal.means[0, arm] == pytest.approx(mean, abs=1e-9)
    assert principal.counts.sum() == len(payoffs)
    assert metrics["principal/arms_played"] == len(means)
    assert metrics["principal/best_mean"] == pytest.approx(max(means.values()), abs=1e-9)


class TestEpsilonGreedy:
    def test_greedy_maximizes_mean_despite_sign(self):
        for sign in (1, -1):
            spec = make_toy_spec()
            principal = EpsilonGreedyPrincipal(spec.proposal_space, Seeds(0), epsilon=0.0, points=3)
            play(principal, spec, [(4, 20.0 * sign), (7, 30.0 * sign)])
            assert principal.find_arm(principal.ask()[0]) == (7 if sign == 1 else 4)

    def test_optimistic_start_with_ordered_ties(self):
        spec = make_toy_spec()
        principal = EpsilonGreedyPrincipal(
            spec.proposal_space, Seeds(0), epsilon=0.0, points=3, initial_value=0.0, ties="first"
        )
        arms = []
        for _ in range(4):
            vector = principal.ask()[0]
            arms.append(principal.find_arm(vector))
            principal.tell([make_outcome(spec, vector, value=-5.0)])
        assert arms == [0, 1, 2, 3]

    def test_ties_are_broken_at_random(self):
        spec = make_toy_spec()
        principal = EpsilonGreedyPrincipal(spec.proposal_space, Seeds(0), epsilon=0.0, points=3)
        play(principal, spec, [(2, 1.0), (5, 1.0)])
        assert {principal.find_arm(principal.ask()[0]) for _ in range(50)} == {2, 5}

    def test_epsilon_is_random_arm_probability(self):
        spec = make_toy_spec()
        principal = EpsilonGreedyPrincipal(spec.proposal_space, Seeds(0), epsilon=0.3, points=3)
        play(principal, spec, [(4, 1.0)])
        arms = np.array([principal.find_arm(principal.ask()[0]) for _ in range(4000)])
        # Away from arm 4 with probability 0.3 x 8/9; the bound is 5 standard errors.
        assert abs((arms != 4).mean() - 0.3 * 8 / 9) < 5 * 0.007


class TestUCB:
    @settings(max_examples=50)
    @given(arm_payoffs, st.floats(0, 3), st.one_of(st.none(), st.floats(0.1, 9)))
    def test_index_is_the_closed_form(self, payoffs, coefficient, scale):
        spec = make_toy_spec()
        principal = shipped.build_ucb(spec.proposal_space, Seeds(0), coefficient=coefficient, scale=scale, points=3)
        play(principal, spec, payoffs)
        values = [payoff for _, payoff in payoffs]
        size = max(values) - min(values) if scale is None else scale
        for arm in range(9):
            arm_payoffs = [payoff for a, payoff in payoffs if a == arm]
            reference = (
                np.mean(arm_payoffs) + coefficient * size * np.sqrt(np.log(len(values)) / len(arm_payoffs))
                if arm_payoffs
                else np.inf
            )
            assert principal.compute_upper_bounds(0)[arm] == pytest.approx(reference, abs=1e-8)

    @pytest.mark.parametrize("order", ["ascending", "shuffled"])
    def test_plays_all_arms_then_highest_index(self, order):
        spec = make_toy_spec()
        principal = shipped.build_ucb(spec.proposal_space, Seeds(3), points=3, arm_order=order)
        arms = []
        for _ in range(9):
            vector = principal.ask()[0]
            arms.append(principal.find_arm(vector))
            principal.tell([make_outcome(spec, vector)])
        assert sorted(arms) == list(range(9))
        assert (arms == list(range(9))) is (order == "ascending")
        assert principal.find_arm(principal.ask()[0]) == int(principal.compute_upper_bounds(0).argmax())

    def test_order_differs_between_contexts(self):
        spec = make_toy_spec(contexts=("a", "b"))
        orders = [shipped.build_ucb(spec.proposal_space, Seeds(seed), points=5).arm_order for seed in (0, 1)]
        assert not np.array_equal(orders[0][0], orders[0][1]) and not np.array_equal(orders[0], orders[1])

    def test_shared_counter(self):
        spec = make_toy_spec(contexts=("a", "b"))
        payoffs = [(arm, float(arm)) for arm in range(4)]
        bonus = {}
        for shared in (False, True):
            principal = shipped.build_ucb(
                spec.proposal_space, Seeds(0), coefficient=1.0, scale=1.0, points=2, shared_counter=shared
            )
            play(principal, spec, payoffs, context=0)
            play(principal, spec, payoffs * 2, context=1)
            bonus[shared] = principal.compute_upper_bounds(0)[3] - 3.0
        assert bonus == {False: pytest.approx(np.log(4) ** 0.5), True: pytest.approx(np.log(12) ** 0.5)}


class TestThompson:
    @settings(max_examples=50)
    @given(arm_payoffs, st.floats(-5, 5), st.floats(0.01, 3), st.floats(0.5, 4), st.floats(0.5, 50))
    def test_posterior_is_the_closed_form(self, payoffs, m0, n0, a0, b0):
        spec = make_toy_spec()
        principal = shipped.build_thompson(
            spec.proposal_space, Seeds(0), points=3, prior_mean=m0, prior_strength=n0, prior_shape=a0, prior_rate=b0
        )
        play(principal, spec, payoffs)
        mean, strength, shape, rate = principal.posterior(0)
        for arm in range(9):
            arm_payoffs = np.array([payoff for a, payoff in payoffs if a == arm])
            n, x = len(arm_payoffs), arm_payoffs.mean() if len(arm_payoffs) else 0.0
            assert mean[arm] == pytest.approx((n0 * m0 + arm_payoffs.sum()) / (n0 + n), abs=1e-9)
            assert strength[arm] == n0 + n and shape[arm] == a0 + n / 2
            reference = b0 + ((arm_payoffs - x) ** 2).sum() / 2 + n * n0 * (x - m0) ** 2 / (2 * (n0 + n))
            assert rate[arm] == pytest.approx(reference, rel=1e-9, abs=1e-9)

    def test_integer_posterior_is_truncated(self):
        spec = make_toy_spec()
        principal = shipped.build_thompson(spec.proposal_space, Seeds(0), points=3, integer_posterior=True)
        play(principal, spec, [(0, -3.9), (1, 3.9)])
        mean, _, _, rate = principal.posterior(0)
        assert mean[:2].tolist() == [-3.0, 3.0] and (rate == np.trunc(rate)).all()

    def test_sample_moments_match_posterior(self, monkeypatch):
        spec = make_toy_spec(d=1)
        principal = shipped.build_thompson(spec.proposal_space, Seeds(0), points=2, prior_shape=4.0, prior_rate=9.0)
        play(principal, spec, [(0, 5.0), (0, 7.0), (0, 6.0)])
        samples = []
        monkeypatch.setattr(principal, "_argmax", lambda values: samples.append(values[0]) or 0)
        for _ in range(4000):
            principal.ask()[0]
        mean, strength, shape, rate = (x[0] for x in principal.posterior(0))
        # The marginal is Student's t with 2 shape degrees of freedom.
        variance = rate / (strength * shape) * (2 * shape) / (2 * shape - 2)
        assert np.mean(samples) == pytest.approx(mean, abs=5 * (variance / 4000) ** 0.5)
        assert np.var(samples) == pytest.approx(variance, rel=0.2)


BATCHED = {
    "egreedy": lambda spec: EpsilonGreedyPrincipal(spec.proposal_space, Seeds(0), points=2),
    "ucb": lambda spec: shipped.build_ucb(spec.proposal_space, Seeds(0), points=2),
    "thompson": lambda spec: shipped.build_thompson(spec.proposal_space, Seeds(0), points=2, prior_rate=0.1),
    "scan": lambda spec: ScanPrincipal(spec.proposal_space, Seeds(0)),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("extra", [0, 3])
def test_candidates_covering_all_arms(name, extra):
    """With at least as many candidates as arms, later steps measure better arms more often."""
    spec = make_toy_spec(d=3)
    principal = BATCHED[name](spec)
    n, counts = principal.n_arms + extra, np.zeros(principal.n_arms)
    values = np.array([make_outcome(spec, vector).value for vector in principal.arms])
    for step in range(6):
        vectors = principal.ask(None, n)
        principal.tell([make_outcome(spec, vector) for vector in vectors])
        if step:
            counts += np.bincount([principal.find_arm(vector) for vector in vectors], minlength=principal.n_arms)
    assert counts.argmax() == values.argmax() and counts.max() >= 2 * counts.mean()
    assert counts[values.argsort()[: principal.n_arms // 2]].sum() < counts.sum() / 3


@pytest.mark.parametrize("name", ["egreedy", "ucb", "thompson"])
def test_second_step_skips_arms(name):
    spec = make_toy_spec(d=3)
    principal = BATCHED[name](spec)
    principal.tell([make_outcome(spec, vector) for vector in principal.ask(None, 8)])
    assert len(np.unique(principal.ask(None, 8), axis=0)) < 8


class TestBatchedUCB:
    def test_first_step_repeats_no_arm(self):
        principal = shipped.build_ucb(make_toy_spec().proposal_space, Seeds(0), points=2)
        arms = [principal.find_arm(vector) for vector in principal.ask(None, 10)]
        assert sorted(arms[:4]) == sorted(arms[4:8]) == [0, 1, 2, 3] and len(set(arms[8:])) == 2

    def test_pending_plays_change_only_bonus(self):
        """Computed by hand: means 1 and 0.8 with one play each; the bonus is c sqrt(ln t / n) with c = 0.3."""
        spec = make_toy_spec(d=1)
        principal = shipped.build_ucb(spec.proposal_space, Seeds(0), coefficient=0.3, scale=1.0, points=2)
        play(principal, spec, [(0, 1.0), (1, 0.8)])
        pending = np.array([2, 1])
        reference = [1.0 + 0.3 * np.sqrt(np.log(5) / 3), 0.8 + 0.3 * np.sqrt(np.log(5) / 2)]
        assert principal.compute_upper_bounds(0, pending) == pytest.approx(reference)
        arms = [principal.find_arm(vector) for vector in principal.ask(None, 20)]
        counts = np.ones(2)
        for arm in arms:
            index = np.array([1.0, 0.8]) + 0.3 * np.sqrt(np.log(counts.sum()) / counts)
            assert arm == index.argmax()
            counts[arm] += 1
        assert counts.min() > 1

    def test_pending_arm_has_no_index(self):
        spec = make_toy_spec(d=1)
        principal = shipped.build_ucb(spec.proposal_space, Seeds(0), points=3)
        play(principal, spec, [(0, 1.0)])
        arms = [principal.find_arm(vector) for vector in principal.ask(None, 5)]
        assert sorted(arms[:2]) == [1, 2] and arms[2:] == [0, 0, 0]

    @settings(max_examples=30)
    @given(arm_payoffs, st.integers(0, 99), st.integers(1, 6))
    def test_first_candidate_ignores_batch_size(self, payoffs, seed, n):
        spec, first_vectors = make_toy_spec(), []
        for size in (1, n):
            principal = shipped.build_ucb(spec.proposal_space, Seeds(seed), points=3)
            play(principal, spec, payoffs)
            first_vectors.append(principal.ask(None, size)[0].tolist())
        assert first_vectors[0] == first_vectors[1]


@pytest.mark.parametrize("principal", [EpsilonGreedyPrincipal, shipped.build_thompson])
def test_candidates_are_independent_draws(principal):
    """A step with n candidates samples the same arms as n steps without outcomes between them."""
    spec = make_toy_spec()
    single, batch = (principal(spec.proposal_space, Seeds(0), points=3) for _ in range(2))
    for principal_ in (single, batch):
        play(principal_, spec, [(1, 3.0), (4, 2.0)])
    assert np.array_equal(np.concatenate([single.ask() for _ in range(12)]), batch.ask(None, 12))


def test_thompson_recommends_posterior_mean():
    """Two measurements of 5 outweigh one of 6 if the prior mean of 0 has the weight of one measurement."""
    spec = make_toy_spec()
    principal = shipped.build_thompson(spec.proposal_space, Seeds(0), points=3, prior_strength=1.0)
    estimates = PooledEstimates()
    for arm, value in ((0, 6.0), (3, 5.0), (3, 5.0), (7, -1.0)):
        estimates.add(principal.arms[arm], value, None, 1, 1)
    recommendations = principal.recommend(None, 5, estimates)
    assert [principal.find_arm(vector) for vector in recommendations] == [3, 0, 7]  # 10 / 3, 6 / 2, -1 / 2
    assert [principal.find_arm(vector) for vector in principal.recommend(None, 1, estimates)] == [3]
