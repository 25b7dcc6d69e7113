"""The two losses of proximal policy optimisation, for every learner that uses it: agents and principals."""

from __future__ import annotations

import torch


def surrogate(ratio: torch.Tensor, advantage: torch.Tensor, clip: float | None) -> torch.Tensor:
    """What a policy update increases, for each sample: min(r A, clip(r, 1 - clip, 1 + clip) A).

    Schulman et al. (2017), eq. 7; without `clip` it is r A (eq. 6), whose gradient at r = 1 is A grad log pi.

    Args:
        ratio: r, the new over the old probability of the action taken, [...].
        advantage: A, [...].
        clip: > 0, or None.
    """
    if clip is None:
        return ratio * advantage
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def value_error(value: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float | None) -> torch.Tensor:
    """Squared error [...] of `value`; with `clip` the larger of it and that of the value within `clip` of `old`."""
    error = (value - target).square()
    if clip is None:
        return error
    clipped = old + (value - old).clamp(-clip, clip)
    return torch.maximum(error, (clipped - target).square())
