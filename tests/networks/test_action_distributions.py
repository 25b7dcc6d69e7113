"""Distributions of actions, against torch's own and against draws."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import distributions as reference

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.core.spaces import ContinuousActions
from llmrl.networks.action_distributions import MOST_CHOICES, Choice, Numbers, sample

ARM = ContinuousActions(("push", "gear", "turn"), (-2.0, 3.0, 0.0), (2.0, 5.0, 10.0), (False, True, False))
SEEDS = st.integers(0, 2**32 - 1)


def outputs_of(actions, seed, n=5):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(n, actions.n_outputs))).float()


def described(outputs, squashed):
    """The Gaussians and the gear of an ARM's outputs, as torch has them, in the action's own units."""
    mean, logits, log_std = outputs[:, :2], outputs[:, 2:5], outputs[:, 5:].clamp(-5, 2)
    centre, half = torch.tensor([0.0, 5.0]), torch.tensor([2.0, 5.0])
    steps = [reference.AffineTransform(centre, half)]
    if squashed:
        steps = [reference.TanhTransform(cache_size=1), *steps]
    gaussian = reference.TransformedDistribution(reference.Normal(mean, log_std.exp()), steps)
    return gaussian, reference.Categorical(logits=logits), half


@given(SEEDS, st.booleans())
def test_densities_are_those_of_the_library(seed, squashed):
    actions = Numbers(ARM, squashed)
    outputs = outputs_of(actions, seed)
    action = sample(actions, outputs, Seeds(seed).torch("draw"))
    gaussian, gear, half = described(outputs, squashed)
    assert action.dtype == torch.float32 and action.shape == (5, 3)
    numbers = action[:, [0, 2]]
    if squashed:
        edge = torch.tensor([2.0, 5.0]) * 1e-5
        centre = torch.tensor([0.0, 5.0])
        numbers = torch.minimum(torch.maximum(numbers, centre - half + edge), centre + half - edge)
        action[:, [0, 2]] = numbers
    # Densities are per half range, so that they do not depend on units.
    expected = (gaussian.log_prob(numbers) + half.log()).sum(-1) + gear.log_prob(action[:, 1].long() - 3)
    log_prob, entropy = actions.log_prob_entropy(outputs, action)
    torch.testing.assert_close(log_prob, expected, rtol=2e-3, atol=2e-3)
    if not squashed:
        own = (outputs[:, 5:].clamp(-5, 2) + 0.5 * math.log(2 * math.pi * math.e)).sum(-1) + gear.entropy()
        torch.testing.assert_close(entropy, own, rtol=1e-5, atol=1e-5)


def test_the_entropy_of_squashed_numbers_is_that_of_many_draws():
    actions = Numbers(ContinuousActions(("x",), (0.0,), (1.0,)), squashed=True)
    outputs = torch.tensor([[0.5, -1.0], [-1.0, 0.3], [0.0, -3.0]], requires_grad=True)
    _, entropy = actions.log_prob_entropy(outputs, torch.full((3, 1), 0.5))
    many = outputs.detach().repeat(200_000, 1)
    drawn = sample(actions, many, Seeds(0).torch("draw"))
    found = -actions.log_prob_entropy(many, drawn)[0].view(-1, 3).mean(0)
    torch.testing.assert_close(entropy, found, rtol=0, atol=0.02)
    [slope] = torch.autograd.grad(entropy.sum(), outputs)
    # A wider Gaussian spreads the middle, and heaps the rest up at the bounds.
    assert slope[2, 1] > 0.9 and slope[1, 0] > 0


@given(SEEDS)
def test_what_is_drawn_can_be_done(seed):
    actions = Numbers(ARM, squashed=True)
    outputs = 10 * outputs_of(actions, seed, 50)
    action = sample(actions, outputs, Seeds(seed).torch("draw"))
    low, high = torch.tensor(ARM.low), torch.tensor(ARM.high)
    assert bool(((action >= low) & (action <= high)).all())
    assert torch.equal(action[:, 1], action[:, 1].round())
    assert all(torch.isfinite(x).all() for x in actions.log_prob_entropy(outputs, action))


def test_draws_have_the_mean_and_deviation_they_are_said_to():
    actions = Numbers(ARM)
    outputs = torch.tensor([[0.25, -0.5, 0.0, 0.0, 9.0, math.log(0.5), math.log(0.1)]])
    drawn = sample(actions, outputs.expand(100_000, -1), Seeds(1).torch("draw"))
    torch.testing.assert_close(drawn[:, [0, 2]].mean(0), torch.tensor([0.5, 2.5]), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn[:, [0, 2]].std(0), torch.tensor([1.0, 0.5]), rtol=0.02, atol=0)
    assert (drawn[:, 1] == 5).float().mean() > 0.99
    assert actions.mode(outputs).tolist() == [[0.5, 5.0, 2.5]]


def test_one_of_several_actions():
    actions, logits = Choice(3), torch.tensor([[0.0, 5.0, 1.0]])
    assert (actions.n_outputs, actions.n_draws, actions.mode(logits).tolist()) == (3, 3, [1])
    log_prob, entropy = actions.log_prob_entropy(logits, torch.tensor([2]))
    library = reference.Categorical(logits=logits)
    torch.testing.assert_close((log_prob, entropy), (library.log_prob(torch.tensor([2])), library.entropy()))


def test_whole_numbers_of_many_values_and_numbers_without_bounds():
    wide = ContinuousActions(("level", "speed"), (0.0, -math.inf), (float(MOST_CHOICES), math.inf), (True, False))
    actions = Numbers(wide)
    assert (actions.n_real, actions.choices) == (2, [])
    # Without bounds a number is as it is drawn.
    assert actions.mode(torch.tensor([[0.0, 7.5, 0.0, 0.0]])).tolist() == [[MOST_CHOICES / 2, 7.5]]
    with pytest.raises(ConfigError, match="speed has no bounds"):
        Numbers(wide, squashed=True)
