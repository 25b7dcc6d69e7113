"""Adam and gradient-norm clipping as functions whose results can be differentiated.

The numbers are those of `torch.optim.Adam` and `torch.nn.utils.clip_grad_norm_` to rounding. Derivatives are finite
where gradients are exactly zero, which the square roots of both would spoil.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Moments:
    """What Adam remembers of a parameter: steps made, mean and uncentred variance of its gradients (not corrected)."""

    steps: int
    first: torch.Tensor
    second: torch.Tensor


def root(x: torch.Tensor) -> torch.Tensor:
    """sqrt(x) for x >= 0, with derivative 0 (instead of infinity) at 0."""
    positive = x > 0
    return torch.where(positive, torch.where(positive, x, 1.0).sqrt(), 0.0)


def adam_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    moments: Moments,
    learning_rate: float,
    eps: float,
    betas: tuple[float, float],
) -> tuple[torch.Tensor, Moments]:
    """The parameter and the moments after one step (Kingma & Ba 2015, algorithm 1; eps is added to the corrected root).

    Where all gradients so far are zero the step is taken as first moment / eps, which is its derivative from any side.
    """
    steps = moments.steps + 1
    first = betas[0] * moments.first + (1 - betas[0]) * gradient
    second = betas[1] * moments.second + (1 - betas[1]) * gradient.square()
    denominator = root(second) / (1 - betas[1] ** steps) ** 0.5 + eps
    new = parameter - learning_rate / (1 - betas[0] ** steps) * first / denominator
    return new, Moments(steps, first, second)


def clip_by_norm(gradients: Mapping[str, torch.Tensor], largest: float) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Gradients scaled down together to the norm `largest` if theirs is above it, and their norm before."""
    norm = root(torch.stack([g.square().sum() for g in gradients.values()]).sum())
    scale = (largest / (norm + 1e-6)).clamp(max=1.0)
    return {name: g * scale for name, g in gradients.items()}, norm
