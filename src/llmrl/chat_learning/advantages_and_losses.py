"""Objective of group-relative policy optimization: advantages of turns, and losses of sampled tokens.

Functions of advantages take arrays. They number the turns of all trajectories consecutively and describe them by arrays
[n_turns]: `trajectory` (index of the trajectory, non-decreasing), `group` (index of the group of episodes that are
compared) and rewards.

Functions of losses take tensors. Tokens of a minibatch are one axis [n_tokens]; `reply` is the index of the reply of
each token, [n_tokens] int64 in 0 .. n_replies - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.algorithms.advantages_and_losses import surrogate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Aggregation = Literal["dapo", "grpo", "dr_grpo"]
RatioLevel = Literal["token", "reply"]


def returns_to_go(reward: Floats, trajectory: Ints, gamma: float) -> Floats:
    """Return the discounted sum of rewards from each turn to the end of its trajectory, [n_turns].

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        gamma: discount per turn, [0, 1].
    """
    returns = np.array(reward, dtype=np.float64)
    for i in range(len(returns) - 2, -1, -1):
        if trajectory[i] == trajectory[i + 1]:
            returns[i] += gamma * returns[i + 1]
    return returns


def episode_advantages(reward: Floats, trajectory: Ints, group: Ints) -> Floats:
    """Return the return of each turn's episode minus the mean return of the episodes of its group, [n_turns].

    All turns of an episode have the same advantage (Shao et al. 2024, arXiv 2402.03300, outcome supervision).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
    """
    episodes, first, episode = np.unique(trajectory, return_index=True, return_inverse=True)
    returns: Floats = np.bincount(episode, reward, minlength=len(episodes)).astype(np.float64)
    return _centered(returns, group[first])[episode]


def turn_advantages(reward: Floats, trajectory: Ints, group: Ints, gamma: float) -> Floats:
    """Return the return to go of each turn minus the mean of the turns of its group with the same index, [n_turns].

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
        gamma: discount per turn, [0, 1].
    """
    return _centered(returns_to_go(reward, trajectory, gamma), group, turn_index(trajectory))


def anchor_advantages(
    reward: Floats, trajectory: Ints, group: Ints, observation: Sequence[str], gamma: float, weight: float
) -> Floats:
    """Return `episode_advantages` plus `weight` times the advantages among turns with equal observations, [n_turns].

    The latter are returns to go minus the mean of the turns of the group with the same observation (GiGPO, Feng et al.
    2025, arXiv 2505.10978, eq. 7 and 8, without normalization).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        group: index of the group of each turn, [n_turns].
        observation: text of the observation of each turn, [n_turns].
        gamma: discount per turn, [0, 1].
        weight: weight of the advantages among turns with equal observations, >= 0.
    """
    numbers = {text: i for i, text in enumerate(dict.fromkeys(observation))}
    anchor = np.array([numbers[text] for text in observation], dtype=np.int64)
    steps = _centered(returns_to_go(reward, trajectory, gamma), group, anchor)
    return episode_advantages(reward, trajectory, group) + weight * steps


def replay_advantages(reward: Floats, trajectory: Ints, value: Floats, gamma: float) -> Floats:
    """Return r_t + gamma V(s_{t+1}) - V(s_t) of each turn, [n_turns]; V is 0 at the end of a trajectory.

    Values are means over independent continuations from the states of the turns (Kazemnejad et al. 2024, arXiv
    2410.01679, eq. 6, where states are prefixes of a reply).

    Args:
        reward: reward of each turn, [n_turns].
        trajectory: index of the trajectory of each turn, [n_turns], non-decreasing.
        value: value of the state in which each turn begins, [n_turns].
        gamma: discount per turn, [0, 1].
    """
    following = np.zeros_like(value)
    continues = trajectory[:-1] == trajectory[1:]
    following[:-1][continues] = value[1:][continues]
    return reward + gamma * following - value


def turn_index(trajectory: Ints) -> Ints:
    """Return the index of each turn in its trajectory, [n_turns]."""
    _, first, counts = np.unique(trajectory, return_index=True, return_counts=True)
    return np.arange(len(trajectory)) - np.repeat(first, counts)


def scale_advantages(advantage: Floats, group: Ints, scale: str, eps: float = 1e-6) -> Floats:
    """Divide advantages by a standard deviation plus `eps`.

    Args:
        advantage: advantage of each turn, [n_turns].
        group: index of the group of each turn, [n_turns].
        scale: `batch`: the standard deviation of all turns; `group`: that of each group; `none`: nothing is divided.
        eps: lower limit of the divisor, > 0.
    """
    if scale == "none" or not len(advantage):
        return advantage
    member = np.zeros(len(group), dtype=np.int64) if scale == "batch" else np.unique(group, return_inverse=True)[1]
    counts = np.bincount(member)
    mean = np.bincount(member, advantage) / counts
    variance = np.bincount(member, (advantage - mean[member]) ** 2) / counts
    scaled: Floats = advantage / (np.sqrt(variance)[member] + eps)
    return scaled


def _centered(values: Floats, *keys: Ints) -> Floats:
    """Return values minus the mean of the values whose `keys` are all equal, [n]."""
    _, cell = np.unique(np.stack(keys), axis=1, return_inverse=True)
    cell = cell.reshape(-1)
    means = np.bincount(cell, values) / np.bincount(cell)
    centered: Floats = values - means[cell]
    return centered


def token_weights(
    reply: torch.Tensor, aggregation: Aggregation, n_replies: int, n_tokens: int, max_tokens: int
) -> torch.Tensor:
    """Return the weight of each token in a minibatch's loss, [n_tokens].

    Args:
        reply: index of each token's reply; the tokens may be a part of the minibatch.
        aggregation: `dapo`: 1 / n_tokens (Yu et al. 2025, arXiv 2503.14476, eq. 8); `grpo`: 1 / (n_replies x tokens of
            the reply) (arXiv 2402.03300, eq. 3); `dr_grpo`: 1 / (n_replies x max_tokens) (Liu et al. 2025,
            arXiv 2503.20783).
        n_replies, n_tokens: numbers of replies and of sampled tokens of the minibatch.
        max_tokens: maximum length of a reply, tokens.
    """
    if aggregation == "dapo":
        return torch.full(reply.shape, 1.0 / n_tokens, device=reply.device)
    if aggregation == "dr_grpo":
        return torch.full(reply.shape, 1.0 / (n_replies * max_tokens), device=reply.device)
    lengths = torch.bincount(reply)
    return 1.0 / (n_replies * lengths[reply])


def log_ratios(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, reply: torch.Tensor, level: RatioLevel
) -> torch.Tensor:
    """Return the logarithm of the probability ratio of each token, [n_tokens].

    Args:
        log_prob, old_log_prob: log-probabilities of the tokens under the trained and the sampling policy, [n_tokens].
        reply: index of each token's reply; all tokens of a reply are present.
        level: `token`; or `reply`: the mean over the tokens of the reply (GSPO, Zheng et al. 2025, arXiv 2507.18071,
            eq. 7).
    """
    log_ratio = log_prob - old_log_prob
    if level == "token":
        return log_ratio
    lengths = torch.bincount(reply)
    sums = torch.zeros(len(lengths), dtype=log_ratio.dtype, device=log_ratio.device).index_add(0, reply, log_ratio)
    return (sums / lengths.clamp(min=1))[reply]


def policy_loss(
    log_ratio: torch.Tensor, advantage: torch.Tensor, clip: float, clip_high: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped policy loss of each token, and whether its ratio was clipped, each [n_tokens].

    Args:
        log_ratio: logarithm of the probability ratio, [n_tokens].
        advantage: advantage of the reply of each token, [n_tokens].
        clip: distance of the ratio from 1 at which the objective is clipped below 1, > 0.
        clip_high: the same above 1, > 0; None: `clip`.
    """
    high = clip if clip_high is None else clip_high
    ratio = log_ratio.exp()
    is_clipped = ((ratio < 1 - clip) & (advantage < 0)) | ((ratio > 1 + high) & (advantage > 0))
    return -surrogate(ratio, advantage, clip, high), is_clipped


