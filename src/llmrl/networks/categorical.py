"""Categorical distributions over actions as functions of logits (faster than distribution objects)."""

from __future__ import annotations

import torch


def mask_logits(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return logits [..., n_actions] with illegal actions (mask false) at the dtype's minimum."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), torch.finfo(logits.dtype).min)


def sample(logits: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw actions [...] from softmax(logits [..., n_actions]) by the Gumbel-max trick."""
    return choose(logits, uniform(logits, logits.shape[-1], generator))


def uniform(like: torch.Tensor, n: int, generator: torch.Generator | None) -> torch.Tensor:
    """Draw `n` numbers from [0, 1) for each vector of `like` [..., m], as [..., n], on its device.

    They are drawn on the generator's device (the CPU) and copied, so that results on a GPU equal those on a CPU.
    """
    source = like.device if generator is None else generator.device
    samples = torch.rand((*like.shape[:-1], n), generator=generator, device=source, dtype=like.dtype)
    # The copy does not wait for a GPU: memory that is not pinned is read before the call returns.
    return samples.to(like.device, non_blocking=like.is_cuda)


def choose(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Return the actions [...] that correspond to numbers `uniform` [..., n_actions], drawn from [0, 1) (`sample`)."""
    limits = torch.finfo(logits.dtype)
    exponential = uniform.clamp(limits.tiny, 1 - limits.eps).log_().neg_()
    return (logits - exponential.log_()).argmax(-1)


def log_prob_entropy(logits: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log pi(action) and entropy in nats, each [...], for logits [..., n_actions]."""
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs).sum(-1)
