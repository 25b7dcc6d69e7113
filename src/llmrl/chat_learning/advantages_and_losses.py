"""Objective of group-relative policy optimization: advantages of turns, and losses of sampled tokens.

Functions of advantages take NumPy arrays [n_turns] of the turns of all trajectories, one trajectory after another. A
turn is one reply of a trajectory; a group is a set of episodes with equal starts, whose returns are compared. `reward`
is the reward of each turn; `trajectory_index` (non-decreasing) and `group_index` are indices of its trajectory and
group. `gamma` is the discount per turn, [0, 1].

Functions of losses take tensors [n_tokens] of the sampled tokens of a minibatch; `reply_index` is the index of each
token's reply, int64 in 0 .. n_replies - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from llmrl.algorithms.advantages_and_losses import surrogate_objectives

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
LossAggregation = Literal["dapo", "grpo", "dr_grpo"]
RatioLevel = Literal["token", "reply"]


def returns_to_go(reward: Floats, trajectory_index: Ints, gamma: float) -> Floats:
    """Return the discounted sum of rewards from each turn to the end of its trajectory, [n_turns]."""
    returns = np.array(reward, dtype=np.float64)
    for i in range(len(returns) - 2, -1, -1):
        if trajectory_index[i] == trajectory_index[i + 1]:
            returns[i] += gamma * returns[i + 1]
    return returns


def episode_advantages(reward: Floats, trajectory_index: Ints, group_index: Ints) -> Floats:
    """Return the return of each turn's episode minus the mean return of the episodes of its group, [n_turns].

    All turns of an episode have the same advantage (Shao et al. 2024, arXiv 2402.03300, outcome supervision).
    """
    episodes, first_turns, episode_of_turn = np.unique(trajectory_index, return_index=True, return_inverse=True)
    returns: Floats = np.bincount(episode_of_turn, reward, minlength=len(episodes)).astype(np.float64)
    return _center(returns, group_index[first_turns])[episode_of_turn]


def turn_advantages(reward: Floats, trajectory_index: Ints, group_index: Ints, gamma: float) -> Floats:
    """Return the return to go of each turn minus the mean over the group's turns of the same index, [n_turns].

    The index of a turn is its position in its trajectory.
    """
    return _center(returns_to_go(reward, trajectory_index, gamma), group_index, turn_indices(trajectory_index))


def anchor_advantages(
    reward: Floats, trajectory_index: Ints, group_index: Ints, observations: Sequence[str], gamma: float, weight: float
) -> Floats:
    """Return `episode_advantages` plus `weight` times the advantages among turns with equal observations, [n_turns].

    An advantage among equal observations is the return to go minus its mean over the turns of the group with the same
    observation (GiGPO, Feng et al. 2025, arXiv 2505.10978, eq. 7 and 8, without normalization).

    Args:
        observations: text of the observation of each turn, [n_turns].
        weight: weight of the advantages among turns with equal observations, >= 0.
    """
    observation_index = {text: i for i, text in enumerate(dict.fromkeys(observations))}
    observation_of_turn = np.array([observation_index[text] for text in observations], dtype=np.int64)
    anchor_advantage = _center(returns_to_go(reward, trajectory_index, gamma), group_index, observation_of_turn)
    return episode_advantages(reward, trajectory_index, group_index) + weight * anchor_advantage


def replay_advantages(reward: Floats, trajectory_index: Ints, value: Floats, gamma: float) -> Floats:
    """Return r_t + gamma V(s_{t+1}) - V(s_t) of each turn, [n_turns]; V is 0 at the end of a trajectory.

    Values are means over independent continuations from the states of the turns (Kazemnejad et al. 2024, arXiv
    2410.01679, eq. 6, where states are prefixes of a reply).

    Args:
        value: value of the state in which each turn begins, [n_turns].
    """
    next_value = np.zeros_like(value)
    has_next_turn = trajectory_index[:-1] == trajectory_index[1:]
    next_value[:-1][has_next_turn] = value[1:][has_next_turn]
    return reward + gamma * next_value - value


def turn_indices(trajectory_index: Ints) -> Ints:
    """Return the index of each turn in its trajectory, [n_turns]."""
    _, first_turns, counts = np.unique(trajectory_index, return_index=True, return_counts=True)
    return np.arange(len(trajectory_index)) - np.repeat(first_turns, counts)


def scale_advantages(advantage: Floats, group_index: Ints, scale: str, eps: float = 1e-6) -> Floats:
    """Divide advantages by a standard deviation plus `eps`.

    Args:
        advantage: advantage of each turn, [n_turns].
        scale: `batch`: the standard deviation over all turns; `group`: over the turns of the same group; `none`: return
            the advantages unchanged.
        eps: number added to the standard deviation, > 0.
    """
    if scale == "none" or not len(advantage):
        return advantage
    _, set_index = np.unique(np.zeros_like(group_index) if scale == "batch" else group_index, return_inverse=True)
    counts = np.bincount(set_index)
    mean = np.bincount(set_index, advantage) / counts
    variance = np.bincount(set_index, (advantage - mean[set_index]) ** 2) / counts
    return advantage / (np.sqrt(variance)[set_index] + eps)


def _center(values: Floats, *keys: Ints) -> Floats:
    """Return each of `values` [n] minus the mean of the values with equal `keys`, each of which is [n]."""
    _, set_index = np.unique(np.stack(keys), axis=1, return_inverse=True)
    set_index = set_index.reshape(-1)
    return values - (np.bincount(set_index, values) / np.bincount(set_index))[set_index]


def token_weights(
    reply_index: torch.Tensor, aggregation: LossAggregation, n_replies: int, n_tokens: int, max_tokens: int
) -> torch.Tensor:
    """Return the weight of each token in a minibatch's loss, [n_tokens].

    Args:
        reply_index: index of each token's reply, [n_tokens]; the tokens may be a part of the minibatch.
        aggregation: `dapo`: 1 / n_tokens (Yu et al. 2025, arXiv 2503.14476, eq. 8); `grpo`: 1 / (n_replies x tokens of
            the reply) (arXiv 2402.03300, eq. 3); `dr_grpo`: 1 / (n_replies x max_tokens) (Liu et al. 2025,
            arXiv 2503.20783).
        n_replies, n_tokens: numbers of replies and of sampled tokens of the whole minibatch.
        max_tokens: maximum length of a reply, tokens.
    """
    if aggregation == "dapo":
        return torch.full(reply_index.shape, 1.0 / n_tokens, device=reply_index.device)
    if aggregation == "dr_grpo":
        return torch.full(reply_index.shape, 1.0 / (n_replies * max_tokens), device=reply_index.device)
    return 1.0 / (n_replies * torch.bincount(reply_index)[reply_index])


def log_ratios(
    log_prob: torch.Tensor, old_log_prob: torch.Tensor, reply_index: torch.Tensor, level: RatioLevel
) -> torch.Tensor:
    """Return the logarithm of the probability ratio of each token, [n_tokens].

    Args:
        log_prob, old_log_prob: log-probabilities of the tokens under the trained and the sampling policy, [n_tokens].
        reply_index: index of each token's reply; all tokens of a reply are present.
        level: `token`; or `reply`: the mean over the tokens of the reply (GSPO, Zheng et al. 2025, arXiv 2507.18071,
            eq. 7).
    """
    log_ratio = log_prob - old_log_prob
    if level == "token":
        return log_ratio
    lengths = torch.bincount(reply_index)
    return (log_ratio.new_zeros(len(lengths)).index_add(0, reply_index, log_ratio) / lengths.clamp(min=1))[reply_index]


def policy_loss(
    log_ratio: torch.Tensor, advantage: torch.Tensor, clip: float, clip_high: float | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the clipped policy loss of each token, and whether its ratio was clipped, each [n_tokens].

    Args:
        log_ratio: logarithm of the probability ratio, [n_tokens].
        advantage: advantage of the reply of each token, [n_tokens].
        clip: distance of the ratio from 1 at which the objective is clipped below 1, > 0.
        clip_high: distance at which it is clipped above 1, > 0; None: `clip`.
    """
    clip_above = clip if clip_high is None else clip_high
    ratio = log_ratio.exp()
    is_clipped = ((ratio < 1 - clip) & (advantage < 0)) | ((ratio > 1 + clip_above) & (advantage > 0))
    return -surrogate_objectives(ratio, advantage, clip, clip_above), is_clipped