def importance_weights(old_log_prob: torch.Tensor, sampling_log_prob: torch.Tensor, maximum: float) -> torch.Tensor:
    """Return truncated importance weights of tokens, min(p_old / p_sampling, maximum), [n_tokens].

    They correct for tokens that another computation or older weights have sampled (Ionides 2008; Yao et al. 2025, "Your
    Efficient RL Framework Secretly Brings You Off-Policy RL Training").

    Args:
        old_log_prob: log-probabilities under the trained policy before its update, [n_tokens].
        sampling_log_prob: log-probabilities when the tokens were sampled, [n_tokens].
        maximum: largest weight, > 0.
    """
    return (old_log_prob - sampling_log_prob).exp().clamp(max=maximum)


def sampled_kl(log_prob: torch.Tensor, reference_log_prob: torch.Tensor) -> torch.Tensor:
    """Return an estimate of KL(policy || reference) from the sampled tokens, exp(d) - d - 1, [n_tokens].

    d is the log-probability of the token under the reference minus that under the policy (Schulman 2020, k3).
    """
    difference = reference_log_prob - log_prob
    return difference.exp() - difference - 1


def exact_kl(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """Return KL(policy || reference) over the vocabulary at each token, [n_tokens].

    Args:
        log_probs, reference_log_probs: log-probabilities of all tokens, [n_tokens, vocabulary].
    """
    return (log_probs.exp() * (log_probs - reference_log_probs)).sum(-1)


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the entropy at each token in nats, [n_tokens], of log-probabilities [n_tokens, vocabulary]."""
    return -(log_probs.exp() * log_probs).sum(-1)
