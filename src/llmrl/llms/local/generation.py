"""Generation of replies by a causal model in batches in which waiting prompts replace finished replies.

`ReplyGenerator` is the entry point. A logits processor (`GumbelNoise`) samples each reply from its own random stream.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from llmrl.core.errors import LLMError
from llmrl.core.ranges import NonNegativeFloat, PositiveInt, UnitInterval
from llmrl.core.seeding import Seeds
from llmrl.llms.local.prefix_cache import PrefixCache, keeps_all_tokens

if TYPE_CHECKING:
    import torch

MIN_FINISHED_FRACTION = 0.25
"""Fraction of a batch that must be finished before waiting prompts join it; lower fractions copy the cache often."""


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """Distribution and limits of sampled tokens.

    Attributes:
        temperature: temperature of the softmax, >= 0; 0: the most probable token is selected.
        top_p: cumulative probability of the most probable tokens that can be sampled (nucleus sampling), in [0, 1].
        max_tokens: maximum number of tokens of a reply.
        batch_tokens: maximum number of tokens of a batch with two or more prompts, replies of maximum length included.
    """

    temperature: NonNegativeFloat
    top_p: UnitInterval
    max_tokens: PositiveInt
    batch_tokens: PositiveInt


@dataclass(frozen=True)
class TokenPrompt:
    """Prompt as token ids, with the settings of its reply.

    Attributes:
        tokens: token ids.
        adapter: name of the adapter that the model uses.
        stream: random generator of the reply; None: the most probable tokens are selected.
        is_conversation: whether later prompts probably begin with this prompt and its reply.
    """

    tokens: Sequence[int]
    adapter: str
    stream: np.random.Generator | None
    is_conversation: bool


@dataclass
class SampledReply:
    """Sampled tokens of a reply, to which `ReplyGenerator` appends.

    Attributes:
        tokens: token ids; the last one of a finished reply is an end token unless the reply has the maximum length.
        log_probs: log-probabilities of the tokens; empty if they are not recorded.
    """

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Batch:
    """Prompts with their replies so far, padded on the left to a common width.

    Attributes:
        indices: indices of the prompts in the argument of `ReplyGenerator.generate`, [n].
        ids: token ids with padding, [n, width] int64.
        mask: 1 for tokens, 0 for padding, [n, width] int64.
        cache: transformers cache of the keys and values of the first columns; None: no keys and values are computed.
    """

    indices: Sequence[int]
    ids: torch.Tensor
    mask: torch.Tensor
    cache: Any

    def select(self, rows: Sequence[int]) -> Batch | None:
        """Return a batch of the given rows, without columns of padding only; None if there are no rows."""
        import torch
        from transformers import DynamicCache

        if not rows:
            return None
        row_indices = torch.tensor(rows, device=self.mask.device)
        mask = self.mask[row_indices]
        start = int(mask.any(0).int().argmax())
        layers = [(x.keys[row_indices][:, :, start:], x.values[row_indices][:, :, start:]) for x in self.cache.layers]
        indices = [self.indices[row] for row in rows]
        return Batch(indices, self.ids[row_indices, start:], mask[:, start:], DynamicCache(layers))

    def join(self, other: Batch) -> Batch:
        """Return a batch with the rows of both; the narrower batch is padded on the left."""
        import torch
        from torch.nn.functional import pad
        from transformers import DynamicCache

        width = max(self.ids.shape[1], other.ids.shape[1])
        n_padding = [width - batch.ids.shape[1] for batch in (self, other)]
        ids, mask = (
            torch.cat([pad(getattr(batch, name), (n, 0)) for batch, n in zip((self, other), n_padding, strict=True)])
            for name in ("ids", "mask")
        )
        layers = [
            tuple(
                torch.cat([pad(getattr(layer, name), (0, 0, n, 0)) for layer, n in zip(pair, n_padding, strict=True)])
                for name in ("keys", "values")
            )
            for pair in zip(self.cache.layers, other.cache.layers, strict=True)
        ]
        return Batch([*self.indices, *other.indices], ids, mask, DynamicCache(layers))


class ReplyGenerator:
    """Generator of replies by continuous batching (iteration-level scheduling; Yu et al. 2022, Orca).

    Waiting prompts join a batch when replies have ended, so that a long reply delays no other prompts. Models whose
    layers do not keep all keys and values (sliding windows, state spaces) finish a batch before the next begins.

    Args:
        model: causal language model, whose generation config contains its end tokens.
        settings: distribution and limits of sampled tokens.
        prefix_cache: cache of keys and values of prefixes of prompts.
        use_adapters: function from adapter names to a context in which row i of a batch uses the i-th adapter.
        record_log_probs: whether the log-probabilities of the tokens are recorded.
    """

    def __init__(
        self,
        model: Any,
        settings: SamplingSettings,
        prefix_cache: PrefixCache,
        use_adapters: Callable[[Sequence[str]], AbstractContextManager[None]],
        record_log_probs: bool,
    ) -> None:
        import torch

        self._model, self._settings, self._prefix_cache = model, settings, prefix_cache
        self._use_adapters, self._record_log_probs = use_adapters, record_log_probs
        config = model.generation_config
        self._end_tokens, self._pad_token = config.eos_token_id, config.pad_token_id
        with torch.no_grad():
            output = model(input_ids=torch.tensor([[self._pad_token]], device=model.device), use_cache=True)
        self._can_join_batches = keeps_all_tokens(getattr(output, "past_key_values", None))

    def generate(self, prompts: Sequence[TokenPrompt]) -> list[SampledReply]:
        """Return the replies in the order of `prompts`.

        Raises:
            LLMError: logits of the model are NaN.
        """
        replies = [SampledReply() for _ in prompts]
        waiting = deque(sorted(range(len(prompts)), key=lambda i: len(prompts[i].tokens)))
        batch: Batch | None = None
        while waiting or batch is not None:
            new_indices = self._pop_prompts(waiting, prompts, batch)
            if batch is None:
                batch = self._prepare_batch(new_indices, prompts)
            elif new_indices:
                # Compute the keys and values of the new prompts, and one token, so that the caches can be joined.
                new_batch = self._prepare_batch(new_indices, prompts)
                unfinished_batch = self._generate_tokens(new_batch, prompts, replies, n_tokens=1)
                batch = batch if unfinished_batch is None else batch.join(unfinished_batch)
            min_finished = len(batch.indices)
            if waiting and self._can_join_batches:
                min_finished = max(1, round(MIN_FINISHED_FRACTION * min_finished))
            batch = self._generate_tokens(batch, prompts, replies, min_finished=min_finished)
        return replies

    def _pop_prompts(self, waiting: deque[int], prompts: Sequence[TokenPrompt], batch: Batch | None) -> list[int]:
        """Remove the prompts for which the batch has room from `waiting`, and return their indices."""
        if batch is not None and not self._can_join_batches:
            return []
        new_indices: list[int] = []
        n_rows, width = (0, 0) if batch is None else batch.ids.shape
        while waiting:
            width = max(width, len(prompts[waiting[0]].tokens))
            n_tokens = (n_rows + len(new_indices) + 1) * (width + self._settings.max_tokens)
            if n_rows + len(new_indices) and n_tokens > self._settings.batch_tokens:
                break
            new_indices.append(waiting.popleft())
        return new_indices

    def _prepare_batch(self, indices: Sequence[int], prompts: Sequence[TokenPrompt]) -> Batch:
        """Return a new batch of the prompts with the given indices."""
        tokens, adapters = [prompts[i].tokens for i in indices], [prompts[i].adapter for i in indices]
        with self._use_adapters(adapters):
            n_cached, cache = self._prefix_cache.fetch(self._model, tokens, adapters)
        ids, mask = pad_left(tokens, self._pad_token, n_cached)
        return Batch(indices, ids.to(self._model.device), mask.to(self._model.device), cache)

    def _generate_tokens(
        self,
        batch: Batch,
        prompts: Sequence[TokenPrompt],
        replies: Sequence[SampledReply],
        n_tokens: int | None = None,
        min_finished: int | None = None,
    ) -> Batch | None:
        """Generate tokens; return a batch of the replies that are not finished, or None if all are finished.

        Args:
            batch: prompts with their replies so far.
            prompts: prompts of all batches.
            replies: replies of all batches, to which the new tokens are appended.
            n_tokens: maximum number of new tokens of each reply; None: until its maximum length.
            min_finished: number of finished replies at which generation is interrupted; None: all.
        """
        import torch
        from transformers import StoppingCriteriaList

        max_lengths = [self._settings.max_tokens - len(replies[i].tokens) for i in batch.indices]
        streams = [stream for i in batch.indices if (stream := prompts[i].stream) is not None]
        noise = GumbelNoise(streams, self._record_log_probs) if streams else None
        n_finished, device = min_finished or len(max_lengths), self._model.device
        criterion = FinishedRepliesCriterion(max_lengths, self._end_tokens, n_finished, device)
        with self._use_adapters([prompts[i].adapter for i in batch.indices]):
            # `generate` computes the positions of tokens from the mask, so padding does not change them.
            output = self._model.generate(
                batch.ids,
                attention_mask=batch.mask,
                logits_processor=self._make_logits_processors(noise),
                stopping_criteria=StoppingCriteriaList([criterion]),
                max_new_tokens=max(max_lengths) if n_tokens is None else n_tokens,
                return_dict_in_generate=True,
                **({} if batch.cache is None else {"past_key_values": batch.cache}),
            )
        new_tokens = output.sequences[:, batch.ids.shape[1] :]
        log_probs = torch.stack(noise.log_probs, dim=1).tolist() if noise is not None and noise.log_probs else None
        token_rows, lengths, is_finished = (x.tolist() for x in (new_tokens, criterion.lengths, criterion.is_finished))
        for row, (i, length) in enumerate(zip(batch.indices, lengths, strict=True)):
            prompt, reply = prompts[i], replies[i]
            reply.tokens += token_rows[row][:length]
            if log_probs is not None:
                reply.log_probs += log_probs[row][:length]
            if is_finished[row] and prompt.is_conversation:
                # The cache lacks the keys and values of the last column, because no later token has read it.
                n_without_cache = max(0, length - (new_tokens.shape[1] - 1))
                tokens = [*prompt.tokens, *reply.tokens[: len(reply.tokens) - n_without_cache]]
                self._prefix_cache.store(output.past_key_values, row, batch.mask[row], tokens, prompt.adapter)
        if all(is_finished):
            return None
        mask = torch.cat([batch.mask, torch.ones_like(new_tokens)], dim=1)
        extended_batch = replace(batch, ids=output.sequences, mask=mask, cache=output.past_key_values)
        return extended_batch.select(np.flatnonzero(np.logical_not(is_finished)).tolist())

    def _make_logits_processors(self, noise: GumbelNoise | None) -> Any:
        """Return the processors of logits. `generate` selects the maximum, which is a sample if `noise` is added."""
        from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopPLogitsWarper

        processors: list[Any] = [NanCheck()]
        if noise is not None:
            processors.append(TemperatureLogitsWarper(float(self._settings.temperature)))
            if self._settings.top_p < 1:
                processors.append(TopPLogitsWarper(float(self._settings.top_p)))
            processors.append(noise)
        return LogitsProcessorList(processors)


class FinishedRepliesCriterion:
    """Stopping criterion of `generate`: ends each reply at its limit, and all replies when enough are finished.

    Args:
        max_lengths: maximum number of new tokens of each reply, [n].
        end_tokens: token ids that end a reply.
        min_finished: number of finished replies at which generation ends.
        device: device of the token ids and of all computation.

    Attributes:
        is_finished: whether each reply has an end token or its maximum length, [n] bool.
        lengths: number of new tokens of each reply, [n] int64.
    """

    def __init__(
        self,
        max_lengths: Sequence[int],
        end_tokens: Sequence[int],
        min_finished: int,
        device: torch.device | str = "cpu",
    ) -> None:
        import torch

        self._max_lengths, self._min_finished = torch.tensor(max_lengths, device=device), min_finished
        self._end_tokens = torch.tensor(end_tokens, device=device)
        self.is_finished = torch.zeros(len(max_lengths), dtype=torch.bool, device=device)
        self.lengths = torch.zeros(len(max_lengths), dtype=torch.long, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        """Count the new last token of each row; return whether generation of each row ends, [n] bool."""
        import torch

        self.lengths += ~self.is_finished
        is_end_token = torch.isin(input_ids[:, -1], self._end_tokens)
        self.is_finished |= is_end_token | (self.lengths >= self._max_lengths)
        return self.is_finished | (self.is_finished.sum() >= self._min_finished)


def make_request_generator(seeds: Seeds, key: str) -> np.random.Generator:
    """Return a random generator seeded by `seeds` and all bits of `key`, the hexadecimal hash of a request."""
    *chunks, last_chunk = (int(key[max(0, end - 8) : end], 16) for end in range(len(key), 0, -8))
    return functools.reduce(Seeds.child, chunks, seeds).numpy(last_chunk)


class GumbelNoise:
    """Logits processor for `generate` that adds Gumbel noise, so that the most probable token is a random sample.

    argmax(log p + G) with independent Gumbel(0, 1) noise G is a sample of p (the Gumbel-max trick; Gumbel 1954). In
    contrast to inversion of the distribution function, a small change of log p changes the sample only if the two
    largest values of log p + G are almost equal, so replies rarely depend on rounding errors.

    Args:
        streams: random generator of each sequence; each step draws one number per token of the vocabulary.
        record_log_probs: whether the log-probabilities of the sampled tokens are recorded.

    Attributes:
        log_probs: log p of the sampled tokens, [batch] float32 for each step; empty if they are not recorded.
    """

    def __init__(self, streams: Sequence[np.random.Generator], record_log_probs: bool = False) -> None:
        self._random_generators, self._record_log_probs = list(streams), record_log_probs
        self.log_probs: list[torch.Tensor] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores plus noise, [batch, vocabulary]."""
        import torch

        # On the CPU, so that noise does not depend on the device; in float64, so that a draw is practically never 0.
        draws = np.stack([stream.standard_exponential(scores.shape[1]) for stream in self._random_generators])
        noise = -torch.from_numpy(draws).log_()
        noisy_scores = scores + noise.to(scores.device, scores.dtype)
        if self._record_log_probs:
            tokens = noisy_scores.argmax(-1, keepdim=True)
            self.log_probs.append(scores.float().log_softmax(-1).gather(-1, tokens).squeeze(-1))
        return noisy_scores


