"""Core that reads a map conditioned on an instruction, by feature-wise linear modulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.networks.mlp import HIDDEN_GAIN, initialize
from llmrl.networks.spatial_cores import OneHots

Normalization = Literal["none", "group", "batch"]
Output = Literal["map", "maximum"]

GROUPS = 4
"""Number of groups of channels that are normalized together, if it divides the number of channels; else one."""


@dataclass(frozen=True)
class FilmSettings:
    """Shape of a `FilmCore`; meanings and ranges are in `conf/agent/ppo.yaml`."""

    blocks: PositiveInt = 2
    normalization: Normalization = "none"
    output: Output = "map"


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
        self.codes = OneHots(codes)
        self.convolutions = nn.Sequential(
            *_layer(self.codes.n_entries or shape[-1], width, 2, normalization, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
            *_layer(width, width, 3, normalization, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.blocks = nn.ModuleList(FilmBlock(width, normalization, generator) for _ in range(settings.blocks))
        self.words = nn.Embedding(n_words, width)
        nn.init.normal_(self.words.weight, generator=generator)
        self.instruction = nn.GRU(width, width, batch_first=True)
        bound = width**-0.5
        for weight in self.instruction.parameters():
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    def forward(self, codes: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        sentence = self.read(words)
        map_ = self.convolutions(self.codes(codes).permute(0, 3, 1, 2).to(self.words.weight.dtype))
        for block in self.blocks:
            map_ = block(map_, sentence)
        features: torch.Tensor = map_.flatten(1) if self.output == "map" else map_.amax((2, 3))
        return features

    def read(self, words: torch.Tensor) -> torch.Tensor:
        """Return the state [batch, width] of the GRU at the last word of each instruction [batch, n_words]."""
        # Instructions stay the same during a game, so each distinct one is encoded once.
        unique_words, index = torch.unique(words, dim=0, return_inverse=True)
        last = ((unique_words != 0).sum(1) - 1).clamp_min(0)
        states, _ = self.instruction(self.words(unique_words[:, : int(last.max()) + 1]))
        sentence: torch.Tensor = states[torch.arange(len(last), device=last.device), last][index]
        return sentence


class FilmBlock(nn.Module):
    """Block from a map [batch, channels, width, height] and an encoded instruction to a map of the same shape.

    The instruction is [batch, channels].
    """

    def __init__(self, channels: int, normalization: Normalization, generator: torch.Generator) -> None:
        super().__init__()
        self.seen = nn.Sequential(*_layer(channels, channels, 3, normalization, generator), nn.ReLU())
        self.convolution = initialize(nn.Conv2d(channels, channels, 3, padding=1), HIDDEN_GAIN, generator)
        self.scale = initialize(nn.Linear(channels, channels), 1.0, generator)
        self.shift = initialize(nn.Linear(channels, channels), 1.0, generator)
        # Without an instruction, the map passes through unchanged.
        nn.init.ones_(self.scale.bias)  # type: ignore[arg-type]
        self.after = nn.Sequential(*_normalization(channels, normalization), nn.ReLU())

    def forward(self, map_: torch.Tensor, sentence: torch.Tensor) -> torch.Tensor:
        features = self.convolution(self.seen(map_))
        return self.after(self.scale(sentence)[..., None, None] * features + self.shift(sentence)[..., None, None])  # type: ignore[no-any-return]


def _layer(
    n_in: int, n_out: int, kernel: int, normalization: Normalization, generator: torch.Generator
) -> list[nn.Module]:
    return [
        initialize(nn.Conv2d(n_in, n_out, kernel, padding=1), HIDDEN_GAIN, generator),
        *_normalization(n_out, normalization),
    ]


def _normalization(channels: int, normalization: Normalization) -> list[nn.Module]:
    """Return the modules between a convolution and its ReLU."""
    if normalization == "group":
        return [nn.GroupNorm(GROUPS if channels % GROUPS == 0 else 1, channels)]
    # No running means, so that the output depends only on weights and samples.
    return [nn.BatchNorm2d(channels, track_running_stats=False)] if normalization == "batch" else []
