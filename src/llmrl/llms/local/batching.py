"""Batches of prompts with similar lengths, and their padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def plan_batches(lengths: Sequence[int], reply_tokens: int, batch_tokens: int) -> list[list[int]]:
    """Group the indices of prompts by length. A group of two or more has at most `batch_tokens` tokens.

    A group of n takes n x (its longest prompt + reply_tokens) tokens. Prompts of similar length go together.

    >>> plan_batches([5, 1, 5, 2], reply_tokens=1, batch_tokens=12)
    [[1, 3], [0, 2]]
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        # Lengths are sorted, so the new prompt is the longest.
        if batches and (len(batches[-1]) + 1) * (lengths[i] + reply_tokens) <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def pad_left(
    prompts: Sequence[Sequence[int]], pad: int, n_cached: Sequence[int] | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids [n_prompts, width] int64 padded on the left, and a mask of the same shape: 1 token, 0 padding.

    Cached tokens at the beginning of prompts are padded separately, so that they end at the same position.

    Args:
        prompts: token ids, [n_prompts] of different lengths.
        pad: token id of the padding.
        n_cached: number of cached tokens of each prompt; None: none.

    >>> pad_left([[1, 2, 3], [4, 5]], 0, [1, 0])[0].tolist()
    [[1, 2, 3], [0, 4, 5]]
    """
    import torch

    starts = [0] * len(prompts) if n_cached is None else n_cached
    left = max(starts)
    right = max(len(prompt) - start for prompt, start in zip(prompts, starts, strict=True))
    ids, mask = [], []
    for prompt, start in zip(prompts, starts, strict=True):
        pads = left - start, right - len(prompt) + start
        ids.append([*[pad] * pads[0], *prompt[:start], *[pad] * pads[1], *prompt[start:]])
        mask.append([*[0] * pads[0], *[1] * start, *[0] * pads[1], *[1] * (len(prompt) - start)])
    return torch.tensor(ids), torch.tensor(mask)
