"""Advantages of turns: definitions, invariances, and comparison with plain loops."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrl.chat_learning import advantages_and_losses

LENGTHS = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@st.composite
def batches(draw):
    """Draw (reward, trajectory, group, observation) of several trajectories."""
    lengths = draw(LENGTHS)
    n = sum(lengths)
    rewards = st.lists(st.floats(-5, 5), min_size=n, max_size=n)
    reward = np.array(draw(rewards))
    groups = np.sort(np.array(draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))))
    observation = draw(st.lists(st.sampled_from("abc"), min_size=n, max_size=n))
    return reward, np.repeat(np.arange(len(lengths)), lengths), np.repeat(groups, lengths), observation


def test_returns_to_go():
    reward, trajectory = np.array([1.0, 2.0, 4.0, 8.0]), np.array([0, 0, 0, 1])
    np.testing.assert_allclose(advantages_and_losses.returns_to_go(reward, trajectory, 0.5), [3.0, 4.0, 4.0, 8.0])


def test_episode_advantages():
    reward = np.array([0.0, 1.0, 3.0, 5.0])
    trajectory, group = np.array([0, 0, 1, 2]), np.array([0, 0, 0, 1])
    np.testing.assert_allclose(
        advantages_and_losses.episode_advantages(reward, trajectory, group), [-1.0, -1.0, 1.0, 0.0]
    )


def test_turn_advantages_compare_equal_indices():
    reward = np.array([0.0, 1.0, 3.0, 0.0, 5.0])
    trajectory, group = np.array([0, 0, 1, 1, 2]), np.zeros(5, dtype=np.int64)
    # Returns to go: (1, 1), (3, 0), (5); means: 3 at index 0, 0.5 at index 1.
    np.testing.assert_allclose(
        advantages_and_losses.turn_advantages(reward, trajectory, group, 1.0), [-2.0, 0.5, 0.0, -0.5, 2.0]
    )


def test_anchor_advantages():
    reward = np.array([1.0, 0.0, 0.0, 2.0])
    trajectory, group = np.array([0, 0, 1, 1]), np.zeros(4, dtype=np.int64)
    episode = advantages_and_losses.episode_advantages(reward, trajectory, group)
    anchor = advantages_and_losses.anchor_advantages(reward, trajectory, group, ["x", "y", "y", "x"], 1.0, 2.0)
    # Returns to go: x: 1 and 2; y: 0 and 2.
    np.testing.assert_allclose(anchor - episode, 2.0 * np.array([-0.5, -1.0, 1.0, 0.5]))


@given(batches(), st.floats(0, 1))
def test_returns_to_go_equal_loop(batch, gamma):
    reward, trajectory, _, _ = batch
    expected = [
        sum(gamma ** (k - i) * reward[k] for k in range(i, len(reward)) if trajectory[k] == trajectory[i])
        for i in range(len(reward))
    ]
    np.testing.assert_allclose(advantages_and_losses.returns_to_go(reward, trajectory, gamma), expected, atol=1e-9)


@given(batches())
def test_mean_over_group_is_zero(batch):
    reward, trajectory, group, observation = batch
    turns = advantages_and_losses.turn_advantages(reward, trajectory, group, 1.0)
    index = advantages_and_losses.turn_indices(trajectory)
    for cell in set(zip(group.tolist(), index.tolist(), strict=True)):
        members = (group == cell[0]) & (index == cell[1])
        assert abs(turns[members].sum()) < 1e-9
    episodes = advantages_and_losses.episode_advantages(reward, trajectory, group)
    first = index == 0
    for number in set(group.tolist()):
        assert abs(episodes[first & (group == number)].sum()) < 1e-9
    steps = advantages_and_losses.anchor_advantages(reward, trajectory, group, observation, 0.9, 1.0) - episodes
    for cell in set(zip(group.tolist(), observation, strict=True)):
        members = (group == cell[0]) & (np.array(observation) == cell[1])
        assert abs(steps[members].sum()) < 1e-9


@given(batches(), st.floats(-3, 3))
def test_constant_return_has_no_advantage(batch, level):
    """Adding a constant to the return of every episode of a group changes no advantage of episodes."""
    reward, trajectory, group, _ = batch
    last = np.append(trajectory[1:] != trajectory[:-1], True)
    shifted = reward + level * last
    np.testing.assert_allclose(
        advantages_and_losses.episode_advantages(shifted, trajectory, group),
        advantages_and_losses.episode_advantages(reward, trajectory, group),
        atol=1e-9,
    )


@given(batches(), st.data())
def test_replay_advantages_telescope(batch, data):
    reward, trajectory, _, _ = batch
    n = len(reward)
    value = np.array(data.draw(st.lists(st.floats(-5, 5), min_size=n, max_size=n)))
    advantage = advantages_and_losses.replay_advantages(reward, trajectory, value, 1.0)
    for number in set(trajectory.tolist()):
        members = trajectory == number
        first = np.flatnonzero(members)[0]
        np.testing.assert_allclose(advantage[members].sum(), reward[members].sum() - value[first], atol=1e-9)


@pytest.mark.parametrize("scale", ["batch", "group", "none"])
def test_scale(scale):
    advantage, group = np.array([-1.0, 1.0, -10.0, 10.0]), np.array([0, 0, 1, 1])
    scaled = advantages_and_losses.scale_advantages(advantage, group, scale)
    expected = {"batch": advantage / advantage.std(), "group": np.sign(advantage), "none": advantage}[scale]
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)
    assert advantages_and_losses.scale_advantages(np.zeros(2), np.zeros(2, dtype=np.int64), scale).tolist() == [
        0.0,
        0.0,
    ]
