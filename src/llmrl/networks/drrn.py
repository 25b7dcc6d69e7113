"""Deep reinforcement relevance network (He et al. 2016, arXiv 1511.04636).

It estimates the value of an action in a state; both are described by texts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

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
        state = compute_last_states(self.prompt, self.embedding.weight, *prompts)
        action = compute_last_states(self.action, self.embedding.weight, *actions)
        n, n_actions = len(state), len(action)
        pairs = torch.cat([state[:, None].expand(n, n_actions, -1), action[None].expand(n, n_actions, -1)], dim=2)
        return self.out(self.hidden(pairs).relu()).squeeze(-1)


def compute_last_states(
    gru: nn.GRU, embeddings: torch.Tensor, words: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    """Return the state of a GRU after the last word of each of n texts, [n, units].

    Up to rounding, the result is that of torch's packed sequences, but forward and backward passes take a third of the
    time on a CPU. The input projection is computed once per distinct word, the common beginning of all texts (prompts
    of a game share it) is processed once, and the gradient of the recurrent weights is one product.

    Args:
        gru: GRU with one layer and one direction.
        embeddings: embeddings of all words, [n_words, width].
        words: word indices of the texts, [n, longest] int64, padded with any index.
        lengths: number of words in each text, [n] int64, each at least 1.
    """
    device = embeddings.device
    unique_words, word_indices = torch.unique(words, return_inverse=True)
    parameters = dict(gru.named_parameters())
    inputs = nn.functional.linear(
        embeddings[unique_words.to(device)], parameters["weight_ih_l0"], parameters["bias_ih_l0"]
    )
    order = torch.argsort(lengths, descending=True, stable=True)
    word_indices, lengths = word_indices[order], lengths[order]
    n_shared_words = 0
    if len(words) > 1:
        shared_prefix_length = (word_indices == word_indices[:1]).all(0).int().cumprod(0).sum()
        n_shared_words = min(int(shared_prefix_length), int(lengths[-1]) - 1)
    weights = (parameters["weight_hh_l0"], parameters["bias_hh_l0"])
    state = inputs.new_zeros(1, gru.hidden_size)
    if n_shared_words:
        state = _run_gru(inputs, *weights, state, word_indices[:1, :n_shared_words].to(device), [1] * n_shared_words)
    active_counts = (lengths[:, None] > torch.arange(n_shared_words, int(lengths[0]))).sum(0).tolist()
    initial_state = state.expand(len(words), -1)
    last_states = _run_gru(inputs, *weights, initial_state, word_indices[:, n_shared_words:].to(device), active_counts)
    return last_states[torch.argsort(order).to(device)]


class _GRULastState(torch.autograd.Function):
    """GRU over texts sorted by length, longest first; the first `active_counts[t]` texts have a word at position t."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        initial_state: torch.Tensor,
        word_indices: torch.Tensor,
        active_counts: list[int],
    ) -> torch.Tensor:
        """Return the last states [n, units].

        `inputs` [n_unique, 3 units] are projections of words, `word_indices` [n, steps] index them, and `initial_state`
        is [n, units].
        """
        units, state = initial_state.shape[1], initial_state.clone()
        history = []
        transposed_weight = weight.t()
        for t, n in enumerate(active_counts):
            projections, previous = inputs[word_indices[:n, t]], state[:n].clone()
            recurrent = torch.addmm(bias, previous, transposed_weight)
            gates = torch.sigmoid_(projections[:, : 2 * units] + recurrent[:, : 2 * units])
            reset, update = gates[:, :units], gates[:, units:]
            new = torch.tanh_(torch.addcmul(projections[:, 2 * units :], reset, recurrent[:, 2 * units :]))
            torch.lerp(new, previous, update, out=state[:n])
            history.append((previous, gates, new, recurrent[:, 2 * units :]))
        ctx.save_for_backward(weight, word_indices, *(x for step in history for x in step))
        ctx.active_counts, ctx.n_unique_words = active_counts, len(inputs)
        return state

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        weight, word_indices, *history = ctx.saved_tensors
        active_counts, units = ctx.active_counts, weight.shape[1]
        state_gradient = gradients[0].clone()
        n_steps = sum(active_counts)
        input_gradients, recurrent_gradients = (state_gradient.new_empty(n_steps, 3 * units) for _ in range(2))
        end = n_steps
        for t in range(len(active_counts) - 1, -1, -1):
            previous, gates, new, recurrent_new = history[4 * t : 4 * t + 4]
            n = active_counts[t]
            reset, update = gates[:, :units], gates[:, units:]
            step_gradient = state_gradient[:n]
            input_gradient, recurrent = input_gradients[end - n : end], recurrent_gradients[end - n : end]
            end -= n
            direct_gradient = step_gradient * update
            new_gradient = (step_gradient - direct_gradient) * (1 - new * new)
            gate_gradient = input_gradient[:, : 2 * units]
            torch.mul(new_gradient, recurrent_new, out=gate_gradient[:, :units])
            torch.mul(step_gradient, previous - new, out=gate_gradient[:, units:])
            gate_gradient *= gates * (1 - gates)
            input_gradient[:, 2 * units :] = new_gradient
            recurrent[:, : 2 * units] = gate_gradient
            torch.mul(new_gradient, reset, out=recurrent[:, 2 * units :])
            torch.addmm(direct_gradient, recurrent, weight, out=step_gradient)
        words = torch.cat([word_indices[:n, t] for t, n in enumerate(active_counts)])
        states = torch.cat(history[0::4])
        word_gradients = state_gradient.new_zeros(ctx.n_unique_words, 3 * units).index_add_(0, words, input_gradients)
        return word_gradients, recurrent_gradients.t() @ states, recurrent_gradients.sum(0), state_gradient, None, None


def _run_gru(*arguments: Any) -> torch.Tensor:
    """Return the last states [n, units]; the arguments are those of `_GRULastState.forward` after `ctx`."""
    return _GRULastState.apply(*arguments)  # type: ignore[no-untyped-call]
