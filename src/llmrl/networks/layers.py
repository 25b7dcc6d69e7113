"""Layers of networks, and networks of principals, which map a vector of observations to several simultaneous choices.

Linear and convolutional layers have the usual initialization of PPO (orthogonal weights, zero biases).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

HIDDEN_GAIN = math.sqrt(2.0)
"""Gain of orthogonal weights before a ReLU or a tanh."""
POLICY_GAIN = 0.01
"""Gain of orthogonal weights in the policy's last layer, small so that the initial policy is close to uniform."""
VALUE_GAIN = 1.0

Activation = Literal["relu", "tanh"]
ACTIVATIONS = {"relu": nn.ReLU, "tanh": nn.Tanh}


def initialize(layer: nn.Linear | nn.Conv2d, gain: float, generator: torch.Generator) -> nn.Module:
    """Initialize `layer` with random orthogonal weights times `gain` and a bias of zero; return it."""
    nn.init.orthogonal_(layer.weight, gain, generator=generator)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def initialize_uniform(module: nn.Module, bound: float, generator: torch.Generator) -> None:
    """Set all parameters to samples of U(-bound, bound); for recurrent layers, torch's default is 1 / sqrt(units)."""
    for parameter in module.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)


def mlp(sizes: Sequence[int], generator: torch.Generator, activation: Activation = "relu") -> nn.Sequential:
    """Return Linear + activation for every consecutive pair of `sizes`: [batch, sizes[0]] -> [batch, sizes[-1]]."""
    layers: list[nn.Module] = []
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [initialize(nn.Linear(n_in, n_out), HIDDEN_GAIN, generator), ACTIVATIONS[activation]()]
    return nn.Sequential(*layers)


class IndependentHeads(nn.Module):
    """Network from observations [batch, n_in] to logits [batch, n_heads, n_choices] of choices and values [batch]."""

    def __init__(
        self, n_in: int, hidden: Sequence[int], n_heads: int, n_choices: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        sizes = [n_in, *hidden]
        self.trunk = mlp(sizes, generator)
        self.actor = initialize(nn.Linear(sizes[-1], n_heads * n_choices), POLICY_GAIN, generator)
        self.critic = initialize(nn.Linear(sizes[-1], 1), VALUE_GAIN, generator)
        self.logits_shape = (n_heads, n_choices)

    def forward(self, observations: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        features = self.trunk(observations)
        return self.actor(features).unflatten(-1, self.logits_shape), self.critic(features).squeeze(-1)


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

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.low + (self.high - self.low) * torch.sigmoid(self.layers(observations))


class RecurrentLayer(nn.Module):
    """LSTM between core and heads. Its state is one vector per agent, zeros at the start of an episode.

    Args:
        n_in: width of the input.
        n_units: units of each layer, which is the width of the output.
        n_layers: number of stacked layers.
        generator: random generator for the initial weights, uniform within 1 / sqrt(n_units), torch's default.
    """

    def __init__(self, n_in: int, n_units: int, n_layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.n_units, self.n_layers = n_units, n_layers
        self.lstm = nn.LSTM(n_in, n_units, n_layers)
        initialize_uniform(self.lstm, n_units**-0.5, generator)

    @property
    def state_size(self) -> int:
        """Length of the state vector: hidden and cell states of all layers."""
        return 2 * self.n_layers * self.n_units

    def step(self, features: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return output [batch, n_units] and next state, given features [batch, n_in] and state (None: zeros)."""
        output, next_state = self.lstm(features.unsqueeze(0), self._split_state(state))
        return output.squeeze(0), self._merge_state(next_state)

    def unroll(self, features: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return outputs [n, n_units] of concatenated sequences.

        Args:
            features: input [n, n_in]: all steps of the first sequence, then of the second, ...
            lengths: steps of each sequence, [n_sequences] int64 on the CPU, with sum n.
            state: state before the first step of each sequence, [n_sequences, state_size].
        """
        packed = pack_sequence(list(torch.split(features, lengths.tolist())), enforce_sorted=False)
        output, _ = self.lstm(packed, self._split_state(state))
        return torch.cat(unpack_sequence(output))

    def _split_state(self, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        if state is None:
            return None
        pair = state.reshape(-1, 2, self.n_layers, self.n_units).permute(1, 2, 0, 3).contiguous()
        return pair[0], pair[1]

    def _merge_state(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.stack(pair).permute(2, 0, 1, 3).flatten(1)


MIN_STANDARD_DEVIATION = 1e-8
"""Standard deviation up to which an element counts as constant."""
MAX_NORMALIZED_VALUE = 10.0
"""Maximum absolute value of normalized numbers, which are clipped, in standard deviations."""


class RunningMoments(nn.Module):
    """Mean and (population) standard deviation of all samples so far, elementwise.

    Its float64 buffers (`squares` is the sum of squared deviations from the mean) are saved with a network's weights.

    Args:
        shape: shape of a sample.
    """

    count: torch.Tensor
    mean: torch.Tensor
    squares: torch.Tensor

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("squares", torch.zeros(shape, dtype=torch.float64))

    @property
    def deviation(self) -> torch.Tensor:
        """Standard deviation of each element; 1 if it is at most `MIN_STANDARD_DEVIATION`."""
        deviation = (self.squares / self.count.clamp_min(1)).sqrt()
        return torch.where(deviation > MIN_STANDARD_DEVIATION, deviation, 1.0)

    @torch.no_grad()
    def update(self, samples: torch.Tensor) -> None:
        """Add samples [n, *shape], n >= 1 (Chan, Golub & LeVeque 1983: moments of two merged samples)."""
        batch = samples.double()
        n, mean = len(batch), batch.mean(0)
        squared_deviations = (batch - mean).square().sum(0)
        total, shift = self.count + n, mean - self.mean
        self.squares += squared_deviations + shift.square() * self.count * n / total
        self.mean += shift * n / total
        self.count += n

    def normalize(self, x: torch.Tensor) -> torch.Tensor:
        """Subtract the mean from `x` [..., *shape] and divide by the standard deviation."""
        return (x - self.mean.to(x.dtype)) / self.deviation.to(x.dtype)

    def denormalize(self, x: torch.Tensor) -> torch.Tensor:
        """Invert `normalize`."""
        return x * self.deviation.to(x.dtype) + self.mean.to(x.dtype)


class RunningNormalizer(RunningMoments):
    """Normalizer of a network's numeric inputs, [..., n]; before the first update it only clips them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.normalize(x).clamp(-MAX_NORMALIZED_VALUE, MAX_NORMALIZED_VALUE)
