"""Functional Adam and gradient clipping: values of torch, and derivatives at vanishing gradients."""

import pytest
import torch

from llmrl.algorithms.meta_gradient import Moments, adam_step, clip_by_norm, safe_sqrt
from llmrl.core.seeding import Seeds

BETAS = (0.9, 0.999)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float64, 1e-12), (torch.float32, 2e-6)])
@pytest.mark.parametrize("largest", [0.5, 1e3])
def test_numbers_are_torchs(dtype, rtol, largest):
    draw = Seeds(0).torch("gradients")
    shapes = {"a": (4, 3), "b": (5,)}
    values = {name: torch.randn(shape, generator=draw, dtype=dtype) for name, shape in shapes.items()}
    torch_parameters = {name: torch.nn.Parameter(x.clone()) for name, x in values.items()}
    optimizer = torch.optim.Adam(torch_parameters.values(), lr=1e-2, eps=1e-5, fused=True)
    moments = {name: Moments(0, torch.zeros_like(x), torch.zeros_like(x)) for name, x in values.items()}
    for _ in range(50):
        gradients = {name: torch.randn(shape, generator=draw, dtype=dtype) for name, shape in shapes.items()}
        gradients["a"][0] = 0.0
        for name, p in torch_parameters.items():
            p.grad = gradients[name].clone()
        reference_norm = torch.nn.utils.clip_grad_norm_(torch_parameters.values(), largest)
        optimizer.step()
        clipped, norm = clip_by_norm(gradients, largest)
        torch.testing.assert_close(norm, reference_norm, rtol=rtol, atol=0)
        for name in values:
            values[name], moments[name] = adam_step(values[name], clipped[name], moments[name], 1e-2, 1e-5, BETAS)
    for name, p in torch_parameters.items():
        torch.testing.assert_close(values[name], p.detach(), rtol=rtol, atol=rtol)
        torch.testing.assert_close(moments[name].second, optimizer.state[p]["exp_avg_sq"], rtol=10 * rtol, atol=0)


def test_zero_gradient_step_has_first_moment_derivative():
    """Check that g / (|g| + eps) has slope 1 / eps at 0."""
    gradient = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(3, dtype=torch.float64)
    new, _ = adam_step(torch.ones(3, dtype=torch.float64), gradient, Moments(0, none, none), 1e-3, 1e-5, BETAS)
    [slope] = torch.autograd.grad(new.sum(), gradient)
    torch.testing.assert_close(slope, torch.full((3,), -1e-3 / 1e-5, dtype=torch.float64))
    h = 1e-10
    [upper, lower] = [adam_step(none, none + x, Moments(0, none, none), 1e-3, 1e-5, BETAS)[0] for x in (h, -h)]
    torch.testing.assert_close((upper - lower) / (2 * h), slope, rtol=1e-3, atol=0)


def test_chained_steps_match_finite_difference():
    """Take three steps with gradients that depend on a number; one of them is always zero."""
    directions = torch.tensor([[1.0, -2.0, 0.0], [0.5, 1.0, 0.0], [-0.3, 3.0, 0.0]], dtype=torch.float64)

    def end(x):
        p = torch.zeros(3, dtype=torch.float64)
        moments = Moments(0, torch.zeros_like(p), torch.zeros_like(p))
        for direction in directions:
            clipped, _ = clip_by_norm({"p": direction * x + p}, 1.5)
            p, moments = adam_step(p, clipped["p"], moments, 0.1, 1e-5, BETAS)
        return (p * torch.tensor([1.0, 2.0, 3.0])).sum()

    x = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    [slope] = torch.autograd.grad(end(x), x)
    h = 1e-6
    x = x.detach()
    assert float(slope) == pytest.approx(float(end(x + h) - end(x - h)) / (2 * h), rel=1e-6)


def test_norm_is_differentiable_at_zero():
    g = torch.zeros(4, requires_grad=True)
    clipped, norm = clip_by_norm({"g": g}, 0.5)
    assert torch.autograd.grad(clipped["g"].sum() + norm, g)[0].tolist() == [1.0] * 4
    x = torch.tensor([0.0, 4.0], requires_grad=True)
    assert torch.autograd.grad(safe_sqrt(x).sum(), x)[0].tolist() == [0.0, 0.25]
