"""Cache of the keys and values of prefixes of prompts: common system messages, and earlier turns of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

MIN_PREFIX_LENGTH = 16
"""Minimum length, in tokens, of a prefix whose keys and values are reused."""


@dataclass(frozen=True, eq=False)
class CachedTokens:
    """Cached tokens with their keys and values.

    Attributes:
        tokens: token ids, [n_tokens] int64.
        layers: keys and values of each layer, [n_heads, n_tokens, head_size].
        adapter: name of the adapter on which keys and values depend.
        is_shared: whether the tokens are a common prefix of several prompts; otherwise they are a conversation.
    """

    tokens: np.ndarray
    layers: Sequence[tuple[torch.Tensor, torch.Tensor]]
    adapter: str
    is_shared: bool


class PrefixCache:
    """Cache of the keys and values of tokens with which later prompts begin.

    Chat prompts of one task begin with the same system message, and a prompt of a conversation begins with its earlier
    turns. The cache changes results only by rounding errors. Models whose layers do not keep all keys and values
    (sliding windows, state spaces) are not cached.

    Args:
        max_tokens: maximum number of tokens in the cache, >= 0; if exceeded, the least recently used entry is removed.
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

    def fetch(self, model: Any, prompts: Sequence[Sequence[int]], adapters: Sequence[str]) -> tuple[list[int], Any]:
        """Return the keys and values of the longest cached prefix of each prompt.

        If a prompt has none, the common prefix of several prompts with the same adapter is computed and cached.

        Args:
            model: causal language model.
            prompts: token ids of the prompts, [n_prompts] of different lengths.
            adapters: name of the adapter of each prompt, on which keys and values depend.

        Returns:
            Number of cached tokens of each prompt, less than its length; transformers cache of these tokens, padded on
            the left, or None if no tokens are cached.
        """
        arrays = [np.array(prompt) for prompt in prompts]
        matches = [self._use_longest_match(tokens[:-1], name) for tokens, name in zip(arrays, adapters, strict=True)]
        if any(entry is None for entry, _ in matches) and len(prompts) > 1 and len(set(adapters)) == 1:
            prefix_length = shared_prefix_length(prompts)
            if MIN_PREFIX_LENGTH <= prefix_length <= self._max_tokens:
                shared_entry = self._compute_and_add(model, arrays[0][:prefix_length], adapters[0])
                matches = [
                    (shared_entry, prefix_length) if shared_entry and match[0] is None else match for match in matches
                ]
        return [prefix_length for _, prefix_length in matches], _build_padded_cache(matches)

    def store(self, cache: Any, row: int, mask: torch.Tensor, tokens: Sequence[int], adapter: str) -> None:
        """Store the tokens of a conversation, and remove those of its earlier turns.

        Args:
            cache: transformers cache of a batch.
            row: index of the conversation in the batch.
            mask: mask of the padded prompt, [width] int64: 1 token, 0 padding; the reply begins at position `width`.
            tokens: token ids of prompt and reply whose keys and values are in `cache`, [n_tokens].
            adapter: name of the adapter of the conversation.
        """
        import torch

        if len(tokens) > self._max_tokens or not keeps_all_tokens(cache):
            return
        token_array = np.array(tokens)
        previous_turns, common_length = self._use_longest_match(token_array, adapter)
        if previous_turns is not None and not previous_turns.is_shared and common_length == len(previous_turns.tokens):
            self._entries.remove(previous_turns)
        prompt_positions = mask.nonzero().flatten()
        reply_positions = torch.arange(len(mask), len(mask) + len(tokens) - len(prompt_positions))
        # Positions are transferred to the device once, not for each layer.
        positions = torch.cat([prompt_positions, reply_positions]).to(cache.layers[0].keys.device)
        layers = [(layer.keys[row][:, positions], layer.values[row][:, positions]) for layer in cache.layers]
        self._add(CachedTokens(token_array, layers, adapter, is_shared=False))

    def _use_longest_match(self, tokens: np.ndarray, adapter: str) -> tuple[CachedTokens | None, int]:
        """Return the entry with the longest common prefix, marked as used, and this length; (None, 0) if too short."""
        candidates = [entry for entry in self._entries if entry.adapter == adapter]
        lengths = [_common_prefix_length(tokens, entry.tokens) for entry in candidates]
        if max(lengths, default=0) < MIN_PREFIX_LENGTH:
            return None, 0
        best_entry = candidates[int(np.argmax(lengths))]
        self._entries.remove(best_entry)
        self._entries.append(best_entry)
        return best_entry, max(lengths)

    def _compute_and_add(self, model: Any, tokens: np.ndarray, adapter: str) -> CachedTokens | None:
        """Compute and cache the keys and values of a shared prefix; return None if the model does not keep them all."""
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
    """Return a transformers cache of prefixes, padded on the left; None if no row has one.

    Args:
        matches: for each row of the batch, an entry and the number of its first tokens to use, or (None, 0).
    """
    import torch
    from transformers import DynamicCache

    rows_by_match: dict[tuple[CachedTokens, int], list[int]] = {}
    for row, (entry, length) in enumerate(matches):
        if entry is not None:
            rows_by_match.setdefault((entry, length), []).append(row)
    if not rows_by_match:
        return None
    width = max(length for _, length in rows_by_match)
    first_layers = next(iter(rows_by_match))[0].layers
    layers = [tuple(x.new_zeros(len(matches), x.shape[0], width, x.shape[2]) for x in layer) for layer in first_layers]
    for (entry, length), rows in rows_by_match.items():
        indices = torch.tensor(rows, device=layers[0][0].device)
        for target, source in zip(layers, entry.layers, strict=True):
            for target_values, cached_values in zip(target, source, strict=True):
                target_values[indices, :, width - length :] = cached_values[:, :length]
    return DynamicCache(layers)


def shared_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the length of the common prefix of all prompts, at most the length of the shortest prompt minus 1.

    >>> shared_prefix_length([[1, 2, 3], [1, 2, 4, 5]]), shared_prefix_length([[1, 2]])
    (2, 1)
    """
    tokens = [list(prompt) for prompt in prompts]
    first, last = min(tokens), max(tokens)  # all others are between these two in lexicographic order
    limit = min(len(prompt) for prompt in prompts) - 1
    return _common_prefix_length(np.array(first[:limit]), np.array(last[:limit]))


def _common_prefix_length(first: np.ndarray, second: np.ndarray) -> int:
    """Return the number of equal elements at the beginning of two arrays."""
    length = min(len(first), len(second))
    is_different = first[:length] != second[:length]
    return int(is_different.argmax()) if is_different.any() else length


def keeps_all_tokens(cache: Any) -> bool:
    """Return whether a transformers cache keeps the keys and values of all tokens in every layer."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
