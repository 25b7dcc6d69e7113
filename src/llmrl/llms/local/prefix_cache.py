"""Keys and values of the common beginning of prompts, computed once for a batch and reused between batches."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

MIN_LENGTH = 16
"""Minimum number of tokens of a common beginning that is computed separately."""


class PrefixCache:
    """Cache of the keys and values of the newest common beginning of prompts.

    Chat prompts of one task begin with the same system message. Results equal those without the cache up to rounding.
    Models whose layers do not keep all keys and values (sliding windows, state spaces) are not cached.
    """

    def __init__(self) -> None:
        self._tokens: tuple[int, ...] = ()
        self._cache: Any = None

    def clear(self) -> None:
        """Discard the cache, e.g. because the weights have changed."""
        self._tokens, self._cache = (), None

    def keys_values(self, model: Any, prompts: Sequence[Sequence[int]]) -> tuple[int, Any]:
        """Return the length of the common beginning of prompts and a transformers cache of it, one copy per prompt.

        Args:
            model: causal language model.
            prompts: token ids of the prompts, [n_prompts] of different lengths.

        Returns:
            (0, None) if there is no beginning to reuse: it is too short, is used only once, or cannot be cached.
        """
        import torch

        length = common_length(prompts)
        tokens = tuple(prompts[0][:length])
        if self._cache is not None and tokens[: len(self._tokens)] == self._tokens:
            # A shorter cached beginning is kept, because the next batch probably shares only that.
            length = len(self._tokens)
        elif length < MIN_LENGTH or len(prompts) == 1:
            return 0, None
        else:
            with torch.no_grad():
                ids = torch.tensor([tokens], device=next(model.parameters()).device)
                self._cache = model(input_ids=ids, use_cache=True, logits_to_keep=1).past_key_values
            self._tokens = tokens
        if not _is_complete(self._cache):
            return 0, None
        cache = copy.deepcopy(self._cache)
        cache.batch_repeat_interleave(len(prompts))
        return length, cache


def common_length(prompts: Sequence[Sequence[int]]) -> int:
    """Return the number of tokens that all prompts begin with, at most one less than the shortest prompt has.

    >>> common_length([[1, 2, 3], [1, 2, 4, 5]]), common_length([[1, 2]])
    (2, 1)
    """
    tokens = [list(prompt) for prompt in prompts]
    first, last = min(tokens), max(tokens)  # in lexicographic order; all others lie between the two
    limit = min(len(prompt) for prompt in prompts) - 1
    return next((i for i in range(limit) if first[i] != last[i]), limit)


def _is_complete(cache: Any) -> bool:
    """Return whether a cache keeps all keys and values in every layer."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    return isinstance(cache, DynamicCache) and all(type(layer) is DynamicLayer for layer in cache.layers)
