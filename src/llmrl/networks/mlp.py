"""Layers with the usual initialization of PPO (orthogonal weights, zero biases), and networks of principals.

The networks of principals map one vector of observations to several simultaneous choices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
"""Orthogonal gain before a ReLU or a tanh."""
POLICY_GAIN = 0.01
"""Orthogonal gain of the policy's last layer, small so that the initial policy is close to uniform."""
VALUE_GAIN = 1.0

Activation = Literal["relu", "tanh"]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def initialize(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> nn.Module:
    """Initialize `layer` with orthogonal weights of `gain`, drawn from `generator`, and zero bias; return it."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(sizes: Sequence[int], generator: torch.Generator, activation: Activation = "relu") -> nn.Sequential:
    """Return Linear + activation for every consecutive pair of `sizes`: [batch, sizes[0]] -> [batch, sizes[-1]]."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [initialize(nn.Linear(n_in, n_out), HIDDEN_GAIN, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class IndependentHeads(nn.Module):
    """Network from observations [batch, n_in] to logits of independent choices and a value.

    The logits are [batch, n_heads, n_choices], the value is [batch].
    """

    def __init__(
        self, n_in: int, hidden: Sequence[int], n_heads: int, n_choices: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        sizes = [n_in, *hidden]
        self.trunk = mlp(sizes, generator)
        self.actor = initialize(nn.Linear(sizes[-1], n_heads * n_choices), POLICY_GAIN, generator)
        self.critic = initialize(nn.Linear(sizes[-1], 1), VALUE_GAIN, generator)
        self.shape = (n_heads, n_choices)

    def forward(self, observed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(observed)
        return self.actor(features).unflatten(-1, self.shape), self.critic(features).squeeze(-1)


class BoxHead(nn.Module):
    """Network from observations [n_in] to a point [d] between `low` and `high`: low + (high - low) sigmoid(MLP).

    The initial weights of the last layer are so small that every point is close to the center.
    """

    low: torch.Tensor
    high: torch.Tensor

    def __init__(
        self, n_in: int, hidden: Sequence[int], low: torch.Tensor, high: torch.Tensor, generator: torch.Generator
    ) -> None:
        super().__init__()
        sizes = [n_in, *hidden]
        self.layers = nn.Sequential(
            mlp(sizes, generator), initialize(nn.Linear(sizes[-1], len(low)), POLICY_GAIN, generator)
        )
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)

    def forward(self, observed: torch.Tensor) -> torch.Tensor:
        return self.low + (self.high - self.low) * torch.sigmoid(self.layers(observed))
