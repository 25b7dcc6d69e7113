"""Memory of agents: an LSTM between core and heads."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence


class RecurrentLayer(nn.Module):
    """LSTM between core and heads. Its state is one vector per agent, zeros at the start of an episode.

    Args:
        n_in: width of the input.
        units: units of each layer, which is the width of the output.
        layers: number of stacked layers.
        generator: random numbers of the initial weights, uniform within 1 / sqrt(units), torch's default.
    """

    def __init__(self, n_in: int, units: int, layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.units, self.layers = units, layers
        self.lstm = nn.LSTM(n_in, units, layers)
        bound = units**-0.5
        for weight in self.lstm.parameters():
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    @property
    def state_size(self) -> int:
        """Length of the state vector: hidden and cell values of all layers."""
        return 2 * self.layers * self.units

    def step(self, features: torch.Tensor, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Map features [batch, n_in] and state [batch, state_size] (None: zeros) to output [batch, units] and state."""
        output, next_state = self.lstm(features.unsqueeze(0), self._split(state))
        return output.squeeze(0), self._merge(next_state)

    def unroll(self, features: torch.Tensor, lengths: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return outputs [n, units] of concatenated sequences.

        Args:
            features: input [n, n_in]: all steps of the first sequence, then of the second, ...
            lengths: steps of each sequence, [n_sequences] int64 on the CPU, with sum n.
            state: state before the first step of each sequence, [n_sequences, state_size].
        """
        packed = pack_sequence(list(torch.split(features, lengths.tolist())), enforce_sorted=False)
        output, _ = self.lstm(packed, self._split(state))
        return torch.cat(unpack_sequence(output))

    def _split(self, state: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor] | None:
        if state is None:
            return None
        pair = state.reshape(-1, 2, self.layers, self.units).permute(1, 2, 0, 3).contiguous()
        return pair[0], pair[1]

    def _merge(self, pair: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return torch.stack(pair).permute(2, 0, 1, 3).flatten(1)
