"""The convolutional core for pictures."""

from __future__ import annotations

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.networks.mlp import HIDDEN_GAIN, concatenated, initialise

# (output channels, kernel, stride): the network of Mnih et al. (2015), used for 88x88 views as well.
LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))


class PixelCore(nn.Module):
    """[batch, height, width, 3] uint8 -> [batch, features].

    Three convolutions (32 8x8/4, 64 4x4/2, 64 3x3/1) and a linear layer, all ReLU (Mnih et al. 2015). The linear layer
    also takes in `joined` numbers.

    Raises:
        ConfigError: the image is smaller than the 36x36 that three such convolutions need.
    """

    def __init__(self, shape: tuple[int, ...], features: int, generator: torch.Generator, joined: int = 0) -> None:
        super().__init__()
        height, width, channels = shape
        layers: list[nn.Module] = []
        for n_out, kernel, stride in LAYERS:
            layers += [initialise(nn.Conv2d(channels, n_out, kernel, stride), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if min(height, width) < 1:
            raise ConfigError(
                f"images of {shape[0]}x{shape[1]} are too small for the convolutional core (36x36 at least)"
            )
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Sequential(
            initialise(nn.Linear(channels * height * width + joined, features), HIDDEN_GAIN, generator), nn.ReLU()
        )

    def forward(self, pixels: torch.Tensor, joined: torch.Tensor | None = None) -> torch.Tensor:
        # NHWC bytes stay NHWC in memory (channels_last), the layout CPU and GPU convolutions are fastest on.
        scaled = pixels.movedim(-1, -3).to(self.linear[0].weight.dtype) / 255.0  # type: ignore[arg-type]
        return self.linear(concatenated(self.convolutions(scaled).flatten(-3), joined))  # type: ignore[no-any-return]
