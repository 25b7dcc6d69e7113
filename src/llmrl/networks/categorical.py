"""Categorical distributions over actions as plain functions of logits (cheaper than distribution objects)."""

from __future__ import annotations

import torch


def mask_logits(logits: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Logits [..., n_actions] with forbidden actions (mask false) at the dtype's minimum."""
    return logits if mask is None else logits.masked_fill(~mask.bool(), torch.finfo(logits.dtype).min)


def sample(logits: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
    """Draw actions [...] from softmax(logits [..., n_actions]) by the Gumbel-max trick.

    The noise is drawn where the generator lives (the processor) and moved, so a GPU draws what a processor would.
    """
    source = logits.device if generator is None else generator.device
    uniform = torch.rand(logits.shape, generator=generator, device=source, dtype=logits.dtype)
    # Nobody waits for a GPU: memory that is not pinned is read before the call returns.
    uniform = uniform.to(logits.device, non_blocking=logits.is_cuda)
    return choose(logits, uniform)


def choose(logits: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """The actions [...] that numbers `uniform` [..., n_actions], drawn from [0, 1), stand for (`sample`)."""
    limits = torch.finfo(logits.dtype)
    exponential = uniform.clamp(limits.tiny, 1 - limits.eps).log_().neg_()
    return (logits - exponential.log_()).argmax(-1)


def log_prob_entropy(logits: torch.Tensor, action: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """log pi(action) and entropy in nats, each [...], for logits [..., n_actions]."""
    log_probs = logits.log_softmax(-1)
    log_prob = log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)
    return log_prob, -(log_probs.exp() * log_probs).sum(-1)
