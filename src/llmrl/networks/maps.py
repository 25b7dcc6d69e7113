"""Cores for small maps whose cells hold a few integer codes.

What a cell shows is one of `prod(codes)` kinds, few enough to number. So one-hots, embeddings and facts are rows of a
table that is looked up once for each cell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.networks.mlp import HIDDEN_GAIN, beside, initialise

MAP_CHANNELS = (16, 32, 64)
"""Output channels of the 3x3 convolutions that keep a map's size, as published for students."""
KERNEL = 3
"""Cells on a side of what a convolution over a map takes in."""
LARGEST_TABLE = 2**20
"""Numbers in a table of kinds of cells; where there would be more, one-hots are written cell by cell."""


class OneHots(nn.Module):
    """[..., k] integer codes -> [..., n_entries]: a one-hot for each of the k numbers, side by side.

    Args:
        codes: how many codes each number can be; empty: codes stay the numbers they are.

    Attributes:
        n_entries: numbers that come out; 0 where codes stay as they are.
        n_kinds: different rows that come out; 0 where there are too many for a table.
        table: [n_kinds + 1, n_entries], a row for each kind, then zeros.
    """

    first_code: torch.Tensor
    radix: torch.Tensor
    table: torch.Tensor

    def __init__(self, codes: Sequence[int]) -> None:
        super().__init__()
        # Code c of number i becomes entry first_code[i] + c of one long one-hot.
        first = torch.tensor([sum(codes[:i]) for i in range(len(codes))], dtype=torch.int64)
        self.register_buffer("first_code", first, persistent=False)
        self.n_entries = sum(codes)
        n_kinds = math.prod(codes) if codes else 0
        self.n_kinds = n_kinds if (n_kinds + 1) * self.n_entries <= LARGEST_TABLE else 0
        radix = torch.tensor([math.prod(codes[:i]) for i in range(len(codes))], dtype=torch.int64)
        self.register_buffer("radix", radix, persistent=False)
        table = torch.zeros(self.n_kinds + 1, self.n_entries)
        if self.n_kinds:
            digits = torch.arange(n_kinds)[:, None] // radix % torch.tensor(codes)
            table[:-1].scatter_(1, digits + first, 1.0)
        self.register_buffer("table", table, persistent=False)

    def kinds(self, codes: torch.Tensor) -> torch.Tensor:
        """The row of `table` of each cell, [...] int32."""
        # float32 holds these numbers exactly, and multiplies much faster than integers do.
        numbers = codes.reshape(-1, codes.shape[-1]).to(torch.float32)
        return torch.mv(numbers, self.radix.to(torch.float32)).to(torch.int32).view(codes.shape[:-1])

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        if self.n_kinds:
            return nn.functional.embedding(self.kinds(codes), self.table)
        if not self.n_entries:
            return codes
        entries = codes.long() + self.first_code
        return self.table.new_zeros((*codes.shape[:-1], self.n_entries)).scatter_(-1, entries, 1.0)


