"""Losses of policy optimization over sampled tokens, as functions of tensors.

Tokens of a minibatch are one axis [n_tokens]; `reply` is the index of the reply of each token, [n_tokens] int64 in
0 .. n_replies - 1.
"""

from __future__ import annotations

from typing import Literal

import torch

from llmrl.algorithms.policy_gradient import surrogate

Aggregation = Literal["dapo", "grpo", "dr_grpo"]
RatioLevel = Literal["token", "reply"]


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
