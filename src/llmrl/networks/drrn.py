"""Deep reinforcement relevance network (He et al. 2016, arXiv 1511.04636).

It estimates the value of an action in a state; both are described by texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from llmrl.networks.layers import initialize_uniform

PADDING, UNKNOWN = 0, 1

_WORD_PATTERN = re.compile(r"[^\W\d_]+|\d+")


class Vocabulary:
    """Vocabulary of at most `size` words with their indices.

    Index 0 is padding, 1 any unknown word; the others are words in the order of their first occurrence. A word is a
    sequence of letters or of digits, in lower case.

    Attributes:
        n_committed_words: number of words that `roll_back` retains.
    """

    def __init__(self, size: int) -> None:
        if not 3 <= size <= np.iinfo(np.int16).max:
            raise ValueError(f"size={size} must be from 3 to {np.iinfo(np.int16).max}")
        self.size = size
        self.n_committed_words = 0
        self._index_by_word: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._index_by_word)

    def encode(self, text: str, add_words: bool = True) -> bytes:
        """Return the indices of a text's words as the bytes of an int16 array, which are hashable.

        A text without words is one unknown word. With `add_words`, new words are added until the vocabulary is full;
        otherwise they are unknown.
        """
        index_by_word = self._index_by_word
        text_indices = []
        for word in _WORD_PATTERN.findall(text.lower()):
            if word not in index_by_word and add_words and len(index_by_word) + 2 < self.size:
                index_by_word[word] = len(index_by_word) + 2
            text_indices.append(index_by_word.get(word, UNKNOWN))
        return np.array(text_indices or [UNKNOWN], dtype=np.int16).tobytes()

    def commit(self) -> None:
        """Mark all current words, so that `roll_back` retains them."""
        self.n_committed_words = len(self._index_by_word)

    def roll_back(self) -> None:
        """Remove the words added since the last `commit`."""
        self._index_by_word = dict(list(self._index_by_word.items())[: self.n_committed_words])

    def state_dict(self) -> list[str]:
        """Return the words in the order of their indices."""
        return list(self._index_by_word)

    def load_state_dict(self, words: Sequence[str]) -> None:
        self._index_by_word = {word: i + 2 for i, word in enumerate(words)}
        self.commit()


def pad_texts(encoded_texts: Sequence[bytes]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return word indices and lengths, given n results of `Vocabulary.encode`.

    The indices are [n, longest] int64 with `PADDING` at the end, the lengths [n] int64.
    """
    arrays = [np.frombuffer(encoded_text, dtype=np.int16) for encoded_text in encoded_texts]
    lengths = np.array([len(array) for array in arrays])
    word_indices = np.full((len(arrays), lengths.max()), PADDING, dtype=np.int64)
    for row, array in zip(word_indices, arrays, strict=True):
        row[: len(array)] = array
    return torch.from_numpy(word_indices), torch.from_numpy(lengths)


class DRRN(nn.Module):
    """Network for Q(prompt, action).

    It has one word embedding, a recurrent network for prompts, another one for actions, and a hidden layer on the last
    states of both. It can evaluate any number of actions, also new ones, because no output belongs to one action.

    Args:
        n_words: size of the vocabulary.
        n_units: width of the embedding, of both recurrent networks and of the hidden layer.
        generator: random numbers of the initial weights.
    """

    def __init__(self, n_words: int, n_units: int, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(n_words, n_units)
        self.prompt = nn.GRU(n_units, n_units, batch_first=True)
        self.action = nn.GRU(n_units, n_units, batch_first=True)
        self.hidden = nn.Linear(2 * n_units, n_units)
        self.out = nn.Linear(n_units, 1)
        with torch.no_grad():
            self.embedding.weight.normal_(generator=generator)
        widths = {self.prompt: n_units, self.action: n_units, self.hidden: 2 * n_units, self.out: n_units}
        for module, width in widths.items():
            initialize_uniform(module, 1 / math.sqrt(width), generator)

    def forward(
        self, prompts: tuple[torch.Tensor, torch.Tensor], actions: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Return Q of every action in every state, [n, n_actions], for texts from `pad_texts`."""
        state = self._compute_last_states(self.prompt, *prompts)
        action = self._compute_last_states(self.action, *actions)
        n, n_actions = len(state), len(action)
        pairs = torch.cat([state[:, None].expand(n, n_actions, -1), action[None].expand(n, n_actions, -1)], dim=2)
        return self.out(self.hidden(pairs).relu()).squeeze(-1)

    def _compute_last_states(self, gru: nn.GRU, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Return the state of a GRU after the last word of each text, [n, n_units]."""
        device = self.embedding.weight.device
        # Packed sequences take twice the time of padded ones on a CPU.
        states, _ = gru(self.embedding(words.to(device)))
        return states[torch.arange(len(words), device=device), lengths.to(device) - 1]
