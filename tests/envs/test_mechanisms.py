"""Taxes and incentives: cases computed by hand, and properties."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from llmrl.core.errors import ConfigError
from llmrl.core.spaces import Parameter, ParameterSpace
from llmrl.envs.mechanisms import BracketedTax, Incentives, Mechanism, SocietyEvents
from some import mark_long_except

RATES = np.array([[0.1, 0.2, 0.5]], np.float32)
PAY = np.array([[1.0, 2.0, 3.0]], np.float32)


def events(raw, cleaned=None, present=None):
    raw = np.array(raw, np.float32)
    return SocietyEvents(
        raw,
        np.zeros_like(raw) if cleaned is None else np.array(cleaned, np.float32),
        np.ones(raw.shape, bool) if present is None else np.array(present, bool),
    )


def play_tax(rewards, values=RATES, **options):
    """Return the rewards after tax of a sequence of steps of one game, [T, n_agents]."""
    tax = BracketedTax(**options)
    return np.array([tax.settle(events([raw]), values).reward[0] for raw in rewards])


def test_mechanisms_satisfy_protocol():
    assert isinstance(BracketedTax(), Mechanism)
    assert isinstance(Incentives(), Mechanism)


def test_single_apple_tax_in_lowest_bracket():
    # Income 1: bracket [0, 3), tax 4 * 0.1 = 0.4, shared by two.
    np.testing.assert_allclose(play_tax([[1, 0]])[0], [1 - 0.4 + 0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize(("income", "rate"), [(1, 0.1), (2, 0.1), (3, 0.2), (4, 0.2), (5, 0.5), (6, 0.5), (11, 0.5)])
def test_bracket_edges_belong_to_upper_bracket(income, rate):
    rewards = play_tax([[1, 0]] * income)
    assert rewards[-1][1] == pytest.approx(4 * rate / 2)


def test_income_covers_last_ten_steps():
    early, idle = [[1, 0]] * 2, [0, 0]
    # Steps 0 and 1 earned; at step 10 step 0 is the tenth before it and still counts, at step 11 it does not.
    windowed = play_tax([*early, *[idle] * 8, [1, 0]])
    outside = play_tax([*early, *[idle] * 9, [1, 0]])
    assert windowed[-1][1] == pytest.approx(4 * 0.2 / 2)
    assert outside[-1][1] == pytest.approx(4 * 0.1 / 2)


def test_only_current_reward_is_taxed():
    rewards = play_tax([[1, 0]] * 6 + [[0, 0]])
    np.testing.assert_array_equal(rewards[-1], [0, 0])


def test_masked_reset_clears_income():
    tax, values = BracketedTax(), np.repeat(RATES, 2, axis=0)
    for _ in range(4):
        tax.settle(events([[1, 0], [1, 0]]), values)
    tax.reset(np.array([True, False]))
    reward = tax.settle(events([[1, 0], [1, 0]]), values).reward
    np.testing.assert_allclose(reward[:, 1], [4 * 0.1 / 2, 4 * 0.5 / 2], rtol=1e-6)


@pytest.mark.parametrize("tensors", [False, True])
def test_restored_tax_knows_income(tensors):
    import torch

    as_array = torch.as_tensor if tensors else np.asarray

    def step(tax, raw):
        raw = as_array(np.array([raw], np.float32))
        society_events = SocietyEvents(raw, None, as_array(np.ones((1, 2), bool)))
        return tax.settle(society_events, as_array(RATES)).reward_jacobian.tolist()

    tax, restored, new = BracketedTax(window=2), BracketedTax(window=2), BracketedTax(window=2)
    assert tax.state_dict() == {"past": None}
    for raw in ([2, 0], [1, 1]):
        step(tax, raw)
    state = tax.state_dict()
    expected = [step(tax, raw) for raw in ([1, 1], [1, 0])]
    restored.load_state_dict(state)
    assert [step(restored, raw) for raw in ([1, 1], [1, 0])] == expected
    assert step(new, [1, 1]) != expected[0]
    assert state["past"].tolist() == [[[1, 1]], [[2, 0]]], "newest first, and a copy"


@pytest.mark.parametrize("edges", [[0], [0, 1, 2, 3]])
def test_count_per_bracket(edges):
    tax = BracketedTax(edges=edges, multiplier=0)
    settlement = tax.settle(events([[2, 1, 0]]), np.ones((1, len(edges)), np.float32))
    assert set(settlement.metrics) == set(tax.metrics) == {"tax_collected", *tax.details}
    assert sum(settlement.metrics[name][0] for name in tax.details) == 3 and len(tax.details) == len(edges)


def test_tax_collected_precedes_redistribution():
    settlement = BracketedTax().settle(events([[1, 1, 0]]), RATES)
    assert settlement.metrics["tax_collected"][0] == pytest.approx(0.8)


@pytest.mark.parametrize("edges", [[], [1, 3], [0, 3, 3], [0, 5, 3]])
def test_rejects_impossible_brackets(edges):
    with pytest.raises(ConfigError, match=r"brackets .*taxes"):
        BracketedTax(edges=edges)


rewards = arrays.arrays(np.float32, (12, 3, 4), elements=st.sampled_from([0.0, 1.0, 2.0]))
rates = arrays.arrays(np.float32, (3, 3), elements=st.floats(0, 1, width=32))


@given(rewards, rates, st.integers(0, 11), st.sampled_from([[0], [0, 3, 5], [0, 1, 2]]))
def test_tax_preserves_reward_sum(sequence, values, window, edges):
    tax, values = BracketedTax(edges=edges, window=window), values[:, : len(edges)]
    for raw in sequence:
        settlement = tax.settle(events(raw), values)
        np.testing.assert_allclose(settlement.reward.sum(-1), raw.sum(-1), atol=1e-4)
        np.testing.assert_array_equal(settlement.base_reward, raw)


@given(rewards, rates)
def test_tax_window_matches_sequence_sum(sequence, values):
    """Compare with the definition, computed from the entire sequence at each step."""
    tax = BracketedTax()
    for t, raw in enumerate(sequence):
        income = sequence[max(0, t - 10) : t + 1].sum(axis=0)
        bracket = np.digitize(income, [3, 5])
        due = 4 * np.take_along_axis(values, bracket.reshape(3, -1), axis=1).reshape(raw.shape) * raw
        expected = raw - due + due.mean(-1, keepdims=True)
        settlement = tax.settle(events(raw), values)
        np.testing.assert_allclose(settlement.reward, expected, atol=1e-4)
        np.testing.assert_allclose(settlement.metrics["tax_collected"], due.sum(-1), atol=1e-4)
        for k in range(3):
            np.testing.assert_array_equal(
                settlement.metrics[f"apples_bracket_{k + 1}"], (raw * (bracket.reshape(raw.shape) == k)).sum(-1)
            )


# raw reward, cells cleaned, present -> base reward, paid for (0 eat, 1 clean, 2 other, None nothing)
CASES_ANY = [
    (1, 0, True, 0.1, 0),
    (2, 0, True, 0.2, 0),
    (0, 1, True, -1.0, 1),
    (0, 2, True, -1.0, 1),
    (0, 3, True, -1.0, 1),
    (1, 1, True, 0.1, 0),
    (0, 0, True, 0.0, 2),
    (0, 0, False, 0.0, None),
]
CASES_EXACT = [
    (1, 0, True, 0.1, 0),
    (2, 0, True, 2.0, 2),
    (0, 1, True, -1.0, 1),
    (0, 2, True, 0.0, 2),
    (0, 3, True, 0.0, 2),
    (0, 0, True, 0.0, 2),
]
INCENTIVE_CASES = [("any", *case) for case in CASES_ANY] + [("exactly_one", *case) for case in CASES_EXACT]


@pytest.mark.parametrize(("count", "raw", "cleaned", "present", "base", "payments"), INCENTIVE_CASES)
def test_incentives(count, raw, cleaned, present, base, payments):
    settlement = Incentives(0.1, clean_count=count).settle(events([[raw]], [[cleaned]], [[present]]), PAY)
    due = 0 if payments is None else PAY[0, payments]
    assert settlement.base_reward[0, 0] == pytest.approx(base)
    assert settlement.reward[0, 0] == pytest.approx(base + due)
    assert settlement.metrics["incentives_paid"][0] == pytest.approx(due)
    kind_totals = [settlement.metrics[f"incentives_{kind}"][0] for kind in ("eat", "clean", "other")]
    assert kind_totals == pytest.approx([due * (k == payments) for k in range(3)])
    assert settlement.metrics["paid_cleans"][0] == (payments == 1)


def test_cleaning_reward_equals_parameter():
    settlement = Incentives(2.0, -0.25).settle(events([[0, 3, 0]], [[2, 0, 0]]), PAY)
    assert settlement.base_reward.tolist() == [[-0.25, 6.0, 0.0]]


def test_removed_players_are_paid_optionally():
    settlement = Incentives(reward_removed=True).settle(events([[0]], [[0]], [[False]]), PAY)
    assert settlement.reward[0, 0] == pytest.approx(3.0)


@given(rewards, arrays.arrays(np.float32, (12, 3, 4), elements=st.sampled_from([0.0, 1.0, 3.0])))
def test_step_is_paid_once(raw, cleaned):
    incentives = Incentives()
    for r, c in zip(raw, cleaned, strict=True):
        assert (incentives.settle(events(r, c), np.ones((3, 3), np.float32)).reward_jacobian.sum(-1) == 1).all()


@given(rewards, arrays.arrays(np.float32, (12, 3, 4), elements=st.sampled_from([0.0, 1.0, 3.0])))
def test_agent_funded_payments_preserve_sum(raw, cleaned):
    balanced, free = Incentives(budget_balanced=True), Incentives()
    values = np.tile(PAY, (3, 1))
    for r, c in zip(raw, cleaned, strict=True):
        left, right = balanced.settle(events(r, c), values), free.settle(events(r, c), values)
        np.testing.assert_allclose(left.reward.sum(1), left.base_reward.sum(1), atol=1e-4)
        # What an agent gains over another one is the same.
        np.testing.assert_allclose(
            left.reward - left.reward.mean(1, keepdims=True),
            right.reward - right.reward.mean(1, keepdims=True),
            atol=1e-4,
        )
        assert all((left.metrics[name] == right.metrics[name]).all() for name in free.metrics)


def test_payers_are_declared():
    assert Incentives().rule_text != Incentives(budget_balanced=True).rule_text
    assert Incentives(budget_balanced=True).space.describe_effects(PAY[0]).endswith("all agents pay for it equally.")
    assert Incentives(budget_balanced=True).facts["budget_balanced"] is True


def test_games_have_separate_values():
    values = np.array([[0, 0, 1], [0, 0, 3]], np.float32)
    reward = Incentives().settle(events([[0, 0], [0, 0]]), values).reward
    np.testing.assert_array_equal(reward, [[1, 1], [3, 3]])


def as_tensors(events):
    import torch

    return SocietyEvents(*(torch.from_numpy(x) for x in (events.raw_reward, events.n_cleaned, events.is_present)))


present = arrays.arrays(bool, (12, 3, 4))
pays = arrays.arrays(np.float32, (3, 3), elements=st.floats(0, 1, width=32))
masks = arrays.arrays(bool, (12, 3), elements=st.integers(0, 5).map(lambda x: x == 0))
MAKERS = [
    lambda: BracketedTax(),
    lambda: BracketedTax(window=0),
    lambda: BracketedTax(window=2, multiplier=1.5),
    lambda: Incentives(eat_reward=0.1, clean_reward=-0.3),
    lambda: Incentives(clean_count="exactly_one", reward_removed=True),
    lambda: Incentives(budget_balanced=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("make", mark_long_except(MAKERS[2:4], MAKERS))
@given(rewards, arrays.arrays(np.float32, (12, 3, 4), elements=st.sampled_from([0.0, 1.0, 3.0])), present, pays, masks)
def test_tensors_match_arrays(make, raw, cleaned, is_present, values, begins):
    """Include games that restart meanwhile."""
    torch = pytest.importorskip("torch")
    on_arrays, on_tensors = make(), make()
    for r, c, p, mask in zip(raw, cleaned, is_present, begins, strict=True):
        society_events = events(r, c, p)
        expected, tensor_settlement = (
            on_arrays.settle(society_events, values),
            on_tensors.settle(as_tensors(society_events), torch.tensor(values)),
        )
        pairs = [
            (tensor_settlement.base_reward, expected.base_reward),
            (tensor_settlement.reward_jacobian, expected.reward_jacobian),
        ]
        pairs.append((tensor_settlement.reward, expected.reward))
        pairs += [(tensor_settlement.metrics[name], x) for name, x in expected.metrics.items()]
        assert len(pairs) == 3 + len(on_arrays.metrics)
        for x, y in pairs:
            assert x.dtype == torch.float32 and y.dtype == np.float32
            np.testing.assert_allclose(x.numpy(), y, rtol=1e-6, atol=1e-6)
        for settlement_kind in (on_arrays, on_tensors):
            settlement_kind.reset(mask)


@pytest.mark.slow
@pytest.mark.parametrize("make", MAKERS)
def test_mechanisms_avoid_device_sync(make):
    """Use tensors on `meta`, which have no values."""
    torch = pytest.importorskip("torch")
    mechanism, x = make(), torch.zeros(3, 4, device="meta")
    values = torch.zeros(3, 3, device="meta")
    for _ in range(3):
        settlement = mechanism.settle(SocietyEvents(x, x, x.bool()), values)
        mechanism.reset(np.array([True, False, True]))
    assert settlement.reward.is_meta and all(m.is_meta for m in settlement.metrics.values())


class TestWords:
    """Exact texts about a mechanism for prompts, players and plans."""

    def test_tax(self):
        tax = BracketedTax()
        span = "in the last 11 steps pay 4 times this rate of an apple for each apple they eat"
        spans = (("0 to under 3", "under 3"), ("3 to under 5", "3 to under 5"), ("5 or more", "5 or more"))
        assert tax.space == ParameterSpace(
            "tax",
            tuple(
                Parameter(
                    f"rate_{k}",
                    0.0,
                    1.0,
                    "tax rate",
                    f"players who earned {long} apples {span}",
                    effect=f"{{value:.0%}} from who ate {short}",
                    effect_scale=4.0,
                )
                for k, (long, short) in enumerate(spans, 1)
            ),
            sentence="Takes of each apple {effects} in the last 11 steps; all agents share it equally.",
        )
        explanation = "apples that you ate in these steps; with those of the next step they decide which rate holds"
        assert tax.player_facts == {"apples_in_the_last_10_steps": explanation}
        assert tax.metrics == {"tax_collected": "sum"} | {f"apples_bracket_{k}": "sum" for k in (1, 2, 3)}
        assert tax.base_reward_text == "an apple 1"
        assert BracketedTax(window=0).player_facts == {}

    @pytest.mark.parametrize(
        ("multiplier", "facts"), [(4.0, {"takes_all": 0.25}), (1.0, {"takes_all": 1.0}), (0.5, {})]
    )
    def test_confiscatory_rate(self, multiplier, facts):
        assert BracketedTax(multiplier=multiplier).facts == facts

    @pytest.mark.parametrize(
        ("options", "apple", "cells", "additional", "highest"),
        [
            ({}, "1", "at least one dirty cell", "", 3.0),
            (
                {"clean_count": "exactly_one", "reward_removed": True, "eat_reward": 0.1, "max_incentive": 2.0},
                "0.1",
                "exactly one dirty cell",
                " (also cleaning two or three cells at once and being out of the game after a zap)",
                2.0,
            ),
            (
                {"reward_removed": True},
                "1",
                "at least one dirty cell",
                " (also being out of the game after a zap)",
                3.0,
            ),
        ],
    )
    def test_incentives(self, options, apple, cells, additional, highest):
        incentives = Incentives(**options)
        acts = {
            "eat": (f"eating an apple, which is worth {apple}", "each apple eaten"),
            "clean": (f"cleaning {cells}, which is worth -1", "each step of cleaning"),
            "other": (f"doing anything else{additional}, which is worth 0", "each other step"),
        }
        assert incentives.space == ParameterSpace(
            "incentives",
            tuple(
                Parameter(
                    name,
                    0.0,
                    highest,
                    "reward per step",
                    f"paid for a step spent {act} before payments",
                    effect=f"{{value:.3g}} for {payments}",
                )
                for name, (act, payments) in acts.items()
            ),
            sentence="Pays agents {effects}.",
        )
        exact, removed = options.get("clean_count") == "exactly_one", options.get("reward_removed", False)
        explanation = {"pays_cleaning": True, "exactly_one": exact, "reward_removed": removed, "budget_balanced": False}
        assert incentives.facts == explanation
        assert incentives.base_reward_text == f"an apple {apple}, a step of cleaning -1"


def test_facts_include_player_earnings():
    tax = BracketedTax(window=2)
    for raw, expected in (([1, 0], [1, 0]), ([1, 1], [2, 1]), ([0, 1], [1, 2]), ([0, 0], [0, 1])):
        settlement = tax.settle(events([raw]), RATES)
        assert settlement.player_facts["apples_in_the_last_2_steps"].tolist() == [expected]
    assert BracketedTax(window=0).settle(events([[1, 0]]), RATES).player_facts == {}


def test_single_precision_payments_add_up():
    for mechanism, values in ((BracketedTax(), RATES), (Incentives(), PAY)):
        society_events = events([[1, 0], [1, 1]], [[0, 2], [0, 0]])
        settlement = mechanism.settle(society_events, np.repeat(values, 2, axis=0))
        assert settlement.base_reward.dtype == settlement.reward_jacobian.dtype == np.float32
        assert all(metric.shape == (2,) for metric in settlement.metrics.values())
    assert settlement.metrics["incentives_paid"].tolist() == [3.0, 2.0]
    tax = BracketedTax()
    collected = tax.settle(events([[1, 0], [1, 1]]), np.repeat(RATES, 2, axis=0)).metrics["tax_collected"]
    assert collected.tolist() == pytest.approx([0.4, 0.8])
