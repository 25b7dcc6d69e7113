"""Generation of replies by a causal model in batches whose finished replies are replaced by waiting prompts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.llms.local.batching import pad_left
from llmrl.llms.local.prefix_cache import PrefixCache, has_all_tokens
from llmrl.llms.local.token_sampling import GumbelNoise, RefuseNan

if TYPE_CHECKING:
    import torch

FREED_SHARE = 0.25
"""Share of a batch that has to be finished before waiting prompts join it; each change of a batch copies its cache."""


@dataclass(frozen=True)
class SamplingSettings:
    """Distribution and limits of sampled tokens.

    Attributes:
        temperature: temperature of the softmax, >= 0; 0: the most probable token.
        top_p: probability mass of the tokens that are sampled, in [0, 1].
        max_tokens: maximum length of a reply.
        batch_tokens: maximum number of tokens of a batch with two or more prompts, replies of maximum length included.
    """

    temperature: float
    top_p: float
    max_tokens: int
    batch_tokens: int


@dataclass(frozen=True)
class Prompt:
    """Prompt of a reply.

    Attributes:
        tokens: token ids.
        adapter: name of the adapter that reads it.
        stream: random generator of the reply; None: the most probable tokens.
        is_conversation: whether later prompts are expected to begin with prompt and reply.
    """

    tokens: Sequence[int]
    adapter: str
    stream: np.random.Generator | None
    is_conversation: bool


@dataclass
class SampledReply:
    """Reply under construction.

    Attributes:
        tokens: token ids; the last one is an end token unless the reply is cut.
        log_probs: log-probabilities of the tokens, if they are recorded.
    """

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts with their replies so far, which end in the last column.

    Attributes:
        indices: indices of the prompts, [n].
        ids: token ids with padding, [n, width] int64.
        mask: 1 for tokens, 0 for padding, [n, width] int64.
        cache: transformers cache of the first columns; None: nothing is computed.
    """

    indices: Sequence[int]
    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any

    def select(self, rows: Sequence[int]) -> Batch | None:
        """Return the batch with some rows only, without columns that are padding in all of them; None without rows."""
        import torch
        from transformers import DynamicCache

        if not rows:
            return None
        chosen = torch.tensor(rows, device=self.mask.device)
        mask = self.mask[chosen]
        start = int(mask.any(0).int().argmax())
        layers = [(x.keys[chosen][:, :, start:], x.values[chosen][:, :, start:]) for x in self.cache.layers]
        indices = [self.indices[row] for row in rows]
        return Batch(indices, self.ids[chosen, start:], mask[:, start:], DynamicCache(layers))

    def join(self, other: Batch) -> Batch:
        """Return the rows of both batches; the narrower one is padded on the left."""
        import torch
        from torch.nn.functional import pad
        from transformers import DynamicCache

        width = max(self.ids.shape[1], other.ids.shape[1])
        pads = [width - batch.ids.shape[1] for batch in (self, other)]
        ids, mask = (
            torch.cat([pad(getattr(batch, name), (n, 0)) for batch, n in zip((self, other), pads, strict=True)])
            for name in ("ids", "mask")
        )
        layers = [
            tuple(
                torch.cat([pad(getattr(layer, name), (0, 0, n, 0)) for layer, n in zip(pair, pads, strict=True)])
                for name in ("keys", "values")
            )
            for pair in zip(self.cache.layers, other.cache.layers, strict=True)
        ]
        return Batch([*self.indices, *other.indices], ids, mask, DynamicCache(layers))


