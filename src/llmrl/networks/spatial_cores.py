"""Cores for images, and for small maps whose cells hold a few integer codes.

A cell has one of `prod(codes)` kinds, few enough to enumerate. One-hots are therefore looked up in a table, once for
each cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.networks.mlp import HIDDEN_GAIN, initialize

MAP_CHANNELS = (16, 32, 64)
"""Output channels of the 3x3 convolutions that keep a map's size, as published for students."""
KERNEL = 3
"""Kernel size of convolutions over a map, in cells."""
MAX_TABLE_SIZE = 2**20
"""Maximum size of a table of cell kinds; beyond it, one-hots are computed cell by cell."""


class OneHots(nn.Module):
    """Encoding of integer codes [..., k] as k concatenated one-hots [..., n_entries].

    Args:
        codes: number of codes of each of the k numbers; empty: codes are returned unchanged.

    Attributes:
        n_entries: width of the output; 0 if codes stay unchanged.
        n_kinds: number of distinct outputs; 0 if there are too many for a table.
        table: [n_kinds, n_entries], the encoding of each kind.
    """

    first_code: torch.Tensor
    radix: torch.Tensor
    table: torch.Tensor

    def __init__(self, codes: Sequence[int]) -> None:
        super().__init__()
        # Code c of number i becomes element first_code[i] + c of one long one-hot.
        offsets = torch.tensor([sum(codes[:i]) for i in range(len(codes))], dtype=torch.int64)
        self.register_buffer("first_code", offsets, persistent=False)
        self.n_entries = sum(codes)
        n_kinds = math.prod(codes) if codes else 0
        self.n_kinds = n_kinds if n_kinds * self.n_entries <= MAX_TABLE_SIZE else 0
        radix = torch.tensor([math.prod(codes[:i]) for i in range(len(codes))], dtype=torch.int64)
        self.register_buffer("radix", radix, persistent=False)
        table = torch.zeros(self.n_kinds, self.n_entries)
        if self.n_kinds:
            digits = torch.arange(n_kinds)[:, None] // radix % torch.tensor(codes)
            table.scatter_(1, digits + offsets, 1.0)
        self.register_buffer("table", table, persistent=False)

    def kinds(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the index into `table` of each cell, [...] int32."""
        # float32 holds these numbers exactly and multiplies much faster than integers.
        numbers = codes.reshape(-1, codes.shape[-1]).to(torch.float32)
        return torch.mv(numbers, self.radix.to(torch.float32)).to(torch.int32).view(codes.shape[:-1])

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        if self.n_kinds:
            return nn.functional.embedding(self.kinds(codes), self.table)
        if not self.n_entries:
            return codes
        entries = codes.long() + self.first_code
        return self.table.new_zeros((*codes.shape[:-1], self.n_entries)).scatter_(-1, entries, 1.0)


class GridCore(nn.Module):
    """Convolutional core of a map of integer codes: [batch, width, height, n_codes] uint8 -> [batch, n_features].

    3x3 convolutions (padded) are followed by a linear layer if `features` is given, all with ReLU; otherwise the
    convolutions' output is flattened. With 16, 32, 64 channels, these are the student networks of LLM4Teach (Zhou et
    al. 2023, arXiv 2311.13373).

    Args:
        shape: shape of the map, (width, height, n_codes).
        features: width of the linear layer; None: no linear layer.
        generator: random numbers of the initial weights.
        codes: number of codes of each of the n_codes numbers, for one-hots as input; empty: the codes are input as
            numbers (as published), so that a key, 5, lies between a door, 4, and a ball, 6.
        hidden: output channels of each convolution.

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
    ) -> None:
        super().__init__()
        width, height, channels = shape
        layers: list[nn.Module] = []
        self.codes = OneHots(codes)
        channels = self.codes.n_entries or channels
        for n_out in hidden:
            layers += [initialize(nn.Conv2d(channels, n_out, KERNEL, padding=1), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
        self.convolutions = nn.Sequential(*layers)
        flat = channels * height * width
        self.linear: nn.Module = nn.Identity()
        if features is not None:
            layer = initialize(nn.Linear(flat, features), HIDDEN_GAIN, generator)
            self.linear = nn.Sequential(layer, nn.ReLU())
        self.n_features = features or flat

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        map_ = self.codes(codes)
        if len(self.convolutions):
            map_ = self.convolutions(map_.movedim(-1, -3).to(self.convolutions[0].weight.dtype))
        return self.linear(map_.reshape(*codes.shape[:-3], -1))  # type: ignore[no-any-return]


class PlanesCore(nn.Module):
    """Core of binary facts about each cell of a map, and one linear layer with ReLU.

    It maps [batch, width, height, n_codes] uint8 to [batch, features] and is the fastest core for a map, without
    convolutions and without one-hots of irrelevant codes.

    Args:
        shape: shape of the map, (width, height, n_codes).
        planes: facts (k, low, high): number k of a cell is between two codes, inclusive (`Channel.planes`).
        features: width of the output.
        generator: random numbers of the initial weights.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        planes: Sequence[tuple[int, int, int]],
        features: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        width, height, _ = shape
        self.planes = tuple(planes)
        layer = initialize(nn.Linear(len(planes) * width * height, features), HIDDEN_GAIN, generator)
        self.linear = nn.Sequential(layer, nn.ReLU())

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        numbers = codes.flatten(-3, -2).unbind(-1)
        facts = [
            numbers[k] == low if low == high else (numbers[k] >= low) & (numbers[k] <= high)
            for k, low, high in self.planes
        ]
        weight: torch.Tensor = self.linear[0].weight  # type: ignore[assignment]
        if n_padding := weight.shape[-1] - len(facts) * facts[0].shape[-1]:
            facts.append(facts[0].new_zeros((*facts[0].shape[:-1], n_padding)))  # stacked weights are wider
        # Bytes are converted six times as fast as booleans.
        flat = torch.cat(facts, dim=-1).view(torch.uint8).to(weight.dtype)
        return self.linear(flat)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"planes={self.planes}"


PIXEL_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Output channels, kernel and stride of each layer: the network of Mnih et al. (2015), used for 88x88 views as well."""


class PixelCore(nn.Module):
    """Convolutional core: [batch, height, width, 3] uint8 -> [batch, features].

    Three convolutions (32 8x8/4, 64 4x4/2, 64 3x3/1) and a linear layer, all ReLU (Mnih et al. 2015).

    Raises:
        ConfigError: the image is smaller than the 36x36 that three such convolutions need.
    """

    def __init__(self, shape: tuple[int, ...], features: int, generator: torch.Generator) -> None:
        super().__init__()
        height, width, channels = shape
        layers: list[nn.Module] = []
        for n_out, kernel, stride in PIXEL_LAYERS:
            layers += [initialize(nn.Conv2d(channels, n_out, kernel, stride), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
            height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
        if min(height, width) < 1:
            raise ConfigError(
                f"images of {shape[0]}x{shape[1]} pixels are too small for the convolutional core: use at least 36x36"
            )
        self.convolutions = nn.Sequential(*layers)
        self.linear = nn.Sequential(
            initialize(nn.Linear(channels * height * width, features), HIDDEN_GAIN, generator), nn.ReLU()
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        # NHWC bytes stay NHWC in memory (channels_last), the fastest layout for convolutions on CPU and GPU.
        scaled = pixels.movedim(-1, -3).to(self.linear[0].weight.dtype) / 255.0  # type: ignore[arg-type]
        return self.linear(self.convolutions(scaled).flatten(-3))  # type: ignore[no-any-return]
