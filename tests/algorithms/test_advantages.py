"""Advantages, compared with a slow reference implementation of the definition."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrl.algorithms.advantages_and_losses import generalized_advantages, normalize_advantages


def reference(reward, value, next_value, done, gamma, lam):
    """Compute A_t = sum_k (gamma lam)^k delta_{t+k}, up to and including the last step of the episode."""
    steps = len(reward)
    advantages = []
    for t in range(steps):
        total, weight = 0.0, 1.0
        for k in range(t, steps):
            total += weight * (reward[k] + gamma * next_value[k] - value[k])
            weight *= gamma * lam
            if done[k]:
                break
        advantages.append(total)
    return advantages


@settings(max_examples=50)
@given(st.integers(1, 12), st.floats(0, 1), st.floats(0, 1), st.integers(0, 2**31))
def test_advantages_match_definition(steps, gamma, lam, seed):
    rng = np.random.default_rng(seed)
    reward, value, next_value = rng.normal(size=(3, steps))
    done = rng.random(steps) < 0.3
    advantages = generalized_advantages(
        *(torch.tensor(x) for x in (reward, value, next_value)), torch.tensor(done), gamma, lam
    )
    np.testing.assert_allclose(advantages.numpy(), reference(reward, value, next_value, done, gamma, lam), atol=1e-9)


def test_lambda_one_equals_monte_carlo():
    reward, value = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, 0.5, 0.5])
    next_value = torch.tensor([0.5, 0.5, 0.0])
    advantages = generalized_advantages(reward, value, next_value, torch.tensor([False, False, True]), 0.9, 1.0)
    returns = torch.tensor([1 + 0.9 * 2 + 0.81 * 3, 2 + 0.9 * 3, 3.0])
    torch.testing.assert_close(advantages, returns - value)


def test_leading_axes_are_independent():
    gen = torch.Generator().manual_seed(0)
    reward, value, next_value = torch.randn(3, 5, 4, 2, generator=gen)
    done = torch.rand(5, 4, 2, generator=gen) < 0.4
    full_advantages = generalized_advantages(reward, value, next_value, done, 0.99, 0.9)
    single_advantages = generalized_advantages(
        reward[:, 2, 1], value[:, 2, 1], next_value[:, 2, 1], done[:, 2, 1], 0.99, 0.9
    )
    torch.testing.assert_close(full_advantages[:, 2, 1], single_advantages)


@settings(max_examples=50)
@given(st.integers(1, 3), st.integers(2, 12), st.floats(1e-8, 1.0), st.integers(0, 2**31))
def test_normalization_is_per_row(rows, n, eps, seed):
    """Use the mean and the sample standard deviation of each row, plus `eps`."""
    x = 3 + 5 * np.random.default_rng(seed).normal(size=(rows, n))
    expected = (x - x.mean(1, keepdims=True)) / (x.std(1, ddof=1, keepdims=True) + eps)
    np.testing.assert_allclose(normalize_advantages(torch.from_numpy(x), eps), expected, rtol=1e-9, atol=1e-9)


def test_single_advantage_is_unchanged():
    assert normalize_advantages(torch.tensor([[2.5], [-1.0]]), 1e-8).tolist() == [[2.5], [-1.0]]