class StridedConvolution(nn.Module):
    """[batch, width, height, k] codes -> [batch * width' * height', channels]: one 3x3 convolution of the cells'
    one-hots with a stride, padded so that it reaches all cells, and ReLU.

    Its places are looked up as rows of a table and meet the weights in one matrix product. Each code of each cell under
    a kernel adds one vector of weights: it is a sum of embeddings.

    Args:
        shape: of the map.
        codes: how many codes each number can be; empty: numbers go in as they are.
        channels: that come out.
        stride: cells from one place to the next; with 3 no cell is taken in twice.
        generator: of the initial weights.

    Attributes:
        size: width' and height'.

    Raises:
        ConfigError: cells would be left out.
    """

    under: torch.Tensor

    def __init__(
        self, shape: tuple[int, ...], codes: Sequence[int], channels: int, stride: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        if stride > KERNEL:
            raise ConfigError(f"agent.map_stride={stride} would leave cells of a map unseen; use 1, 2 or 3")
        *sides, k = shape
        self.codes = OneHots(codes)
        self.size = tuple(max(0, -(-(n - KERNEL + 1) // stride)) + 1 for n in sides)
        # The cells under the kernel, place after place; those outside the map are the number after its last.
        outside = math.prod(sides)
        ends = [(places - 1) * stride + KERNEL - 1 - n for places, n in zip(self.size, sides, strict=True)]
        numbers = torch.arange(outside).view(sides)
        padded = nn.functional.pad(numbers, (1, ends[1], 1, ends[0]), value=outside)
        under = padded.unfold(0, KERNEL, stride).unfold(1, KERNEL, stride)
        self.register_buffer("under", under.flatten(), persistent=False)
        layer = nn.Linear(KERNEL**2 * (self.codes.n_entries or k), channels)
        self.linear = nn.Sequential(initialise(layer, HIDDEN_GAIN, generator), nn.ReLU())

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        batch = codes.dim() - 3  # axes in front of the map: one, or two of stacked networks
        one_hots = self.codes
        if one_hots.n_kinds:
            kinds = nn.functional.pad(one_hots.kinds(codes).flatten(batch), (0, 1), value=one_hots.n_kinds)
            cells = nn.functional.embedding(kinds.index_select(batch, self.under), one_hots.table)
        else:
            rows = nn.functional.pad(one_hots(codes).flatten(batch, batch + 1), (0, 0, 0, 1))
            cells = rows.index_select(batch, self.under)
        places = cells.view(*cells.shape[: batch - 1], -1, KERNEL**2 * cells.shape[-1])
        return self.linear(places.to(self.linear[0].weight.dtype))  # type: ignore[arg-type, no-any-return]

    def extra_repr(self) -> str:
        return f"size={self.size}"


class GridCore(nn.Module):
    """[batch, width, height, n_codes] uint8 -> [batch, features]: a map whose cells hold a few integer codes.

    3x3 convolutions (padded), the first of them with a stride, and, with `features`, a linear layer, all ReLU; without,
    the map as it is, flattened. With 16, 32, 64 channels and stride 1, these are the student networks of LLM4Teach
    (Zhou et al. 2023, arXiv 2311.13373).

    Args:
        shape: of the map.
        features: see above.
        generator: of the initial weights.
        codes: how many codes each of the n_codes numbers of a cell can be, which go in as one-hots; empty: codes go
            in as the numbers they are (as published), so that a key, 5, lies between a door, 4, and a ball, 6.
        hidden: output channels of each convolution.
        joined: further numbers that the linear layer takes in; only with `features`.
        stride: of the first convolution, >= 1.

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
        stride: int = 1,
    ) -> None:
        super().__init__()
        width, height, channels = shape
        layers: list[nn.Module] = []
        self.first: nn.Module
        if stride == 1:
            self.first = OneHots(codes)
            channels = self.first.n_entries or channels
        else:
            self.first = StridedConvolution(shape, codes, hidden[0], stride, generator)
            width, height = self.first.size
            channels, hidden = hidden[0], hidden[1:]
        for n_out in hidden:
            layers += [initialise(nn.Conv2d(channels, n_out, KERNEL, padding=1), HIDDEN_GAIN, generator), nn.ReLU()]
            channels = n_out
        self.convolutions = nn.Sequential(*layers)
        self._size = (width, height)
        flat = channels * height * width
        self.linear: nn.Module = nn.Identity()
        if features is not None:
            layer = initialise(nn.Linear(flat + joined, features), HIDDEN_GAIN, generator)
            self.linear = nn.Sequential(layer, nn.ReLU())
        self.n_features = features or flat

    def forward(self, codes: torch.Tensor, joined: torch.Tensor | None = None) -> torch.Tensor:
        leading, map_ = codes.shape[:-3], self.first(codes)
        if len(self.convolutions):
            map_ = map_.view(*leading, *self._size, -1).movedim(-1, -3)
            map_ = self.convolutions(map_.to(self.convolutions[0].weight.dtype))
        return self.linear(beside(map_.reshape(*leading, -1), joined))  # type: ignore[no-any-return]


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
        numbers = codes.flatten(-3, -2).unbind(-1)
        facts = [
            numbers[k] == low if low == high else (numbers[k] >= low) & (numbers[k] <= high)
            for k, low, high in self.planes
        ]
        weight: torch.Tensor = self.linear[0].weight  # type: ignore[assignment]
        if joined is None and (missing := weight.shape[-1] - len(facts) * facts[0].shape[-1]):
            facts.append(facts[0].new_zeros((*facts[0].shape[:-1], missing)))  # stacked weights are wider
        # As bytes, which are converted six times as fast as truth values.
        flat = torch.cat(facts, dim=-1).view(torch.uint8).to(weight.dtype)
        return self.linear(beside(flat, joined))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"planes={self.planes}"