class NanCheck:
    """Logits processor that raises LLMError if logits are NaN, because the maximum is then arbitrary."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if bool(scores.isnan().any()):
            raise LLMError(
                "the model's scores are NaN, probably because a model trained in bfloat16 overflows in float16. Set "
                "llm.dtype=bfloat16 or llm.dtype=float32"
            )
        return scores


def plan_batches(lengths: Sequence[int], max_reply_tokens: int, batch_tokens: int) -> list[list[int]]:
    """Group the indices of prompts with similar lengths into batches.

    A batch of n >= 2 prompts satisfies n x (max(lengths) + max_reply_tokens) <= batch_tokens, where `lengths` are the
    numbers of tokens of its prompts and `max_reply_tokens` is the maximum number of tokens of a reply.

    >>> plan_batches([5, 1, 5, 2], max_reply_tokens=1, batch_tokens=12)
    [[1, 3], [0, 2]]
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        # The new prompt is the longest, because prompts are sorted by length.
        if batches and (len(batches[-1]) + 1) * (lengths[i] + max_reply_tokens) <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def pad_left(
    prompts: Sequence[Sequence[int]], pad_token: int, n_cached: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [n_prompts, width] int64 padded on the left, and a mask of the same shape: 1 token, 0 padding.

    Cached prefixes and the rest of the prompts are padded separately, so that all prefixes end at the same column.

    Args:
        prompts: token ids, [n_prompts] of different lengths.
        pad_token: token id of the padding.
        n_cached: number of tokens at the beginning of each prompt that are in a cache; None: 0 for all prompts.

    >>> pad_left([[1, 2, 3], [4, 5]], 0, [1, 0])[0].tolist()
    [[1, 2, 3], [0, 4, 5]]
    """
    import torch

    prefix_lengths = [0] * len(prompts) if n_cached is None else n_cached
    max_prefix_length = max(prefix_lengths)
    max_suffix_length = max(len(prompt) - n for prompt, n in zip(prompts, prefix_lengths, strict=True))
    ids, mask = [], []
    for prompt, n in zip(prompts, prefix_lengths, strict=True):
        n_pads = max_prefix_length - n, max_suffix_length - len(prompt) + n
        ids.append([*[pad_token] * n_pads[0], *prompt[:n], *[pad_token] * n_pads[1], *prompt[n:]])
        mask.append([*[0] * n_pads[0], *[1] * n, *[0] * n_pads[1], *[1] * (len(prompt) - n)])
    return torch.tensor(ids), torch.tensor(mask)
