"""The score-function estimator's weights: unbiased over whole courses of events, and right at episodes' ends."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from llmrl.algorithms.meta_gradient import direct_derivative, step_credits
from llmrl.core.records import MetaSettings, Outcome
from llmrl.core.rollouts import Episode, Rollout
from llmrl.core.welfare_measures import OBJECTIVES

NO_GAINS = np.zeros(1)


def rollout(base, ended=None, reward=None, reward_jacobian=None):
    """One agent; `base` [T, n_envs]."""
    base = torch.as_tensor(base, dtype=torch.float32)
    if ended is None:
        ended = torch.zeros(base.shape, dtype=torch.bool)
        ended[-1] = True
    ended = torch.as_tensor(ended)
    episodes = [Episode(NO_GAINS, NO_GAINS, 1, {}, NO_GAINS, NO_GAINS, int(g)) for _, g in ended.nonzero().tolist()]
    reward = base if reward is None else torch.as_tensor(reward, dtype=torch.float32)
    empty = torch.zeros((*base.shape, 1))
    return Rollout(
        {}, None, empty.long(), empty, empty, reward[..., None], base[..., None], ended, ended & False, ended & False,
        empty, {}, episodes, reward_jacobian,
    )  # fmt: skip


def told(values):
    return Outcome(np.zeros(1), float(np.mean(values)), np.asarray(values, dtype=float))


# What two successive actions pay, of which the second depends on the first.
FIRST, SECOND = torch.tensor([1.0, -2.0]), torch.tensor([[0.0, 3.0], [4.0, -1.0]])


@pytest.mark.parametrize("settings", [MetaSettings(), MetaSettings(baseline="past", past_return=2.0)], ids=str)
@pytest.mark.parametrize("objective", ["mean", "minimum"])
@pytest.mark.parametrize("games", [1, 2])
def test_unbiased_over_two_steps(settings, objective, games):
    """The sum over all courses of events, weighted by their chances, is the derivative of the expected return."""
    theta = torch.tensor([[0.3, -0.2], [0.1, 0.7]], dtype=torch.float64, requires_grad=True)  # [step, action]
    log_p = theta.log_softmax(-1)
    courses = list(itertools.product(range(2), repeat=2))
    total = sum(
        (log_p[0, a] + log_p[1, b]).exp() * (FIRST[a] + SECOND[a, b]) for a, b in courses
    )  # fmt: skip
    [expected] = torch.autograd.grad(total, theta, retain_graph=True)
    mean = torch.zeros_like(theta)
    for played in itertools.product(courses, repeat=games):
        base = torch.tensor([[FIRST[a] for a, _ in played], [SECOND[a, b] for a, b in played]])
        [credit] = step_credits([rollout(base)], OBJECTIVES[objective], 0.0, told(base.sum(0).numpy()), settings)
        taken = torch.tensor(played).T  # [step, game]
        chosen = log_p.gather(1, taken)
        [gradient] = torch.autograd.grad((credit * chosen).sum(), theta, retain_graph=True)
        mean += chosen.detach().sum().exp() * gradient
    torch.testing.assert_close(mean, expected, rtol=1e-6, atol=1e-9)


def test_other_episodes_are_the_baseline_at_the_same_step_of_theirs():
    """Two rounds of a game whose episodes end early: steps 0-1, steps 2-4, and one that is not finished."""
    ended = torch.tensor([[0, 1, 0, 0, 1, 0]]).T.bool()
    base = torch.tensor([[1.0, 2.0, 10.0, 20.0, 30.0, 99.0]]).T
    [credit] = step_credits(
        [rollout(base, ended)], OBJECTIVES["mean"], 0.0, told([3, 60]), MetaSettings(past_return=6.0)
    )
    to_go = [3, 2, 60, 50, 30]
    baseline = [60, 50, 3, 2, 6.0 * (1 - 2 / 6)]  # nobody else reached a third step
    assert credit[:, 0].tolist() == pytest.approx([*((np.array(to_go) - baseline) / 2), 0.0])


def test_episodes_values_go_to_their_steps():
    """In the order they finished: by time, then by game, then by rollout."""
    ended = torch.tensor([[0, 1], [1, 0], [0, 1], [1, 0]]).bool()
    pieces = [rollout(torch.zeros(4, 2), ended), rollout(torch.zeros(4, 2), ended)]
    settings = MetaSettings(baseline="past")
    credits = step_credits(pieces, OBJECTIVES["sustainability"], 0.0, told([1, 2, 3, 4, 5, 6, 7, 8]), settings)
    assert (credits[0] * 8).tolist() == [[2, 1], [2, 3], [4, 3], [4, 0]]
    assert (credits[1] * 8).tolist() == [[6, 5], [6, 7], [8, 7], [8, 0]]


def test_discount_and_published_baseline():
    settings = MetaSettings(gamma=0.5, baseline="past", past_return=1.0)
    [credit] = step_credits([rollout([[1.0], [2.0], [4.0]])], OBJECTIVES["sum"], 0.0, told([7]), settings)
    assert credit[:, 0].tolist() == pytest.approx([1 + 1 + 1 - 1, 2 + 2 - 1, 4 - 1])


def test_spending_counts_for_actions_and_for_itself():
    base, reward = [[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [3.0, 0.0]]
    reward_jacobian = torch.ones(2, 2, 1, 1)
    played = rollout(base, reward=reward, reward_jacobian=reward_jacobian)
    [credit] = step_credits([played], OBJECTIVES["sum"], 0.5, told([-2.0, -1.0]), MetaSettings(baseline="past"))
    assert (credit * 2).tolist() == [[-2.0, -1.0], [-1.5, 0.0]]
    assert direct_derivative([played, played], 0.5).tolist() == [-1.0]
    unfinished = dataclasses.replace(played, terminated=torch.tensor([[True, False], [False, False]]))
    assert direct_derivative([unfinished], 0.5).tolist() == [-0.5]
