"""Returns and advantages: the only implementation, used by every learner."""

from __future__ import annotations

import torch


def normalized(advantage: torch.Tensor, eps: float) -> torch.Tensor:
    """Advantages [..., n] centred over the last axis and divided by their sample standard deviation (of n - 1) plus
    `eps`; a single one stays as it is."""
    if advantage.shape[-1] == 1:
        return advantage
    centred = advantage - advantage.mean(-1, keepdim=True)
    return centred / (advantage.std(-1, keepdim=True) + eps)


def generalized_advantages(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Generalised advantage estimation (Schulman et al. 2016, eq. 16), for tensors [T, ...].

    Args:
        reward: r_t, [T, ...].
        value: V(s_t), [T, ...].
        next_value: V of the state reached by step t, before any reset: 0 where the episode terminated,
            V(s_{t+1}) everywhere else, also where it was only truncated. [T, ...].
        done: whether the episode ended (for whatever reason) in step t; the sum stops there. [T, ...] bool.
        gamma: discount in [0, 1].
        lam: exponential weight in [0, 1]; 1 gives Monte-Carlo advantages, 0 one-step ones.

    Returns:
        A_t, [T, ...], with a graph where an argument has one; the value target is A_t + V(s_t). Where V = 0 and lam = 1
        it is the discounted reward to go.
    """
    delta = reward + gamma * next_value - value
    carry = gamma * lam * (~done).to(reward.dtype)
    advantage = []
    running = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running = delta[t] + carry[t] * running
        advantage.append(running)
    return torch.stack(advantage[::-1])
