"""Deep reinforcement relevance network (He et al. 2016, arXiv 1511.04636): how good an action is that is a text, in a
state that is a text."""

from __future__ import annotations

import math

import torch
from torch import nn

from llmrl.networks.gru import last_states


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
        """Q of every action in every state, [n, n_actions], for texts as `words.padded` gives them."""
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
