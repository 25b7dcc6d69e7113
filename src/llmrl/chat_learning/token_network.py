"""Differentiable distributions of a causal language model at the sampled tokens of sequences."""

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

    The common beginning of the sequences of a piece is computed once, with gradients.

    Args:
        language: the language model.
        temperature: divisor of the logits, > 0, equal to that of sampling.
        piece_tokens: maximum number of tokens in one forward pass, padding included; a longer sequence runs alone.
        precision: precision of the computation; `bfloat16` is autocast with unchanged weights.
        reuse_prefix: whether the common beginning is computed once; without effect if activations are recomputed.
        recompute: whether activations are computed again for the gradient (`enable_recomputation`).
        processes: processes that share the work.
    """

    def __init__(
        self,
        language: nn.Module,
        temperature: float,
        piece_tokens: int,
        precision: Precision,
        reuse_prefix: bool,
        recompute: bool,
        processes: ProcessGroup,
    ) -> None:
        super().__init__()
        self.language, self.temperature, self.piece_tokens = language, temperature, piece_tokens
        self.precision, self.recompute, self.processes = precision, recompute, processes
        self.reuse_prefix = reuse_prefix and not recompute
        self.tokens = 0  # number of positions computed so far

    def forward(self, sequences: Sequence[TokenSequence]) -> torch.Tensor:
        """Return log-probabilities at all sampled tokens in the order of sequences, [n_tokens, vocabulary] float32."""
        device = next(self.language.parameters()).device
        first = min(int(sequence.positions[0]) for sequence in sequences)
        # The logits that predict the first sampled token belong to the token before it, which is outside the prefix.
        length = min(shared_prefix_length([s.tokens for s in sequences]), first - 1) if self.reuse_prefix else 0
        length = length if length >= MIN_PREFIX_LENGTH and len(sequences) > 1 else 0
        tokens = [torch.tensor(sequence.tokens) for sequence in sequences]
        ids = pad_sequence(tokens, batch_first=True).to(device)
        mask = pad_sequence([torch.ones_like(x) for x in tokens], batch_first=True).to(device)
        width = ids.shape[1]
        row = torch.cat([torch.full((len(s.positions),), i) for i, s in enumerate(sequences)]).to(device)
        column = torch.cat([torch.from_numpy(s.positions) for s in sequences]).to(device) - 1
        columns, column_index = torch.unique(column, return_inverse=True)
        model: Any = self.language
        model.train(self.recompute and torch.is_grad_enabled())  # layers recompute in training mode only
        with self._autocast():
            options: dict[str, Any] = {"use_cache": False}
            if length:
                cache = model(input_ids=ids[:1, :length], use_cache=True, logits_to_keep=1).past_key_values
                cache.batch_repeat_interleave(len(sequences))
                options = {"past_key_values": cache, "use_cache": True}
            positions = torch.arange(length, width, device=device).expand(len(sequences), -1)
            logits = model(
                input_ids=ids[:, length:],
                attention_mask=mask,
                position_ids=positions,
                logits_to_keep=columns - length,
                **options,
            ).logits
        self.tokens += length + ids[:, length:].numel()
        model.eval()
        return torch.log_softmax(logits[row, column_index].float() / self.temperature, dim=-1)

    @torch.no_grad()
    def sampled_log_probs(self, sequences: Sequence[TokenSequence]) -> list[np.ndarray]:
        """Return the log-probabilities of the sampled tokens of each sequence, [n_sampled] float32."""
        log_probs = [np.empty(0, dtype=np.float32)] * len(sequences)
        for indices in plan_batches([len(s.tokens) for s in sequences], 0, self.piece_tokens):
            piece = [sequences[i] for i in indices]
            tokens = torch.from_numpy(np.concatenate([np.array(s.tokens)[s.positions] for s in piece]))
            sampled = self.forward(piece).cpu().gather(1, tokens[:, None]).squeeze(1).numpy()
            ends = np.cumsum([len(s.positions) for s in piece])[:-1]
            for i, sequence_log_probs in zip(indices, np.split(sampled, ends), strict=True):
                log_probs[i] = sequence_log_probs
        return log_probs

    def pieces(self, batch: Batch) -> Iterator[tuple[Batch, float]]:
        """Yield this process's pieces of a minibatch; the loss of the minibatch is the sum of those of all pieces."""
        sequences, world = batch["sequences"], self.processes.world_size
        lengths = [len(sequence.tokens) for sequence in sequences]
        # With several processes, pieces are so small that each process usually has one.
        budget = self.piece_tokens if world == 1 else min(self.piece_tokens, -(-sum(lengths) // world))
        plan = plan_batches(lengths, 0, budget)
        pieces = [batch | {"sequences": [sequences[i] for i in indices]} for indices in plan]
        share = pieces[self.processes.rank :: world]
        yield from ((piece, 1.0) for piece in share)
        if not share:  # records of all processes have equal names
            yield pieces[0], 0.0

    def _autocast(self) -> AbstractContextManager[Any]:
        device_type = next(self.language.parameters()).device.type
        return torch.autocast(device_type, dtype=torch.bfloat16, enabled=self.precision == "bfloat16")
