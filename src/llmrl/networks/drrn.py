"""Deep reinforcement relevance network (He et al. 2016, arXiv 1511.04636): how good an action is that is a text, in a
state that is a text."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn


class DRRN(nn.Module):
    """Q(prompt, action): one embedding of words, a recurrent network that reads prompts and one that reads actions,
    and a hidden layer on what both remember at the end. It has no output for each action, so it reads actions that it
    never saw, and any number of them.

    Args:
        words: size of the table of words.
        units: of the embedding, of both recurrent networks and of the hidden layer.
        generator: initial weights are drawn from it.
    """

    def __init__(self, words: int, units: int, generator: torch.Generator) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, units)
        self.prompt = nn.GRU(units, units, batch_first=True)
        self.action = nn.GRU(units, units, batch_first=True)
        self.hidden = nn.Linear(2 * units, units)
        self.out = nn.Linear(units, 1)
        with torch.no_grad():
            self.embedding.weight.normal_(generator=generator)
            for module, width in ((self.prompt, units), (self.action, units), (self.hidden, 2 * units)):
                _uniform(module, width, generator)
            _uniform(self.out, units, generator)

    def forward(
        self, prompts: tuple[torch.Tensor, torch.Tensor], actions: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        """Q of every action in every state, [n, n_actions], for texts as `vocabulary.padded` gives them."""
        state = last_states(self.prompt, self.embedding.weight, *prompts)
        action = last_states(self.action, self.embedding.weight, *actions)
        n, m = len(state), len(action)
        pairs = torch.cat([state[:, None].expand(n, m, -1), action[None].expand(n, m, -1)], dim=2)
        q: torch.Tensor = self.out(self.hidden(pairs).relu()).squeeze(-1)
        return q


def _uniform(module: nn.Module, width: int, generator: torch.Generator) -> None:
    """Torch's usual initial weights of recurrent and linear layers, from a generator of one's own."""
    bound = 1 / math.sqrt(width)
    for parameter in module.parameters():
        parameter.uniform_(-bound, bound, generator=generator)


def last_states(reader: nn.GRU, vectors: torch.Tensor, words: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """What `reader` (one layer, one direction) remembers after the last word of each of n texts, [n, units].

    It is what torch computes, to rounding, in a third of the time that forward and backward passes of its packed
    sequences take on a processor: what a word contributes is computed once for each different word, what all texts
    begin with (prompts of a game begin alike) is read once, and the gradient of the recurrent weights is one product.

    Args:
        reader: holds the weights.
        vectors: of all words, [n_words, width].
        words: [n, longest] int64, padded with anything.
        lengths: words of each text, [n] int64, each at least 1.
    """
    device = vectors.device
    different, places = torch.unique(words, return_inverse=True)
    own = dict(reader.named_parameters())
    inputs = nn.functional.linear(vectors[different.to(device)], own["weight_ih_l0"], own["bias_ih_l0"])
    order = torch.argsort(lengths, descending=True, stable=True)
    places, lengths = places[order], lengths[order]
    shared = 0
    if len(words) > 1:
        alike = (places == places[:1]).all(0).int().cumprod(0).sum()
        shared = min(int(alike), int(lengths[-1]) - 1)
    weights = (own["weight_hh_l0"], own["bias_hh_l0"])
    state = inputs.new_zeros(1, reader.hidden_size)
    if shared:
        state = _last(inputs, *weights, state, places[:1, :shared].to(device), [1] * shared)
    counts = (lengths[:, None] > torch.arange(shared, int(lengths[0]))).sum(0).tolist()
    began = state.expand(len(words), -1)
    last = _last(inputs, *weights, began, places[:, shared:].to(device), counts)
    return last[torch.argsort(order).to(device)]


class _LastStates(torch.autograd.Function):
    """Texts in the order of their lengths, longest first: the first `counts[t]` of them have a word number t."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        began: torch.Tensor,
        places: torch.Tensor,
        counts: list[int],
    ) -> torch.Tensor:
        """`inputs` [different, 3 units] of words, `places` [n, steps] of words in them, `began` [n, units]."""
        units, state = began.shape[1], began.clone()
        kept = []
        transposed = weight.t()
        for t, n in enumerate(counts):
            own, before = inputs[places[:n, t]], state[:n].clone()
            past = torch.addmm(bias, before, transposed)
            gates = torch.sigmoid_(own[:, : 2 * units] + past[:, : 2 * units])
            reset, update = gates[:, :units], gates[:, units:]
            new = torch.tanh_(torch.addcmul(own[:, 2 * units :], reset, past[:, 2 * units :]))
            torch.lerp(new, before, update, out=state[:n])
            kept.append((before, gates, new, past[:, 2 * units :]))
        ctx.save_for_backward(weight, places, *(x for step in kept for x in step))
        ctx.counts, ctx.different = counts, len(inputs)
        return state

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        weight, places, *kept = ctx.saved_tensors
        counts, units = ctx.counts, weight.shape[1]
        down = gradients[0].clone()
        rows = sum(counts)
        of_inputs, of_past = (down.new_empty(rows, 3 * units) for _ in range(2))
        end = rows
        for t in range(len(counts) - 1, -1, -1):
            before, gates, new, past = kept[4 * t : 4 * t + 4]
            n = counts[t]
            reset, update = gates[:, :units], gates[:, units:]
            here = down[:n]
            own, recurrent = of_inputs[end - n : end], of_past[end - n : end]
            end -= n
            direct = here * update
            fresh = (here - direct) * (1 - new * new)
            gate = own[:, : 2 * units]
            torch.mul(fresh, past, out=gate[:, :units])
            torch.mul(here, before - new, out=gate[:, units:])
            gate *= gates * (1 - gates)
            own[:, 2 * units :] = fresh
            recurrent[:, : 2 * units] = gate
            torch.mul(fresh, reset, out=recurrent[:, 2 * units :])
            torch.addmm(direct, recurrent, weight, out=here)
        words = torch.cat([places[:n, t] for t, n in enumerate(counts)])
        states = torch.cat(kept[0::4])
        by_word = down.new_zeros(ctx.different, 3 * units).index_add_(0, words, of_inputs)
        return by_word, of_past.t() @ states, of_past.sum(0), down, None, None


def _last(*arguments: Any) -> torch.Tensor:
    found: torch.Tensor = _LastStates.apply(*arguments)  # type: ignore[no-untyped-call]
    return found
