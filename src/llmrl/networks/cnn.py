"""Convolutional core for images."""

from __future__ import annotations

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.networks.mlp import HIDDEN_GAIN, append_inputs, initialize

# (output channels, kernel, stride): the network of Mnih et al. (2015), used for 88x88 views as well.
LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class PixelCore(nn.Module):
    """Convolutional core: [batch, height, width, 3] uint8 -> [batch, features].

    Three convolutions (32 8x8/4, 64 4x4/2, 64 3x3/1) and a linear layer, all ReLU (Mnih et al. 2015). The linear layer
    also reads `n_additional` numbers.

    Raises:
        ConfigError: the image is smaller than the 36x36 that three such convolutions need.
    """

    def __init__(
        self, shape: tuple[int, ...], features: int, generator: torch.Generator, n_additional: int = 0
    ) -> None:
        super().__init__()
        height, width, channels = shape
        layers: list[nn.Module] = []
        for n_out, kernel, stride in LAYERS:
            layers += [initialize(nn.Conv2d(channels, n_out, kernel, stride), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if min(height, width) < 1:
            raise ConfigError(
                f"images of {shape[0]}x{shape[1]} pixels are too small for the convolutional core: use at least 36x36"
            )
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Sequential(
            initialize(nn.Linear(channels * height * width + n_additional, features), HIDDEN_GAIN, generator), nn.ReLU()
        )

    def forward(self, pixels: torch.Tensor, additional: torch.Tensor | None = None) -> torch.Tensor:
        # NHWC bytes stay NHWC in memory (channels_last), the fastest layout for convolutions on CPU and GPU.
        scaled = pixels.movedim(-1, -3).to(self.linear[0].weight.dtype) / 255.0  # type: ignore[arg-type]
        return self.linear(append_inputs(self.convolutions(scaled).flatten(-3), additional))  # type: ignore[no-any-return]
