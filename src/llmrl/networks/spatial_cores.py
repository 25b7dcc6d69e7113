"""Cores for images, and for maps whose cells consist of a few integer codes, optionally with an instruction.

A cell has one of `prod(codes)` kinds. If these are few, the one-hots of a cell are looked up in a table of all kinds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.networks.layers import HIDDEN_GAIN, initialize, initialize_uniform

MAP_CONV_CHANNELS = (16, 32, 64)
"""Output channels of the 3x3 convolutions, as for students in LLM4Teach (arXiv 2311.13373)."""
MAP_KERNEL_SIZE = 3
"""Kernel size of convolutions over a map, in cells."""
MAX_TABLE_SIZE = 2**20
"""Maximum size of a table of cell kinds; with a larger one, one-hots are computed cell by cell."""


class OneHots(nn.Module):
    """Encoding of integer codes [..., k] as k concatenated one-hots [..., n_columns].

    Args:
        n_codes: number of codes of each of the k numbers; empty: codes are returned unchanged.

    Attributes:
        n_columns: width of the output; 0 if codes are not changed.
        n_kinds: number of distinct outputs; 0 if there are too many for a table.
        table: [n_kinds, n_columns], the encoding of each kind.
    """

    first_code: torch.Tensor
    place_values: torch.Tensor
    table: torch.Tensor

    def __init__(self, n_codes: Sequence[int]) -> None:
        super().__init__()
        # Code c of number i becomes element first_code[i] + c of one long one-hot.
        offsets = torch.tensor([sum(n_codes[:i]) for i in range(len(n_codes))], dtype=torch.int64)
        self.register_buffer("first_code", offsets, persistent=False)
        self.n_columns = sum(n_codes)
        n_kinds = math.prod(n_codes) if n_codes else 0
        self.n_kinds = n_kinds if n_kinds * self.n_columns <= MAX_TABLE_SIZE else 0
        place_values = torch.tensor([math.prod(n_codes[:i]) for i in range(len(n_codes))], dtype=torch.int64)
        self.register_buffer("place_values", place_values, persistent=False)
        table = torch.zeros(self.n_kinds, self.n_columns)
        if self.n_kinds:
            digits = torch.arange(n_kinds)[:, None] // place_values % torch.tensor(n_codes)
            table.scatter_(1, digits + offsets, 1.0)
        self.register_buffer("table", table, persistent=False)

    def compute_kinds(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the index into `table` of each cell, [...] int32."""
        # float32 holds these numbers exactly and multiplies much faster than integers.
        numbers = codes.reshape(-1, codes.shape[-1]).to(torch.float32)
        return torch.mv(numbers, self.place_values.to(torch.float32)).to(torch.int32).view(codes.shape[:-1])

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        if self.n_kinds:
            return nn.functional.embedding(self.compute_kinds(codes), self.table)
        if not self.n_columns:
            return codes
        columns = codes.long() + self.first_code
        return self.table.new_zeros((*codes.shape[:-1], self.n_columns)).scatter_(-1, columns, 1.0)


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
        conv_channels: output channels of each convolution.

    Attributes:
        n_features: width of the output.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        features: int | None,
        generator: torch.Generator,
        codes: Sequence[int] = (),
        conv_channels: Sequence[int] = MAP_CONV_CHANNELS,
    ) -> None:
        super().__init__()
        width, height, channels = shape
        layers: list[nn.Module] = []
        self.one_hots = OneHots(codes)
        channels = self.one_hots.n_columns or channels
        for n_out in conv_channels:
            layers += [
                initialize(nn.Conv2d(channels, n_out, MAP_KERNEL_SIZE, padding=1), HIDDEN_GAIN, generator),
                nn.ReLU(),
            ]
            channels = n_out
        self.convolutions = nn.Sequential(*layers)
        n_flat = channels * height * width
        self.linear: nn.Module = nn.Identity()
        if features is not None:
            self.linear = nn.Sequential(initialize(nn.Linear(n_flat, features), HIDDEN_GAIN, generator), nn.ReLU())
        self.n_features = features or n_flat

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        map_ = self.one_hots(codes)
        if len(self.convolutions):
            map_ = self.convolutions(map_.movedim(-1, -3).to(self.convolutions[0].weight.dtype))
        return self.linear(map_.reshape(*codes.shape[:-3], -1))


