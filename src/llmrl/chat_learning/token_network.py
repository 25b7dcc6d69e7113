"""Differentiable token distributions of a causal language model at the sampled positions of sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal

import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

from llmrl.algorithms.optimizer_step import Batch
from llmrl.core.processes import ProcessGroup
from llmrl.llms.local.generation import plan_batches
from llmrl.llms.local.learning import TokenSequence
from llmrl.llms.local.prefix_cache import MIN_PREFIX_LENGTH, shared_prefix_length

Precision = Literal["float32", "bfloat16"]


class TokenNetwork(nn.Module):
    """Causal language model as a function from sequences to the distributions of their sampled tokens.

    A piece is the part of a minibatch that one forward pass computes. The common prefix of its sequences is computed
    once, with gradients.

    Args:
        language_model: the language model.
        temperature: divisor of the logits, > 0, equal to the sampling temperature.
        max_piece_tokens: maximum number of tokens in one forward pass, padding included; a longer sequence runs alone.
        precision: precision of the computation; `bfloat16` is autocast with unchanged weights.
        reuse_prefix: whether the common prefix is computed once; without effect if activations are recomputed.
        recompute: whether activations are recomputed in the backward pass (`enable_recomputation`).
        processes: processes among which the pieces of each minibatch are divided.
    """

    def __init__(
        self,
        language_model: nn.Module,
        temperature: float,
        max_piece_tokens: int,
        precision: Precision,
        reuse_prefix: bool,
        recompute: bool,
        processes: ProcessGroup,
    ) -> None:
        super().__init__()
        self.language_model, self.temperature, self.max_piece_tokens = language_model, temperature, max_piece_tokens
        self.precision, self.recompute, self.processes = precision, recompute, processes
        self.reuse_prefix = reuse_prefix and not recompute
        self.n_computed_positions = 0  # token positions computed so far, padding included

    def forward(self, sequences: Sequence[TokenSequence]) -> torch.Tensor:
        """Return log-probabilities at all sampled tokens in the order of sequences, [n_tokens, vocabulary] float32."""
        device = next(self.language_model.parameters()).device
        first_position = min(int(sequence.positions[0]) for sequence in sequences)
        # The position before the first sampled token must stay outside the prefix, because its logits are needed.
        shared_length = shared_prefix_length([s.tokens for s in sequences]) if self.reuse_prefix else 0
        prefix_length = min(shared_length, first_position - 1)
        prefix_length = prefix_length if prefix_length >= MIN_PREFIX_LENGTH and len(sequences) > 1 else 0
        tokens = [torch.tensor(sequence.tokens) for sequence in sequences]
        ids = pad_sequence(tokens, batch_first=True).to(device)
        mask = pad_sequence([torch.ones_like(x) for x in tokens], batch_first=True).to(device)
        padded_length = ids.shape[1]
        sequence_index = torch.cat([torch.full((len(s.positions),), i) for i, s in enumerate(sequences)]).to(device)
        logit_position = torch.cat([torch.from_numpy(s.positions) for s in sequences]).to(device) - 1
        distinct_positions, distinct_index = torch.unique(logit_position, return_inverse=True)
        model: Any = self.language_model
        model.train(self.recompute and torch.is_grad_enabled())  # transformers recomputes only in training mode
        with self._autocast():
            options: dict[str, Any] = {"use_cache": False}
            if prefix_length:
                cache = model(input_ids=ids[:1, :prefix_length], use_cache=True, logits_to_keep=1).past_key_values
                cache.batch_repeat_interleave(len(sequences))
                options = {"past_key_values": cache, "use_cache": True}
            logits = model(
                input_ids=ids[:, prefix_length:],
                attention_mask=mask,
                position_ids=torch.arange(prefix_length, padded_length, device=device).expand(len(sequences), -1),
                logits_to_keep=distinct_positions - prefix_length,
                **options,
            ).logits
        self.n_computed_positions += prefix_length + ids[:, prefix_length:].numel()
        model.eval()
        return torch.log_softmax(logits[sequence_index, distinct_index].float() / self.temperature, dim=-1)

    @torch.no_grad()
    def compute_sampled_log_probs(self, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
        """Return the log-probabilities of the sampled tokens of each sequence, [n_sampled] float32."""
        log_probs = [np.empty(0, dtype=np.float32)] * len(sequences)
        for indices in plan_batches([len(s.tokens) for s in sequences], 0, self.max_piece_tokens):
            piece = [sequences[i] for i in indices]
            tokens = torch.from_numpy(np.concatenate([np.array(s.tokens)[s.positions] for s in piece]))
            sampled = self.forward(piece).cpu().gather(1, tokens[:, None]).squeeze(1).numpy()
            ends = np.cumsum([len(s.positions) for s in piece])[:-1]
            for i, sequence_log_probs in zip(indices, np.split(sampled, ends), strict=True):
                log_probs[i] = sequence_log_probs
        return log_probs

    def split_into_pieces(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield this process's pieces of a minibatch, each with the weight of its loss; see `GradientAccumulation`.

        The weights are 1, because the losses of the pieces already sum to the loss of the minibatch.
        """
        sequences, world_size = batch["sequences"], self.processes.world_size
        lengths = [len(sequence.tokens) for sequence in sequences]
        # With several processes, pieces are limited to a process's share of the tokens, so that each has work.
        limit = self.max_piece_tokens if world_size == 1 else min(self.max_piece_tokens, -(-sum(lengths) // world_size))
        pieces = [batch | {"sequences": [sequences[i] for i in indices]} for indices in plan_batches(lengths, 0, limit)]
        local_pieces = pieces[self.processes.rank :: world_size]
        yield from ((piece, 1.0) for piece in local_pieces)
        if not local_pieces:  # metrics are summed over processes, so each process must compute all of them
            yield pieces[0], 0.0

    def _autocast(self) -> AbstractContextManager[Any]:
        device_type = next(self.language_model.parameters()).device.type
        return torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")
