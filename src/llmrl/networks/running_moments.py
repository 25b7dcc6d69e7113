"""Running mean and standard deviation of samples, and the normalization of observations by them."""

from __future__ import annotations

import torch
from torch import nn

MIN_DEVIATION = 1e-8
"""Standard deviations up to this are treated as zero."""
MAX_DEVIATIONS = 10.0
"""Number of standard deviations to which normalized numbers are clipped."""


class RunningMoments(nn.Module):
    """Mean and (population) standard deviation of all samples so far, elementwise.

    They are float64 buffers, so they are saved with a network's weights.

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
        """Standard deviation of each element; 1 as long as it is (almost) zero."""
        deviation = (self.squares / self.count.clamp_min(1)).sqrt()
        return torch.where(deviation > MIN_DEVIATION, deviation, 1.0)

    @torch.no_grad()
    def update(self, samples: torch.Tensor) -> None:
        """Add samples [n, *shape], n >= 1 (Chan, Golub & LeVeque 1983: moments of two merged samples)."""
        batch = samples.double()
        n, mean = len(batch), batch.mean(0)
        squares = (batch - mean).square().sum(0)
        total, shift = self.count + n, mean - self.mean
        self.squares += squares + shift.square() * self.count * n / total
        self.mean += shift * n / total
        self.count += n

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Subtract the mean from `x` [..., *shape] and divide by the standard deviation."""
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def denormalize(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `normalize`."""
        return x * self.deviation.to(x.dtype) + self.mean.to(x.dtype)


class RunningNormalizer(RunningMoments):
    """Normalizer of a network's numeric inputs, [..., n]; before the first update it only clips them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalize(x).clamp(-MAX_DEVIATIONS, MAX_DEVIATIONS)
