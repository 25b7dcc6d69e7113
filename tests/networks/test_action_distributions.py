"""Distributions of actions, against torch's own and against draws."""

import math

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ContinuousActions
from llmrl.networks.action_distributions import (
    MAX_CATEGORIES,
    CategoricalDistribution,
    NumericDistribution,
    sample_actions,
)

ARM = ContinuousActions(("push", "gear", "turn"), (-2.0, 3.0, 0.0), (2.0, 5.0, 10.0), (False, True, False))
SEEDS = st.integers(0, 2**32 - 1)


def make_outputs(distribution, seed, n=5):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, distribution.n_outputs))).float()


def reference_distributions(outputs):
    """Return the Gaussians and the gear of an ARM's outputs, as torch has them, in the action's own units."""
    mean, logits, log_std = outputs[:, :2], outputs[:, 2:5], outputs[:, 5:].clamp(-5, 2)
    center, half = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
    normal = reference.Normal(mean, log_std.exp())
    gaussian = reference.TransformedDistribution(normal, [reference.AffineTransform(center, half)])
    return gaussian, reference.Categorical(logits=logits), half


@given(SEEDS)
def test_densities_match_torch(seed):
    distribution = NumericDistribution(ARM)
    outputs = make_outputs(distribution, seed)
    action = sample_actions(distribution, outputs, Seeds(seed).torch("draw"))
    gaussian, gear, half = reference_distributions(outputs)
    assert action.dtype == torch.float32 and action.shape == (5, 3)
    numbers = action[:, [0, 2]]
    # Densities are per half range, so that they do not depend on units.
    reference = (gaussian.log_prob(numbers) + half.log()).sum(-1) + gear.log_prob(action[:, 1].long() - 3)
    log_prob, entropy = distribution.log_prob_entropy(outputs, action)
    torch.testing.assert_close(log_prob, reference, rtol=2e-3, atol=2e-3)
    gaussian_entropy = (outputs[:, 5:].clamp(-5, 2) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1) + gear.entropy()
    torch.testing.assert_close(entropy, gaussian_entropy, rtol=1e-5, atol=1e-5)


@given(SEEDS)
def test_samples_are_valid_actions(seed):
    distribution = NumericDistribution(ARM)
    outputs = 10 * make_outputs(distribution, seed, 50)
    action = sample_actions(distribution, outputs, Seeds(seed).torch("draw"))
    assert bool(((action[:, 1] >= ARM.low[1]) & (action[:, 1] <= ARM.high[1])).all())
    assert torch.equal(action[:, 1], action[:, 1].round())
    assert all(torch.isfinite(x).all() for x in distribution.log_prob_entropy(outputs, action))


def test_sample_moments_match_parameters():
    distribution = NumericDistribution(ARM)
    outputs = torch.tensor([[0.25, -0.5, 0.0, 0.0, 9.0, math.log(0.5), math.log(0.1)]])
    samples = sample_actions(distribution, outputs.expand(100_000, -1), Seeds(1).torch("draw"))
    torch.testing.assert_close(samples[:, [0, 2]].mean(0), torch.tensor([0.5, 2.5]), rtol=0, atol=0.02)
    torch.testing.assert_close(samples[:, [0, 2]].std(0), torch.tensor([1.0, 0.5]), rtol=0.02, atol=0)
    assert (samples[:, 1] == 5).float().mean() > 0.99
    assert distribution.mode(outputs).tolist() == [[0.5, 5.0, 2.5]]


def test_choice_action():
    distribution, logits = CategoricalDistribution(3), torch.tensor([[0.0, 5.0, 1.0]])
    assert (distribution.n_outputs, distribution.n_uniforms, distribution.mode(logits).tolist()) == (3, 3, [1])
    log_prob, entropy = distribution.log_prob_entropy(logits, torch.tensor([2]))
    library = reference.Categorical(logits=logits)
    torch.testing.assert_close((log_prob, entropy), (library.log_prob(torch.tensor([2])), library.entropy()))


def test_integer_actions():
    wide = ContinuousActions(("level", "speed"), (0.0, -math.inf), (float(MAX_CATEGORIES), math.inf), (True, False))
    distribution = NumericDistribution(wide)
    assert (distribution.n_real, distribution.categorical_integers) == (2, [])
    # Without bounds a number is as it is drawn.
    assert distribution.mode(torch.tensor([[0.0, 7.5, 0.0, 0.0]])).tolist() == [[MAX_CATEGORIES / 2, 7.5]]
