"""Convolutional cores: for pictures, and for small maps of codes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.networks.mlp import HIDDEN_GAIN, initialise

# (output channels, kernel, stride): the network of Mnih et al. (2015), used for 88x88 views as well.
LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
MAP_CHANNELS = (16, 32, 64)
"""Output channels of the 3x3 convolutions that keep a map's size, as published for students."""


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
        return self.linear(_beside(self.convolutions(scaled).flatten(-3), joined))  # type: ignore[no-any-return]


def _beside(features: torch.Tensor, joined: torch.Tensor | None) -> torch.Tensor:
    return features if joined is None else torch.cat([features, joined], dim=-1)


class OneHots(nn.Module):
    """[..., k] integer codes -> [..., n_entries] of the same dtype: a one-hot for each of the k numbers, side by side.

    Args:
        codes: how many codes each number can be; empty: codes stay the numbers they are.

    Attributes:
        n_entries: numbers that come out; 0 where codes stay as they are.
    """

    first_code: torch.Tensor

    def __init__(self, codes: Sequence[int]) -> None:
        super().__init__()
        # Code c of number i becomes entry first_code[i] + c of one long one-hot.
        first = torch.tensor([sum(codes[:i]) for i in range(len(codes))], dtype=torch.int64)
        self.register_buffer("first_code", first, persistent=False)
        self.n_entries = sum(codes)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        if not self.n_entries:
            return codes
        entries = codes.long() + self.first_code
        return codes.new_zeros((*codes.shape[:-1], self.n_entries)).scatter_(-1, entries, 1)


class GridCore(nn.Module):
    """[batch, width, height, n_codes] uint8 -> [batch, features]: a map whose cells hold a few integer codes.

    3x3 convolutions (padded) and, with `features`, a linear layer, all ReLU; without, the map as it is, flattened. With
    16, 32, 64 channels, these are the student networks of LLM4Teach (Zhou et al. 2023, arXiv 2311.13373).

    Args:
        shape: of the map.
        features: see above.
        generator: of the initial weights.
        codes: how many codes each of the n_codes numbers of a cell can be, which go in as one-hots; empty: codes go
            in as the numbers they are (as published), so that a key, 5, lies between a door, 4, and a ball, 6.
        hidden: output channels of each convolution.
        joined: further numbers that the linear layer takes in; only with `features`.

    Attributes:
        n_features: width of the output.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        features: int | None,
        generator: torch.Generator,
        codes: Sequence[int] = (),
        hidden: Sequence[int] = MAP_CHANNELS,
        joined: int = 0,
    ) -> None:
        super().__init__()
        width, height, channels = shape
        self.codes = OneHots(codes)
        channels = self.codes.n_entries or channels
        layers: list[nn.Module] = []
        for n_out in hidden:
            layers += [initialise(nn.Conv2d(channels, n_out, 3, padding=1), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
        self.convolutions = nn.Sequential(*layers)
        flat = channels * height * width
        self.linear: nn.Module = nn.Identity()
        if features is not None:
            layer = initialise(nn.Linear(flat + joined, features), HIDDEN_GAIN, generator)
            self.linear = nn.Sequential(layer, nn.ReLU())
        self.n_features = features or flat

    def forward(self, codes: torch.Tensor, joined: torch.Tensor | None = None) -> torch.Tensor:
        dtype = self.convolutions[0].weight.dtype
        map_ = self.codes(codes).movedim(-1, -3).to(dtype)
        return self.linear(_beside(self.convolutions(map_).flatten(-3), joined))  # type: ignore[no-any-return]


class PlanesCore(nn.Module):
    """[batch, width, height, n_codes] uint8 -> [batch, features]: yes-or-no facts about each cell of a map, and one
    linear layer with ReLU.

    The cheapest core for a map: no convolution, and no one-hot for codes that do not matter.

    Args:
        shape: of the map.
        planes: a fact each: which of the n_codes numbers is between which two codes (`Channel.planes`).
        features: width of the output.
        generator: of the initial weights.
        joined: further numbers that the linear layer takes in.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        planes: Sequence[tuple[int, int, int]],
        features: int,
        generator: torch.Generator,
        joined: int = 0,
    ) -> None:
        super().__init__()
        width, height, _ = shape
        self.planes = tuple(planes)
        layer = initialise(nn.Linear(len(planes) * width * height + joined, features), HIDDEN_GAIN, generator)
        self.linear = nn.Sequential(layer, nn.ReLU())

    def forward(self, codes: torch.Tensor, joined: torch.Tensor | None = None) -> torch.Tensor:
        numbers = codes.unbind(-1)
        facts = [
            numbers[k] == low if low == high else (numbers[k] >= low) & (numbers[k] <= high)
            for k, low, high in self.planes
        ]
        flat = torch.cat([fact.flatten(-2) for fact in facts], dim=-1).to(self.linear[0].weight.dtype)  # type: ignore[arg-type]
        return self.linear(_beside(flat, joined))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"planes={self.planes}"
