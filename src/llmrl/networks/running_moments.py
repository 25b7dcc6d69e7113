"""Mean and standard deviation of all numbers seen so far, and the normalisation of observations by them."""

from __future__ import annotations

import torch
from torch import nn

SMALLEST = 1e-8
"""Standard deviations up to this count as zero."""
FURTHEST = 10.0
"""Normalised numbers are clipped to this many standard deviations."""


class RunningMoments(nn.Module):
    """Mean and (population) standard deviation of all samples seen, for each of some numbers.

    They are kept in float64 and in buffers, so they belong to a network's weights.

    Args:
        shape: shape of a sample.
    """

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    @property
    def deviation(self) -> torch.Tensor:
        """Standard deviation of each number; 1 as long as it is (almost) zero."""
        deviation = (self.squares / self.count.clamp_min(1)).sqrt()
        return torch.where(deviation > SMALLEST, deviation, 1.0)

    @torch.no_grad()
    def see(self, samples: torch.Tensor) -> None:
        """Take in samples [n, *shape], n >= 1 (Chan, Golub & LeVeque 1983: moments of two merged samples)."""
        seen = samples.double()
        n, mean = len(seen), seen.mean(0)
        squares = (seen - mean).square().sum(0)
        total, shift = self.count + n, mean - self.mean
        self.squares += squares + shift.square() * self.count * n / total
        self.mean += shift * n / total
        self.count += n

    def normalized(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers [..., *shape] less their mean, divided by their deviation."""
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def restored(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `normalized`."""
        return x * self.deviation.to(x.dtype) + self.mean.to(x.dtype)


class RunningNormalizer(RunningMoments):
    """Normalisation of the numbers that a network reads, [..., n]; before it has seen any they only are clipped."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalized(x).clamp(-FURTHEST, FURTHEST)
