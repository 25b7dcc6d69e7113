"""Rewards compared with values computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shipped
from llmrl.core.errors import ConfigError
from llmrl.finetuning.rewards import REWARDS, EvaluatedReply, ReturnScale

SCALE = ReturnScale(-200.0, 100.0)
PAPER_SCALE = ReturnScale(-200.0, 100.0, uses_published_formula=True)


def evaluated_reply(value=None, history=(0.0,), vector=(1.0,), in_bounds=True, is_repeated=False):
    returns = np.zeros(0) if value is None else np.array([value - 1.0, value + 1.0])
    vector = None if vector is None else np.array(vector)
    return EvaluatedReply(vector, in_bounds, returns, np.array(history, dtype=float), is_repeated)


UNREADABLE = evaluated_reply(vector=None, in_bounds=False)


@pytest.mark.parametrize(
    ("name", "example", "reward"),
    [
        ("valid", evaluated_reply(50.0), 1.0),
        ("valid", evaluated_reply(in_bounds=False), 1.0),
        ("valid", UNREADABLE, 0.0),
        ("in_bounds", evaluated_reply(50.0), 1.0),
        ("in_bounds", evaluated_reply(in_bounds=False), 0.0),
        ("in_bounds", UNREADABLE, 0.0),
        ("scaled_return", evaluated_reply(-50.0), 0.5),
        ("scaled_return", evaluated_reply(-500.0), 0.0),
        ("scaled_return", evaluated_reply(500.0), 1.0),
        ("scaled_return", evaluated_reply(in_bounds=False), 0.0),
        # g(best) = 2/3, g(new) = 5/6: half of what was left.
        ("improvement", evaluated_reply(50.0, (-200.0, 0.0)), 0.5),
        ("improvement", evaluated_reply(-50.0, (0.0,)), 0.0),
        ("improvement", evaluated_reply(100.0, (100.0,)), 1.0),
        ("improvement", evaluated_reply(99.0, (150.0,)), 0.0),
        ("improvement", UNREADABLE, 0.0),
        ("rank", evaluated_reply(0.0, (-1.0, 0.0, 1.0, 2.0)), 0.375),
        ("rank", evaluated_reply(3.0, (-1.0, 0.0)), 1.0),
        ("rank", UNREADABLE, 0.0),
        ("repeat", evaluated_reply(0.0, is_repeated=True), -1.0),
        ("repeat", evaluated_reply(0.0), 0.0),
    ],
)
def test_reward_values(name, example, reward):
    assert REWARDS[name](example, SCALE) == pytest.approx(reward)


def test_paper_improvement_vanishes_near_optimum():
    good = evaluated_reply(97.0, (94.0,))  # g: 0.98 to 0.99
    assert REWARDS["improvement"](good, PAPER_SCALE) == pytest.approx(0.01 * 0.99 / 0.98)
    assert REWARDS["improvement"](good, SCALE) == pytest.approx(0.5)
    assert REWARDS["improvement"](evaluated_reply(40.0, (-200.0,)), PAPER_SCALE) == pytest.approx(
        0.8
    )  # g(best) = 0: g(new)


@given(
    value=st.one_of(st.none(), st.floats(-1e4, 1e4)),
    history=st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=5),
    paper=st.booleans(),
)
def test_rewards_stay_in_range(value, history, paper):
    scale = ReturnScale(-200.0, 100.0, paper)
    for name, reward in REWARDS.items():
        low = -1.0 if name == "repeat" else 0.0
        assert low <= reward(evaluated_reply(value, history), scale) <= 1.0


@given(
    low=st.floats(-150, 80), increase=st.floats(0, 50), history=st.lists(st.floats(-150, 99), min_size=1, max_size=4)
)
def test_rewards_increase_with_return(low, increase, history):
    for name in ("scaled_return", "improvement", "rank"):
        worse, better = evaluated_reply(low, history), evaluated_reply(low + increase, history)
        assert REWARDS[name](better, SCALE) >= REWARDS[name](worse, SCALE)


def test_weighted_sum_ignores_unlisted_rewards():
    rewards = shipped.build_rewards(valid=0.5, in_bounds=0.0, scaled_return=2.0, improvement=0.0, rank=1.0, repeat=0.25)
    assert list(rewards.weights) == ["valid", "scaled_return", "rank", "repeat"]
    attempt_ = evaluated_reply(-50.0, (-60.0, 0.0), is_repeated=True)
    assert rewards(attempt_, SCALE) == pytest.approx(0.5 + 2 * 0.5 + 0.5 - 0.25)


def test_default_scale_comes_from_dataset():
    values = np.array([3.0, -7.0, 5.0])
    assert shipped.build_rewards().scale(values) == ReturnScale(-7.0, 5.0)
    assert shipped.build_rewards(low=-10.0, parity=True).scale(values) == ReturnScale(-10.0, 5.0, True)
    with pytest.raises(ConfigError, match=r"low=3 .*high=3"):
        shipped.build_rewards().scale(np.array([3.0, 3.0]))


def test_impossible_settings_raise():
    with pytest.raises(ConfigError, match=r"weight 0; .*rewards\."):
        shipped.build_rewards(**dict.fromkeys(REWARDS, 0.0))
    with pytest.raises(ConfigError, match=r"low=1 .*high=1"):
        shipped.build_rewards(low=1.0, high=1.0)
