"""Weights of the score-function estimator: no bias over complete trajectories, and correct ends of episodes."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from llmrl.algorithms.meta_gradient import compute_direct_derivative, compute_step_credits
from llmrl.core.records import MetaSettings, Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.welfare_measures import OBJECTIVES

NO_GAINS = np.zeros(1)


def rollout(base, done=None, reward=None, reward_jacobian=None):
    """Return a rollout of one agent; `base` has shape [T, n_envs]."""
    base = torch.as_tensor(base, dtype=torch.float32)
    if done is None:
        done = torch.zeros(base.shape, dtype=torch.bool)
        done[-1] = True
    done = torch.as_tensor(done)
    episodes = [Episode(NO_GAINS, NO_GAINS, 1, {}, NO_GAINS, NO_GAINS, int(g)) for _, g in done.nonzero().tolist()]
    reward = base if reward is None else torch.as_tensor(reward, dtype=torch.float32)
    empty = torch.zeros((*base.shape, 1))
    return Rollout(
        {}, None, empty.long(), empty, empty, reward[..., None], base[..., None], done, done & False, done & False,
        empty, {}, episodes, reward_jacobian,
    )  # fmt: skip


def format_values(values):
    return Outcome(np.zeros(1), float(np.mean(values)), np.asarray(values, dtype=float))


# What two successive actions pay, of which the second depends on the first.
FIRST, SECOND = torch.tensor([1.0, -2.0]), torch.tensor([[0.0, 3.0], [4.0, -1.0]])


@pytest.mark.parametrize("settings", [MetaSettings(), MetaSettings(baseline="past", past_return=2.0)], ids=str)
@pytest.mark.parametrize("objective", ["mean", "minimum"])
@pytest.mark.parametrize("games", [1, 2])
def test_two_step_estimate_has_no_bias(settings, objective, games):
    """Check that the sum over all trajectories, weighted by probability, is the derivative of the expected return."""
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.7]], dtype=torch.float64, requires_grad=True)  # [step, action]
    log_p = theta.log_softmax(-1)
    courses = list(itertools.product(range(2), repeat=2))
    total = sum(
        (log_p[0, a] + log_p[1, b]).exp() * (FIRST[a] + SECOND[a, b]) for a, b in courses
    )  # fmt: skip
    [expected] = torch.autograd.grad(total, theta, retain_graph=True)
    mean = torch.zeros_like(theta)
    for episode_actions in itertools.product(courses, repeat=games):
        base = torch.tensor([[FIRST[a] for a, _ in episode_actions], [SECOND[a, b] for a, b in episode_actions]])
        [credit] = compute_step_credits(
            [rollout(base)], OBJECTIVES[objective], 0.0, format_values(base.sum(0).numpy()), settings
        )
        action_tensor = torch.tensor(episode_actions).T  # [step, game]
        action_log_p = log_p.gather(1, action_tensor)
        [gradient] = torch.autograd.grad((credit * action_log_p).sum(), theta, retain_graph=True)
        mean += action_log_p.detach().sum().exp() * gradient
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-9)


def test_baseline_averages_parallel_episodes():
    """Use two rounds of a game with short episodes: steps 0-1, steps 2-4, and an unfinished episode."""
    done = torch.tensor([[0, 1, 0, 0, 1, 0]]).T.bool()
    base = torch.tensor([[1.0, 2.0, 10.0, 20.0, 30.0, 99.0]]).T
    [credit] = compute_step_credits(
        [rollout(base, done)], OBJECTIVES["mean"], 0.0, format_values([3, 60]), MetaSettings(past_return=6.0)
    )
    to_go = [3, 2, 60, 50, 30]
    baseline = [60, 50, 3, 2, 6.0 * (1 - 2 / 6)]  # nobody else reached a third step
    assert credit[:, 0].tolist() == pytest.approx([*((np.array(to_go) - baseline) / 2), 0.0])


def test_episode_values_reach_steps():
    """Order episodes by end: by time, then by game, then by rollout."""
    done = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]]).bool()
    pieces = [rollout(torch.zeros(4, 2), done), rollout(torch.zeros(4, 2), done)]
    settings = MetaSettings(baseline="past")
    credits = compute_step_credits(
        pieces, OBJECTIVES["sustainability"], 0.0, format_values([1, 2, 3, 4, 5, 6, 7, 8]), settings
    )
    assert (credits[0] * 8).tolist() == [[2, 1], [2, 3], [4, 3], [4, 0]]
    assert (credits[1] * 8).tolist() == [[6, 5], [6, 7], [8, 7], [8, 0]]


def test_discount_with_baseline():
    settings = MetaSettings(gamma=0.5, baseline="past", past_return=1.0)
    [credit] = compute_step_credits(
        [rollout([[1.0], [2.0], [4.0]])], OBJECTIVES["sum"], 0.0, format_values([7]), settings
    )
    assert credit[:, 0].tolist() == pytest.approx([1 + 1 + 1 - 1, 2 + 2 - 1, 4 - 1])


def test_payments_enter_action_and_direct_gradient():
    base, reward = [[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [3.0, 0.0]]
    reward_jacobian = torch.ones(2, 2, 1, 1)
    sampled_rollout = rollout(base, reward=reward, reward_jacobian=reward_jacobian)
    [credit] = compute_step_credits(
        [sampled_rollout], OBJECTIVES["sum"], 0.5, format_values([-2.0, -1.0]), MetaSettings(baseline="past")
    )
    assert (credit * 2).tolist() == [[-2.0, -1.0], [-1.5, 0.0]]
    assert compute_direct_derivative([sampled_rollout, sampled_rollout], 0.5).tolist() == [-1.0]
    truncated_rollout = dataclasses.replace(sampled_rollout, terminated=torch.tensor([[True, False], [False, False]]))
    assert compute_direct_derivative([truncated_rollout], 0.5).tolist() == [-0.5]