class PlanesCore(nn.Module):
    """Core with binary features of each cell of a map, and one linear layer with ReLU.

    The core maps [batch, width, height, n_codes] uint8 to [batch, features]. It is the fastest core for a map, because
    it has neither convolutions nor one-hots of irrelevant codes.

    Args:
        shape: shape of the map, (width, height, n_codes).
        planes: features (k, low, high): whether number k of a cell is between two codes, inclusive (`Channel.planes`).
        features: width of the output.
        generator: random numbers of the initial weights.
    """

    def __init__(
        self, shape: tuple[int, ...], planes: Sequence[tuple[int, int, int]], features: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        width, height, _ = shape
        self.planes = tuple(planes)
        layer = initialize(nn.Linear(len(planes) * width * height, features), HIDDEN_GAIN, generator)
        self.linear = nn.Sequential(layer, nn.ReLU())

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        numbers = codes.flatten(-3, -2).unbind(-1)
        values = [
            numbers[k] == low if low == high else (numbers[k] >= low) & (numbers[k] <= high)
            for k, low, high in self.planes
        ]
        weight: torch.Tensor = self.linear[0].weight  # type: ignore[assignment]
        if n_padding := weight.shape[-1] - len(values) * values[0].shape[-1]:
            values.append(values[0].new_zeros((*values[0].shape[:-1], n_padding)))  # stacked weights are wider
        # Bytes are converted six times as fast as booleans.
        return self.linear(torch.cat(values, dim=-1).view(torch.uint8).to(weight.dtype))

    def extra_repr(self) -> str:
        return f"planes={self.planes}"


PIXEL_LAYERS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
"""Output channels, kernel size and stride of each convolution, as in Mnih et al. (2015)."""


class PixelCore(nn.Module):
    """Core with the convolutions `PIXEL_LAYERS` and a linear layer, all with ReLU (Mnih et al. 2015).

    It maps [batch, height, width, 3] uint8 to [batch, features].

    Raises:
        ConfigError: the image is smaller than 36x36 pixels, which the convolutions need.
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
        return self.linear(self.convolutions(scaled).flatten(-3))


Normalization = Literal["none", "group", "batch"]
FilmOutput = Literal["map", "maximum"]

N_NORMALIZATION_GROUPS = 4
"""Number of groups in group normalization, if it divides the number of channels; else there is one group."""


@dataclass(frozen=True)
class FilmSettings:
    """Shape of a `FilmCore`; meanings and ranges are in `conf/agent/symbolic_ppo.yaml`."""

    blocks: PositiveInt = 2
    normalization: Normalization = "none"
    output: FilmOutput = "map"


class FilmCore(nn.Module):
    """Core for a map [batch, width, height, k] uint8 and an instruction [batch, n_words] int64.

    It returns features [batch, n_features]. It is the network of BabyAI's agents (Chevalier-Boisvert et al. 2019, arXiv
    1810.08272): two convolutions (2x2, 3x3) with max-pooling, then blocks of two 3x3 convolutions, each followed by
    normalization, where each channel of the second is scaled and shifted by functions of the instruction (FiLM, Perez
    et al. 2018, arXiv 1709.07871). The output is the remaining map, or (as published) the maximum over it, which
    discards positions. A GRU reads the instruction word by word.

    Args:
        shape: shape of the map.
        codes: number of codes of each of the k numbers of a cell, for one-hots as input; empty: numbers as input.
        n_words: size of the vocabulary; word 0 is padding.
        width: number of channels of the convolutions, and width of the instruction's encoding.
        settings: settings of the core. Normalization `batch` uses the samples that are computed together: those of all
            games when acting, those of a minibatch when learning (as published), so that the two differ slightly.
        generator: random numbers of the initial weights.

    Attributes:
        n_features: width of the output.

    Raises:
        ConfigError: the map is smaller than 3x3.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        codes: Sequence[int],
        n_words: int,
        width: int,
        settings: FilmSettings,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        normalization = settings.normalization
        self.output = settings.output
        # The first of two convolutions enlarges the map by one cell; max-pooling halves it after each.
        map_size = [(n + 1) // 4 for n in shape[:2]]
        if min(map_size) < 1:
            raise ConfigError(f"maps of {shape[0]}x{shape[1]} are too small for agent.core=film (3x3 at least)")
        self.n_features = width * (map_size[0] * map_size[1] if self.output == "map" else 1)
        self.one_hots = OneHots(codes)
        self.convolutions = nn.Sequential(
            *_build_layer(self.one_hots.n_columns or shape[-1], width, 2, normalization, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
            *_build_layer(width, width, 3, normalization, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.blocks = nn.ModuleList(FilmBlock(width, normalization, generator) for _ in range(settings.blocks))
        self.words = nn.Embedding(n_words, width)
        nn.init.normal_(self.words.weight, generator=generator)
        self.instruction = nn.GRU(width, width, batch_first=True)
        initialize_uniform(self.instruction, width**-0.5, generator)

    def forward(self, codes: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        sentence = self.encode_instruction(words)
        map_ = self.convolutions(self.one_hots(codes).permute(0, 3, 1, 2).to(self.words.weight.dtype))
        for block in self.blocks:
            map_ = block(map_, sentence)
        return map_.flatten(1) if self.output == "map" else map_.amax((2, 3))

    def encode_instruction(self, words: torch.Tensor) -> torch.Tensor:
        """Return the state [batch, width] of the GRU at the last word of each instruction [batch, n_words]."""
        # Instructions stay the same during a game, so each distinct one is encoded once.
        unique_words, index = torch.unique(words, dim=0, return_inverse=True)
        last = ((unique_words != 0).sum(1) - 1).clamp_min(0)
        states, _ = self.instruction(self.words(unique_words[:, : int(last.max()) + 1]))
        return states[torch.arange(len(last), device=last.device), last][index]


class FilmBlock(nn.Module):
    """Block from a map [batch, channels, width, height] and an encoded instruction [batch, channels] to such a map."""

    def __init__(self, channels: int, normalization: Normalization, generator: torch.Generator) -> None:
        super().__init__()
        self.seen = nn.Sequential(*_build_layer(channels, channels, 3, normalization, generator), nn.ReLU())
        self.convolution = initialize(nn.Conv2d(channels, channels, 3, padding=1), HIDDEN_GAIN, generator)
        self.scale = initialize(nn.Linear(channels, channels), 1.0, generator)
        self.shift = initialize(nn.Linear(channels, channels), 1.0, generator)
        # An instruction that is encoded as zeros does not change the features.
        nn.init.ones_(self.scale.bias)  # type: ignore[arg-type]
        self.after = nn.Sequential(*_build_normalization(channels, normalization), nn.ReLU())

    def forward(self, map_: torch.Tensor, sentence: torch.Tensor) -> torch.Tensor:
        features = self.convolution(self.seen(map_))
        return self.after(self.scale(sentence)[..., None, None] * features + self.shift(sentence)[..., None, None])


def _build_layer(
    n_in: int, n_out: int, kernel: int, normalization: Normalization, generator: torch.Generator
) -> list[nn.Module]:
    return [
        initialize(nn.Conv2d(n_in, n_out, kernel, padding=1), HIDDEN_GAIN, generator),
        *_build_normalization(n_out, normalization),
    ]


def _build_normalization(channels: int, normalization: Normalization) -> list[nn.Module]:
    """Return the modules between a convolution and its ReLU."""
    if normalization == "group":
        return [nn.GroupNorm(N_NORMALIZATION_GROUPS if channels % N_NORMALIZATION_GROUPS == 0 else 1, channels)]
    # No running means, so that the output depends only on weights and samples.
    return [nn.BatchNorm2d(channels, track_running_stats=False)] if normalization == "batch" else []
