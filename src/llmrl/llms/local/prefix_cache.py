"""Cache of the keys and values of prefixes of prompts: common system messages, and earlier turns of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MIN_PREFIX_LENGTH = 16
"""Minimum number of tokens at the beginning of a prompt whose keys and values are reused."""


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """Tokens with their keys and values.

    Attributes:
        tokens: token ids, [n_tokens] int64.
        layers: keys and values of each layer, [n_heads, n_tokens, head_size].
        adapter: name of the adapter on which keys and values depend.
        is_shared: whether several prompts begin with the tokens; otherwise they are a conversation.
    """

    tokens: np.ndarray
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    adapter: str
    is_shared: bool


class PrefixCache:
    """Cache of the keys and values of tokens that later prompts begin with.

    Chat prompts of one task begin with the same system message, and a prompt of a conversation begins with its earlier
    turns. Results equal those without the cache up to rounding. Models whose layers do not keep all keys and values
    (sliding windows, state spaces) are not cached.

    Args:
        max_tokens: maximum number of tokens in the cache, >= 0; the least recently used are removed.
    """

    def __init__(self, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._entries: list[CachedTokens] = []  # least recently used first

    @property
    def n_tokens(self) -> int:
        """Number of tokens in the cache."""
        return sum(len(entry.tokens) for entry in self._entries)

    def clear(self) -> None:
        """Discard all tokens, e.g. because the weights have changed."""
        self._entries.clear()

    def find(self, model: Any, prompts: Sequence[Sequence[int]], adapters: Sequence[str]) -> tuple[list[int], Any]:
        """Return the cached beginnings of prompts.

        If prompts without a cached beginning share one, it is computed first.

        Args:
            model: causal language model.
            prompts: token ids of the prompts, [n_prompts] of different lengths.
            adapters: name of the adapter that reads each prompt, on which keys and values depend.

        Returns:
            Number of cached tokens of each prompt, less than its length; transformers cache of these tokens, padded on
            the left, or None if no tokens are cached.
        """
        arrays = [np.array(prompt) for prompt in prompts]
        matches = [self._longest_match(tokens[:-1], name) for tokens, name in zip(arrays, adapters, strict=True)]
        if any(entry is None for entry, _ in matches) and len(prompts) > 1 and len(set(adapters)) == 1:
            length = shared_prefix_length(prompts)
            if MIN_PREFIX_LENGTH <= length <= self._max_tokens:
                shared = self._compute(model, arrays[0][:length], adapters[0])
                matches = [(shared, length) if shared and match[0] is None else match for match in matches]
        return [length for _, length in matches], _build_padded_cache(matches)

    def store(self, cache: Any, row: int, mask: torch.Tensor, tokens: Sequence[int], adapter: str) -> None:
        """Store the tokens of a conversation in place of its earlier turns.

        Args:
            cache: transformers cache of a batch.
            row: index of the conversation in the batch.
            mask: mask of its prompt, [width] int64: 1 token, 0 padding; the reply stands after it.
            tokens: token ids of prompt and reply, without tokens that were not read, [n_tokens].
            adapter: name of the adapter that reads the conversation.
        """
        import torch

        if len(tokens) > self._max_tokens or not keeps_all_tokens(cache):
            return
        array = np.array(tokens)
        previous_turns, length = self._longest_match(array, adapter)
        if previous_turns is not None and not previous_turns.is_shared and length == len(previous_turns.tokens):
            self._entries.remove(previous_turns)
        prompt = mask.nonzero().flatten()
        reply = torch.arange(len(mask), len(mask) + len(tokens) - len(prompt))
        # One transfer to the device for all layers.
        positions = torch.cat([prompt, reply]).to(cache.layers[0].keys.device)
        layers = [(layer.keys[row][:, positions], layer.values[row][:, positions]) for layer in cache.layers]
        self._add(CachedTokens(array, layers, adapter, is_shared=False))

    def _longest_match(self, tokens: np.ndarray, adapter: str) -> tuple[CachedTokens | None, int]:
        """Return the entry with the longest prefix in common with `tokens`, and its length; (None, 0) if short."""
        candidates = [entry for entry in self._entries if entry.adapter == adapter]
        lengths = [_common_prefix_length(tokens, entry.tokens) for entry in candidates]
        if max(lengths, default=0) < MIN_PREFIX_LENGTH:
            return None, 0
        best = candidates[int(np.argmax(lengths))]
        self._entries.remove(best)
        self._entries.append(best)
        return best, max(lengths)

    def _compute(self, model: Any, tokens: np.ndarray, adapter: str) -> CachedTokens | None:
        """Compute the keys and values of `tokens`; return None if the model cannot be cached."""
        import torch

        with torch.no_grad():
            ids = torch.tensor([tokens.tolist()], device=next(model.parameters()).device)
            cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
        if not keeps_all_tokens(cache):
            return None
        layers = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
        return self._add(CachedTokens(tokens, layers, adapter, is_shared=True))

    def _add(self, entry: CachedTokens) -> CachedTokens:
        self._entries.append(entry)
        while self.n_tokens > self._max_tokens:
            del self._entries[0]
        return entry


def _build_padded_cache(matches: Sequence[tuple[CachedTokens | None, int]]) -> Any:
    """Return a transformers cache of the first tokens of entries, padded on the left; None without any.

    Args:
        matches: entry and number of its tokens for each row of the cache, [n_rows].
    """
    import torch
    from transformers import DynamicCache

    row_indices_by_match: dict[tuple[CachedTokens, int], list[int]] = {}
    for row, (entry, length) in enumerate(matches):
        if entry is not None:
            row_indices_by_match.setdefault((entry, length), []).append(row)
    if not row_indices_by_match:
        return None
    width = max(length for _, length in row_indices_by_match)
    first_layers = next(iter(row_indices_by_match))[0].layers
    layers = [tuple(x.new_zeros(len(matches), x.shape[0], width, x.shape[2]) for x in layer) for layer in first_layers]
    for (entry, length), row_indices in row_indices_by_match.items():
        indices = torch.tensor(row_indices, device=layers[0][0].device)
        for target, source in zip(layers, entry.layers, strict=True):
            for target_values, cached_values in zip(target, source, strict=True):
                target_values[indices, :, width - length :] = cached_values[:, :length]
    return DynamicCache(layers)


def shared_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens that all prompts begin with, at most one less than the shortest prompt has.

    >>> shared_prefix_length([[1, 2, 3], [1, 2, 4, 5]]), shared_prefix_length([[1, 2]])
    (2, 1)
    """
    tokens = [list(prompt) for prompt in prompts]
    first, last = min(tokens), max(tokens)  # in lexicographic order; all others lie between the two
    limit = min(len(prompt) for prompt in prompts) - 1
    return _common_prefix_length(np.array(first[:limit]), np.array(last[:limit]))


def _common_prefix_length(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of equal elements at the beginning of two arrays."""
    length = min(len(first), len(second))
    is_different = first[:length] != second[:length]
    return int(is_different.argmax()) if is_different.any() else length


def keeps_all_tokens(cache: Any) -> bool:
    """Return whether a cache keeps all keys and values in every layer."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