class Generator:
    """Continuous batching with transformers' `generate` (iteration-level scheduling; Yu et al. 2022, Orca).

    Waiting prompts join a batch when replies have ended, so that a long reply delays no other prompts. Models whose
    layers do not keep all keys and values (sliding windows, state spaces) finish a batch before the next.

    Args:
        model: causal language model, whose generation config has its end tokens.
        settings: distribution and limits.
        prefix: cache of the beginnings of prompts.
        using: function that returns a context in which the rows of a batch use the adapters with given names.
        record: whether log-probabilities are recorded.
    """

    def __init__(
        self,
        model: Any,
        settings: SamplingSettings,
        prefix: PrefixCache,
        using: Callable[[Sequence[str]], AbstractContextManager[None]],
        record: bool,
    ) -> None:
        self._model, self._settings, self._prefix = model, settings, prefix
        self._using, self._record = using, record
        config = model.generation_config
        self._end_tokens, self._pad_token = config.eos_token_id, config.pad_token_id
        self._is_divisible = has_all_tokens(_cache_of_token(model, self._pad_token))

    def generate(self, prompts: Sequence[Prompt]) -> list[SampledReply]:
        """Return the replies in the order of `prompts`.

        Raises:
            LLMError: scores of the model are NaN.
        """
        replies = [SampledReply() for _ in prompts]
        waiting = deque(sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens)))
        batch: Batch | None = None
        while waiting or batch is not None:
            admitted = self._admit(waiting, prompts, batch)
            if batch is None:
                batch = self._begin(admitted, prompts)
            elif admitted:
                # The prompts are read before they join the batch, whose other rows have one new token each.
                started = self._extend(self._begin(admitted, prompts), prompts, replies, n_tokens=1)
                batch = batch if started is None else batch.join(started)
            n_finished = len(batch.indices)
            if waiting and self._is_divisible:
                n_finished = max(1, round(FREED_SHARE * n_finished))
            batch = self._extend(batch, prompts, replies, n_finished=n_finished)
        return replies

    def _admit(self, waiting: deque[int], prompts: Sequence[Prompt], batch: Batch | None) -> list[int]:
        """Remove the prompts that can join a batch from `waiting`; return their indices."""
        admitted: list[int] = []
        if batch is not None and not self._is_divisible:
            return admitted
        n_rows, width = (0, 0) if batch is None else batch.ids.shape
        while waiting:
            width = max(width, len(prompts[waiting[0]].tokens))
            n_tokens = (n_rows + len(admitted) + 1) * (width + self._settings.max_tokens)
            if n_rows + len(admitted) and n_tokens > self._settings.batch_tokens:
                break
            admitted.append(waiting.popleft())
        return admitted

    def _begin(self, indices: Sequence[int], prompts: Sequence[Prompt]) -> Batch:
        """Return a batch of prompts without replies."""
        tokens, adapters = [prompts[i].tokens for i in indices], [prompts[i].adapter for i in indices]
        with self._using(adapters):
            cached = self._prefix.find(self._model, tokens, adapters)
        ids, mask = pad_left(tokens, self._pad_token, cached.lengths)
        device = self._model.device
        return Batch(indices, ids.to(device), mask.to(device), cached.cache)

    def _extend(
        self,
        batch: Batch,
        prompts: Sequence[Prompt],
        replies: Sequence[SampledReply],
        n_tokens: int | None = None,
        n_finished: int | None = None,
    ) -> Batch | None:
        """Extend the replies of a batch; return the batch of those that are not finished, None if all are.

        Args:
            batch: prompts with their replies so far.
            prompts: all prompts.
            replies: all replies, to which the new tokens are added.
            n_tokens: maximum number of new tokens of each reply; None: up to its maximum length.
            n_finished: number of finished replies at which generation ends; None: all.
        """
        import torch
        from transformers import StoppingCriteriaList

        limits = [self._settings.max_tokens - len(replies[i].tokens) for i in batch.indices]
        noise = self._noise([prompts[i] for i in batch.indices])
        n_finished = len(limits) if n_finished is None else n_finished
        finished = FinishedReplies(limits, self._end_tokens, n_finished, self._model.device)
        with self._using([prompts[i].adapter for i in batch.indices]):
            # `generate` derives the positions from the mask, so padding does not shift them.
            output = self._model.generate(
                batch.ids,
                attention_mask=batch.mask,
                logits_processor=self._processors(noise),
                stopping_criteria=StoppingCriteriaList([finished]),
                max_new_tokens=max(limits) if n_tokens is None else n_tokens,
                return_dict_in_generate=True,
                **({} if batch.cache is None else {"past_key_values": batch.cache}),
            )
        new_tokens = output.sequences[:, batch.ids.shape[1] :]
        log_probs = None
        if noise is not None and noise.log_probs:
            log_probs = torch.stack(noise.log_probs, dim=1).tolist()
        rows = new_tokens.tolist()
        lengths = finished.lengths.tolist()
        for row, (i, length) in enumerate(zip(batch.indices, lengths, strict=True)):
            replies[i].tokens += rows[row][:length]
            if log_probs is not None:
                replies[i].log_probs += log_probs[row][:length]
        is_finished = finished.is_finished.tolist()
        for row, i in enumerate(batch.indices):
            # Only conversations are stored: most requests with a single question are not continued.
            if is_finished[row] and prompts[i].is_conversation:
                # The cache has no keys and values of the last column.
                n_unread = max(0, lengths[row] - (new_tokens.shape[1] - 1))
                reply = replies[i].tokens
                tokens = [*prompts[i].tokens, *reply[: len(reply) - n_unread]]
                self._prefix.store(output.past_key_values, row, batch.mask[row], tokens, prompts[i].adapter)
        if all(is_finished):
            return None
        mask = torch.cat([batch.mask, torch.ones_like(new_tokens)], dim=1)
        extended = replace(batch, ids=output.sequences, mask=mask, cache=output.past_key_values)
        return extended.select([row for row, value in enumerate(is_finished) if not value])

    def _noise(self, prompts: Sequence[Prompt]) -> GumbelNoise | None:
        """Return the noise that makes the most probable token a sample; None if the most probable one is taken."""
        streams = [prompt.stream for prompt in prompts if prompt.stream is not None]
        return GumbelNoise(streams, self._record) if streams else None

    def _processors(self, noise: GumbelNoise | None) -> Any:
        """Return the processors that turn logits into a sampled choice; `generate` itself takes the maximum."""
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

        processors: list[Any] = [RefuseNan()]
        if noise is not None:
            processors.append(TemperatureLogitsWarper(float(self._settings.temperature)))
            if self._settings.top_p < 1:
                processors.append(TopPLogitsWarper(float(self._settings.top_p)))
            processors.append(noise)
        return LogitsProcessorList(processors)


