"""Advantages, reward scaling and losses of policy-gradient methods, as functions of tensors."""

from __future__ import annotations

import torch


def normalize_advantages(advantage: torch.Tensor, eps: float) -> torch.Tensor:
    """Center advantages [..., n] over the last axis and scale them to a standard deviation of 1.

    They are divided by the sample standard deviation (n - 1 degrees of freedom) plus `eps`; a single advantage is
    returned unchanged.
    """
    if advantage.shape[-1] == 1:
        return advantage
    return (advantage - advantage.mean(-1, keepdim=True)) / (advantage.std(-1, keepdim=True) + eps)


def generalized_advantages(
    reward: torch.Tensor,
    value: torch.Tensor,
    next_value: torch.Tensor,
    done: torch.Tensor,
    gamma: float,
    lam: float,
) -> torch.Tensor:
    """Return generalized advantage estimates (Schulman et al. 2016, eq. 16) for tensors [T, ...].

    Args:
        reward: r_t, [T, ...].
        value: V(s_t), [T, ...].
        next_value: V of the state reached by step t, before any reset, [T, ...]: 0 where the episode terminated,
            else V(s_{t+1}), also where it was truncated.
        done: whether the episode terminated or was truncated in step t, where the sum stops, [T, ...] bool.
        gamma: discount in [0, 1].
        lam: exponential weight in [0, 1]; 1 gives Monte-Carlo advantages, 0 one-step advantages.

    Returns:
        A_t, [T, ...], differentiable with respect to the arguments; the value target is A_t + V(s_t). For V = 0 and
        lam = 1 it is the discounted reward to go.
    """
    delta = reward + gamma * next_value - value
    decay = gamma * lam * (~done).to(reward.dtype)
    reversed_advantages = []
    running_sum = torch.zeros_like(delta[0])
    for t in range(delta.shape[0] - 1, -1, -1):
        running_sum = delta[t] + decay[t] * running_sum
        reversed_advantages.append(running_sum)
    return torch.stack(reversed_advantages[::-1])


def discounted_returns(reward: torch.Tensor, done: torch.Tensor, gamma: float) -> torch.Tensor:
    """Return the discounted sum of the rewards so far, R_t = r_t + gamma R_(t-1), [T, n_envs, n_agents].

    The sum starts at 0 in each episode and rollout. Learners divide rewards by its running standard deviation, so
    that hyperparameters do not depend on the units of rewards. Rewards are not centered, as in Engstrom et al. (2020,
    arXiv 2005.12729, section 3).

    Args:
        reward: r_t, [T, n_envs, n_agents].
        done: whether the episode terminated or was truncated in step t, [T, n_envs] bool.
        gamma: discount per step, [0, 1].
    """
    running_return, returns = torch.zeros_like(reward[0]), []
    for step_reward, has_ended in zip(reward, done, strict=True):
        running_return = step_reward + gamma * running_return
        returns.append(running_return)
        running_return = torch.where(has_ended[:, None], 0.0, running_return)
    return torch.stack(returns)


def surrogate_objectives(
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


def combine_joint_actions(
    log_ratio: torch.Tensor, advantage: torch.Tensor, joint_indices: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the ratio of joint actions, and their advantage, each [m].

    The ratio of a joint action is the product of its agents' ratios, its advantage the mean of their advantages.

    Args:
        log_ratio, advantage: logarithm of the probability ratio, and advantage, of each agent's action, [n].
        joint_indices: index of the joint action to which each action belongs, 0 .. m - 1, [n] int64; all joint actions
            have the same number of agents.
    """
    zeros = log_ratio.new_zeros(int(joint_indices.max()) + 1)
    n_agents = len(joint_indices) / len(zeros)
    return zeros.index_add(0, joint_indices, log_ratio), zeros.index_add(0, joint_indices, advantage) / n_agents


def value_losses(
    value: torch.Tensor, old_value: torch.Tensor, target: torch.Tensor, clip: float | None, huber: float | None = None
) -> torch.Tensor:
    """Return the squared error e^2 [...] of `value`, with e = `value` - `target`.

    With `huber` = d > 0, it is replaced by 2 d |e| - d^2 where |e| > d: this is twice the Huber loss. With `clip`, the
    maximum of the losses of `value` and of `value` clipped to `old_value` +- `clip` is returned.
    """
    losses = _compute_losses(value - target, huber)
    if clip is None:
        return losses
    clipped_value = old_value + (value - old_value).clamp(-clip, clip)
    return torch.maximum(losses, _compute_losses(clipped_value - target, huber))


def _compute_losses(error: torch.Tensor, huber: float | None) -> torch.Tensor:
    if huber is None:
        return error.square()
    return torch.where(error.abs() <= huber, error.square(), 2 * huber * error.abs() - huber**2)


def unexplained_variance(target: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return the variance of `target` - `value` divided by that of `target`, [...], over the last axis of [..., n]."""
    return (target - value).var(-1, correction=0) / target.var(-1, correction=0).clamp_min(1e-8)
