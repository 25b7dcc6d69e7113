"""Layers with the initialisation that PPO implementations share: orthogonal weights, zero biases."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import nn

HIDDEN_GAIN = math.sqrt(2.0)
"""Orthogonal gain before a ReLU."""
POLICY_GAIN = 0.01
"""Small, so that the first policy is close to uniform."""
VALUE_GAIN = 1.0


def initialise(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> nn.Module:
    """Orthogonal weights with `gain` and zero bias, drawn from `generator` rather than torch's global stream."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def mlp(sizes: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear + ReLU for every consecutive pair of `sizes`: [batch, sizes[0]] -> [batch, sizes[-1]]."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [initialise(nn.Linear(n_in, n_out), HIDDEN_GAIN, generator), nn.ReLU()]
    return nn.Sequential(*layers)