def importance_weights(old_log_prob: torch.Tensor, sampling_log_prob: torch.Tensor, maximum: float) -> torch.Tensor:
    """Return truncated importance weights of tokens, min(p_old / p_sampling, maximum), [n_tokens].

    They correct for tokens that were sampled by another implementation or with older weights (Ionides 2008; Yao et al.
    2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training").

    Args:
        old_log_prob: log-probabilities under the trained policy before its update, [n_tokens].
        sampling_log_prob: log-probabilities when the tokens were sampled, [n_tokens].
        maximum: largest weight, > 0.
    """
    return (old_log_prob - sampling_log_prob).exp().clamp(max=maximum)


def sampled_kl(log_prob: torch.Tensor, reference_log_prob: torch.Tensor) -> torch.Tensor:
    """Return an estimate of KL(policy || reference) from the sampled tokens, exp(d) - d - 1, [n_tokens].

    d is the log-probability of the token under the reference minus that under the policy (estimator k3 of Schulman
    2020, "Approximating KL Divergence").
    """
    log_ratio = reference_log_prob - log_prob
    return log_ratio.exp() - log_ratio - 1


def exact_kl(log_probs: torch.Tensor, reference_log_probs: torch.Tensor) -> torch.Tensor:
    """Return KL(policy || reference) over the vocabulary at each token, [n_tokens].

    Args:
        log_probs, reference_log_probs: log-probabilities of all tokens, [n_tokens, vocabulary].
    """
    return (log_probs.exp() * (log_probs - reference_log_probs)).sum(-1)


def entropy(log_probs: torch.Tensor) -> torch.Tensor:
    """Return the entropy at each token in nats, [n_tokens], of log-probabilities [n_tokens, vocabulary]."""
    return -(log_probs.exp() * log_probs).sum(-1)
