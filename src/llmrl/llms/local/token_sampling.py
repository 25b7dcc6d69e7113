"""Sampling tokens so that a reply depends on its own random stream and on no other reply of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from llmrl.core.errors import LLMError

if TYPE_CHECKING:
    import torch


class GumbelNoise:
    """A logits processor for `generate` that makes the greedy choice of row i a sample, drawn from row i's stream.

    argmax(log p + G) with independent Gumbel(0, 1) noise G is a sample of p (the Gumbel-max trick; Gumbel 1954).
    Compared with inverting the distribution function, a tiny change of log p changes the choice only where the two
    best candidates are about equally good, so that replies hardly depend on rounding.

    Args:
        streams: a generator for each row of the batch; advanced by one draw per token of the vocabulary and step.

    Raises:
        LLMError: on the model's scores being no numbers.
    """

    def __init__(self, streams: Sequence[np.random.Generator]) -> None:
        self._streams = list(streams)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [batch, vocabulary] plus noise."""
        import torch

        # On the processor, so that devices draw alike; float64, whose draws are never zero in practice.
        draws = np.stack([stream.standard_exponential(scores.shape[1]) for stream in self._streams])
        noise = -torch.from_numpy(draws).log_()
        return scores + noise.to(scores.device, scores.dtype)


class RefuseNan:
    """A logits processor that stops a model whose numbers overflow: the greedy choice among NaN is any token."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if bool(scores.isnan().any()):
            raise LLMError(
                "the model's scores are no numbers (NaN): models trained in bfloat16 overflow in float16. Set "
                "llm.dtype=bfloat16 or llm.dtype=float32"
            )
        return scores
