"""A core that looks at a map as an instruction tells it to: feature-wise linear modulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from llmrl.core.errors import ConfigError
from llmrl.core.ranges import PositiveInt
from llmrl.networks.grid_cores import OneHots
from llmrl.networks.mlp import HIDDEN_GAIN, initialise

Normalisation = Literal["none", "group", "batch"]
Output = Literal["map", "maximum"]

GROUPS = 4
"""Of channels that are normalised together, where the width can be divided so; else one."""


@dataclass(frozen=True)
class FilmSettings:
    """Shape of a `FilmCore`; meanings and ranges are in `conf/agent/symbolic_ppo.yaml`."""

    blocks: PositiveInt = 2
    normalisation: Normalisation = "none"
    output: Output = "map"


class FilmCore(nn.Module):
    """A map [batch, width, height, k] uint8 and an instruction [batch, n_words] int64 -> features [batch, n_features].

    The network of BabyAI's agents (Chevalier-Boisvert et al. 2019, arXiv 1810.08272): two convolutions (2x2, 3x3) with
    max-pooling, blocks of two 3x3 convolutions between which and after which the map is normalised, where each channel
    of the second is scaled and shifted by amounts that the instruction says (FiLM, Perez et al. 2018, arXiv
    1709.07871). What comes out is what is left of the map, or (as published) the maximum over it, which no longer says
    where something is. The instruction is read word by word by a GRU.

    Args:
        shape: of the map.
        codes: how many codes each of the k numbers of a cell can be, which go in as one-hots; empty: as numbers.
        n_words: size of the vocabulary; word 0 is no word.
        width: channels of the convolutions and numbers that an instruction is read as.
        settings: see there; normalisation `batch` normalises by the samples computed together, those of all games
            when acting, those of a minibatch when learning (as published), so that the two disagree a little.
        generator: of the initial weights.

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
        normalisation = settings.normalisation
        self.output = settings.output
        # Two convolutions of which the first makes a map larger by one cell, each halved.
        left = [(n + 1) // 4 for n in shape[:2]]
        if min(left) < 1:
            raise ConfigError(f"maps of {shape[0]}x{shape[1]} are too small for agent.core=film (3x3 at least)")
        self.n_features = width * (left[0] * left[1] if self.output == "map" else 1)
        self.codes = OneHots(codes)
        self.convolutions = nn.Sequential(
            *_layer(self.codes.n_entries or shape[-1], width, 2, normalisation, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
            *_layer(width, width, 3, normalisation, generator),
            *(nn.ReLU(), nn.MaxPool2d(2)),
        )
        self.blocks = nn.ModuleList(FilmBlock(width, normalisation, generator) for _ in range(settings.blocks))
        self.words = nn.Embedding(n_words, width)
        nn.init.normal_(self.words.weight, generator=generator)
        self.instruction = nn.GRU(width, width, batch_first=True)
        bound = width**-0.5
        for weight in self.instruction.parameters():
            nn.init.uniform_(weight, -bound, bound, generator=generator)

    def forward(self, codes: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        told = self.read(words)
        map_ = self.convolutions(self.codes(codes).permute(0, 3, 1, 2).to(self.words.weight.dtype))
        for block in self.blocks:
            map_ = block(map_, told)
        features: torch.Tensor = map_.flatten(1) if self.output == "map" else map_.amax((2, 3))
        return features

    def read(self, words: torch.Tensor) -> torch.Tensor:
        """The state [batch, width] of the GRU at the last word of each instruction [batch, n_words]."""
        # Games last many steps and their instructions do not change: each different one is read once.
        different, place = torch.unique(words, dim=0, return_inverse=True)
        last = ((different != 0).sum(1) - 1).clamp_min(0)
        states, _ = self.instruction(self.words(different[:, : int(last.max()) + 1]))
        read: torch.Tensor = states[torch.arange(len(last), device=last.device), last][place]
        return read


class FilmBlock(nn.Module):
    """A map [batch, channels, width, height] and what was told [batch, channels] -> a map of the same shape."""

    def __init__(self, channels: int, normalisation: Normalisation, generator: torch.Generator) -> None:
        super().__init__()
        self.seen = nn.Sequential(*_layer(channels, channels, 3, normalisation, generator), nn.ReLU())
        self.convolution = initialise(nn.Conv2d(channels, channels, 3, padding=1), HIDDEN_GAIN, generator)
        self.scale = initialise(nn.Linear(channels, channels), 1.0, generator)
        self.shift = initialise(nn.Linear(channels, channels), 1.0, generator)
        # Without an instruction the map would go through as it is.
        nn.init.ones_(self.scale.bias)  # type: ignore[arg-type]
        self.after = nn.Sequential(*_normalised(channels, normalisation), nn.ReLU())

    def forward(self, map_: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        seen = self.convolution(self.seen(map_))
        return self.after(self.scale(told)[..., None, None] * seen + self.shift(told)[..., None, None])  # type: ignore[no-any-return]


def _layer(
    n_in: int, n_out: int, kernel: int, normalisation: Normalisation, generator: torch.Generator
) -> list[nn.Module]:
    return [
        initialise(nn.Conv2d(n_in, n_out, kernel, padding=1), HIDDEN_GAIN, generator),
        *_normalised(n_out, normalisation),
    ]


def _normalised(channels: int, normalisation: Normalisation) -> list[nn.Module]:
    """What stands between a convolution and its ReLU."""
    if normalisation == "group":
        return [nn.GroupNorm(GROUPS if channels % GROUPS == 0 else 1, channels)]
    # No running means: what is computed depends on weights and samples alone.
    return [nn.BatchNorm2d(channels, track_running_stats=False)] if normalisation == "batch" else []
