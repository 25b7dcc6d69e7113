"""Policy-gradient principal: learning and the definition of an update."""

import numpy as np
import pytest
import torch

from llmrl.core.errors import ConfigError
from llmrl.core.seeding import Seeds
from llmrl.principals.network_principals import ObserveSettings
from shipped import build_principal
from societies import CLEANUP, ESCAPE_ROOM, make_outcome, make_toy_spec


def late_payoff(seed, contexts=(), offset=0.0, steps=250, **settings):
    """Return the mean payoff of the last fifth of a run with four proposals per step; `offset` is added to outcomes."""
    society = make_toy_spec(contexts=contexts)
    principal = build_principal("dual_rl", society, Seeds(seed), **settings)
    draws, payoffs = np.random.default_rng(seed), []
    for _ in range(steps):
        context = int(draws.integers(len(contexts))) if contexts else None
        outcomes = [make_outcome(society, vector, context) for vector in principal.ask(context, 4)]
        payoffs.append(np.mean([outcome.value for outcome in outcomes]))
        for outcome_ in outcomes:
            outcome_.value += offset
        principal.tell(outcomes)
    return np.mean(payoffs[-steps // 5 :])


@pytest.mark.long
@pytest.mark.parametrize("offset", [0.0, 45.0, -1000.0])
def test_learns_payoffs_at_any_scale(offset):
    """Random proposals have a payoff of 7.5 of 10, and the initial network hardly more."""
    payoffs = [late_payoff(seed, offset=offset) for seed in range(3)]
    assert min(payoffs) > 9.0, payoffs


@pytest.mark.slow
def test_learns_best_vector_per_context():
    """A single vector for both contexts has a mean payoff of at most 9.2."""
    payoffs = [late_payoff(seed, ("calm", "storm"), steps=400, learning_rate=1e-3) for seed in range(2)]
    assert min(payoffs) > 9.25, payoffs


def test_step_matches_loss_gradient():
    """With one epoch the ratio is 1 and the loss has a closed form; Adam's first step is lr * g / (|g| + eps)."""
    society = make_toy_spec()
    principal = build_principal(
        "dual_rl", society, Seeds(0), hidden=[8], epochs=1, max_grad_norm=1e9, scale_payoffs=False, value_clip=0.2
    )
    network = principal.network
    initial = {name: p.detach().clone() for name, p in network.named_parameters()}
    vectors = principal.ask(None, 3)
    choice = principal.last_proposal["choice"]
    logits, value = network(torch.ones(principal.encoder.size))
    log_p = logits.log_softmax(-1)
    payoff = torch.tensor([1.0, -2.0, 0.5])
    advantage = payoff - value.detach()
    log_probs = torch.stack([sum(log_p[head, choice[i, head]] for head in range(2)) for i in range(3)])
    entropy = -(log_p.exp() * log_p).sum()
    loss = -(log_probs * advantage).mean() + 0.25 * (value - payoff).square().mean() - 0.05 * entropy
    gradients = torch.autograd.grad(loss, list(network.parameters()))
    metrics = principal.tell([make_outcome(society, v, None, float(x)) for v, x in zip(vectors, payoff, strict=True)])
    for (name, p), g in zip(network.named_parameters(), gradients, strict=True):
        torch.testing.assert_close(p.detach(), initial[name] - 2e-4 * g / (g.abs() + 1e-5), rtol=1e-4, atol=1e-6)
    assert metrics["principal/advantage"] == pytest.approx(float(advantage.mean()), abs=1e-5)
    assert metrics["principal/value"] == pytest.approx(value.item(), abs=1e-5)


def test_the_last_choice_keeps_the_previous_number():
    society = make_toy_spec()  # two numbers in [-1, 3]
    principal = build_principal("dual_rl", society, Seeds(0), points=5)
    choices = np.array([[0, 5], [4, 2]])
    principal.previous = principal._choices_to_vectors(choices)
    assert principal.previous.tolist() == [[-1.0, 0.0], [3.0, 1.0]]  # no number before: 0
    # Each proposal of a step follows the one in its place; a third one has none before it.
    vectors = principal._choices_to_vectors(np.array([[5, 1], [5, 5], [5, 5]]))
    assert vectors.tolist() == [[-1.0, 0.0], [3.0, 1.0], [0.0, 0.0]]
    positive_space = build_principal("dual_rl", make_toy_spec(low=0.5), Seeds(0), points=5)
    assert positive_space._choices_to_vectors(np.array([[5, 5]])).tolist() == [[0.5, 0.5]]


@pytest.mark.parametrize(("spec", "shape"), [(CLEANUP, (3, 22)), (ESCAPE_ROOM, (5, 7)), (make_toy_spec(), (2, 97))])
def test_paper_network_sizes(spec, shape):
    assert build_principal("dual_rl", spec, Seeds(0)).network.logits_shape == shape


def test_standardized_payoffs():
    principal = build_principal("dual_rl", make_toy_spec(), Seeds(0))
    payoffs = [3.0, -1.0, 7.0, 7.0]
    assert principal._update_moments(payoffs[:1]) == (3.0, 1.0)
    assert principal._update_moments(payoffs[1:]) == pytest.approx((np.mean(payoffs), np.std(payoffs)))


def test_refusals():
    with pytest.raises(ConfigError, match=r"principal\.points .*2 .*1$"):
        build_principal("dual_rl", make_toy_spec(), Seeds(0), points=1)
    with pytest.raises(ConfigError, match="metric 'happiness'"):
        build_principal("dual_rl", make_toy_spec(), Seeds(0), observe=ObserveSettings(["happiness"]))
