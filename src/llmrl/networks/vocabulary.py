"""Vocabulary of networks that read words: each word gets its number at its first occurrence."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import torch

PADDING, UNKNOWN = 0, 1

_WORD = re.compile(r"[^\W\d_]+|\d+")


class Vocabulary:
    """Table of at most `size` words with their numbers.

    Number 0 is padding, 1 an unknown word; the others are words in the order of their first occurrence. A word is a
    sequence of letters or of digits, in lower case.

    Attributes:
        kept: number of words that `forget` retains.
    """

    def __init__(self, size: int) -> None:
        if not 3 <= size <= np.iinfo(np.int16).max:
            raise ValueError(f"size={size} must be from 3 to {np.iinfo(np.int16).max}")
        self.size = size
        self.kept = 0
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, text: str, learn: bool = True) -> bytes:
        """Return the numbers of a text's words as the bytes of an int16 array, which are hashable.

        A text without words is one unknown word. New words are added if `learn` and the table has room, else unknown.
        """
        numbers = self._numbers
        word_ids = []
        for word in _WORD.findall(text.lower()):
            number = numbers.get(word)
            if number is None:
                number = UNKNOWN
                if learn and len(numbers) + 2 < self.size:
                    number = numbers[word] = len(numbers) + 2
            word_ids.append(number)
        return np.array(word_ids or [UNKNOWN], dtype=np.int16).tobytes()

    def keep(self) -> None:
        """Mark all present words, so that `forget` retains them."""
        self.kept = len(self._numbers)

    def forget(self) -> None:
        """Remove the words added since the last `keep`."""
        self._numbers = dict(list(self._numbers.items())[: self.kept])

    def state_dict(self) -> list[str]:
        """Return the words in the order of their numbers."""
        return list(self._numbers)

    def load_state_dict(self, words: Sequence[str]) -> None:
        self._numbers = {word: i + 2 for i, word in enumerate(words)}
        self.keep()


def pad_texts(rows: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Decode n results of `Vocabulary.read` to padded words and lengths.

    Words are [n, longest] int64 with `PADDING` at the end; lengths are [n] int64.
    """
    arrays = [np.frombuffer(row, dtype=np.int16) for row in rows]
    lengths = np.array([len(array) for array in arrays])
    words = np.full((len(arrays), lengths.max()), PADDING, dtype=np.int64)
    for row, array in zip(words, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(words), torch.from_numpy(lengths)
