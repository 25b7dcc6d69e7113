"""Sampling of tokens in `generate` of transformers: a random stream for each reply, and recorded log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.seeding import Seeds

if TYPE_CHECKING:
    import torch


def request_stream(seeds: Seeds, key: str) -> np.random.Generator:
    """Return the random generator of a request, seeded by all bits of the request's hexadecimal key."""
    *words, last = (int(key[max(0, end - 8) : end], 16) for end in range(len(key), 0, -8))
    for word in words:
        seeds = seeds.child(word)
    return seeds.numpy(last)


class GumbelNoise:
    """Logits processor for `generate` that makes the greedy choice of sequence i a sample from stream i.

    argmax(log p + G) with independent Gumbel(0, 1) noise G is a sample of p (the Gumbel-max trick; Gumbel 1954). In
    contrast to inversion of the distribution function, a tiny change of log p changes the choice only if the two best
    candidates are about equally good, so that replies hardly depend on rounding.

    Args:
        streams: one generator for each sequence of the batch; each step draws one number per token of the vocabulary.
        record: whether the log-probabilities of the choices are recorded.

    Attributes:
        log_probs: log p of the choices of each step, [batch] float32, if they are recorded.
    """

    def __init__(self, streams: Sequence[np.random.Generator], record: bool = False) -> None:
        self._streams, self._record = list(streams), record
        self.log_probs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores plus noise, [batch, vocabulary]."""
        import torch

        # Drawn on the CPU, so that devices get the same numbers, and in float64, where zero practically never occurs.
        draws = np.stack([stream.standard_exponential(scores.shape[1]) for stream in self._streams])
        noise = -torch.from_numpy(draws).log_()
        noisy = scores + noise.to(scores.device, scores.dtype)
        if self._record:
            chosen = noisy.argmax(-1, keepdim=True)
            self.log_probs.append(scores.float().log_softmax(-1).gather(-1, chosen).squeeze(-1))
        return noisy


class RefuseNan:
    """Logits processor that raises LLMError if scores are NaN; otherwise the greedy choice would be arbitrary."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if bool(scores.isnan().any()):
            raise LLMError(
                "the model's scores are NaN, probably because a model trained in bfloat16 overflows in float16. Set "
                "llm.dtype=bfloat16 or llm.dtype=float32"
            )
        return scores