class FinishedReplies:
    """Criterion of `generate` that ends replies at their limits, and all of them when enough are finished.

    Args:
        limits: maximum number of new tokens of each reply, [n].
        end_tokens: token ids that end a reply.
        n_finished: number of finished replies at which generation ends.
        device: device of the replies, which no step copies to the CPU.

    Attributes:
        is_finished: whether a reply has ended, [n] bool.
        lengths: number of new tokens of each reply, [n] int64.
    """

    def __init__(
        self, limits: Sequence[int], end_tokens: Sequence[int], n_finished: int, device: torch.device | str = "cpu"
    ) -> None:
        import torch

        self._limits, self._n_finished = torch.tensor(limits, device=device), n_finished
        self._end_tokens = torch.tensor(end_tokens, device=device)
        self.is_finished = torch.zeros(len(limits), dtype=torch.bool, device=device)
        self.lengths = torch.zeros(len(limits), dtype=torch.long, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Return which rows are finished after another token, [n] bool."""
        import torch

        self.lengths += ~self.is_finished
        ended = torch.isin(input_ids[:, -1], self._end_tokens)
        self.is_finished |= ended | (self.lengths >= self._limits)
        return self.is_finished | (self.is_finished.sum() >= self._n_finished)


def _cache_of_token(model: Any, token: int) -> Any:
    """Return the transformers cache of one token."""
    import torch

    with torch.no_grad():
        output = model(input_ids=torch.tensor([[token]], device=model.device), use_cache=True)
    return getattr(output, "past_key_values", None)
