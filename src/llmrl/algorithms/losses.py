"""Losses of policy and value function, as functions of tensors."""

from __future__ import annotations

import torch


def surrogate(
    ratio: torch.Tensor, advantage: torch.Tensor, clip: float | None, clip_high: float | None = None
) -> torch.Tensor:
    """Return the objective of a policy update for each sample, min(r A, clip(r, 1 - clip, 1 + clip_high) A), [...].

    Schulman et al. (2017), eq. 7; without `clip` it is r A (eq. 6), whose gradient at r = 1 is A grad log pi.

    Args:
        ratio: r, the new over the old probability of the action taken, [...].
        advantage: A, [...].
        clip: clipping range > 0; None: no clipping.
        clip_high: clipping range above 1, > 0; None: `clip`.
    """
    if clip is None:
        return ratio * advantage
    high = clip if clip_high is None else clip_high
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + high) * advantage)


def joint_actions(
    log_ratio: torch.Tensor, advantage: torch.Tensor, joint: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the ratio of joint actions, and their advantage, each [m].

    The ratio of a joint action is the product of its agents', its advantage the mean of theirs.

    Args:
        log_ratio, advantage: of each agent's action, [n].
        joint: number of the joint action that each is part of, in 0 .. m - 1, [n] int64; all have equally many agents.
    """
    zeros = log_ratio.new_zeros(int(joint.max()) + 1)
    agents = len(joint) / len(zeros)
    return zeros.index_add(0, joint, log_ratio), zeros.index_add(0, joint, advantage) / agents


def value_error(
    value: torch.Tensor, old: torch.Tensor, target: torch.Tensor, clip: float | None, huber: float | None = None
) -> torch.Tensor:
    """Return the squared error [...] of `value`; with `clip`, at least that of `value` clipped to `old` +- `clip`.

    With `huber` d > 0, it is 2 d |e| - d^2 for errors |e| > d: twice the Huber loss, in which value losses are halved.
    """
    error = _squared(value - target, huber)
    if clip is None:
        return error
    bounded = old + (value - old).clamp(-clip, clip)
    return torch.maximum(error, _squared(bounded - target, huber))


def _squared(error: torch.Tensor, huber: float | None) -> torch.Tensor:
    if huber is None:
        return error.square()
    return torch.where(error.abs() <= huber, error.square(), 2 * huber * error.abs() - huber**2)


def unexplained_variance(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the variance of `target` - `value` over the variance of `target`, both [..., n], as [...]."""
    variance = target.var(-1, correction=0).clamp_min(1e-8)
    return (target - value).var(-1, correction=0) / variance
