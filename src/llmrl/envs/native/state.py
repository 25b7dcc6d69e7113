"""What a batch of games is in between two steps, and what a step gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch


@dataclass
class State:
    """Tensors with the games first; those a substrate has no use for have no columns.

    Attributes:
        t: steps taken, [B] int32.
        pos: cell of each player, [B, N] int64; 0, which is no cell of the map, while out of the game.
        heading: 0 north, 1 east, 2 south, 3 west, [B, N] int64.
        alive: in the game, [B, N] bool.
        out_for: steps until a player is back, [B, N] int32.
        zap_wait, clean_wait: steps until a beam can be fired again, [B, N] int32.
        apple: sites with an apple, [B, A] bool.
        dirt: dirty river cells, [B, D] bool.
        phase: frame of the water of each river cell at the start, [B, W] uint8; dirt sites first.
        group: how many live apples a bare site has around it, at most 3, as of two steps before; -1 where it cannot
            sprout yet, [B, A] int8.
        dry: grass that has withered, [B, A] bool.
        cleaners: who cleaned dirt in the last step, [B, N] bool.
    """

    t: torch.Tensor
    pos: torch.Tensor
    heading: torch.Tensor
    alive: torch.Tensor
    out_for: torch.Tensor
    zap_wait: torch.Tensor
    clean_wait: torch.Tensor
    apple: torch.Tensor
    dirt: torch.Tensor
    phase: torch.Tensor
    group: torch.Tensor
    dry: torch.Tensor
    cleaners: torch.Tensor

    def map(self, change: Callable[[str, torch.Tensor], torch.Tensor]) -> State:
        """The state with every tensor changed."""
        return State(**{each.name: change(each.name, getattr(self, each.name)) for each in fields(self)})

    def where(self, games: torch.Tensor, other: State) -> State:
        """This state in the games where `games` [B] is true, `other` elsewhere."""

        def chosen(name: str, x: torch.Tensor) -> torch.Tensor:
            return torch.where(games if x.dim() == 1 else games[:, None], x, getattr(other, name))

        return self.map(chosen)


@dataclass
class Events:
    """What happened in a step.

    Attributes:
        reward: apples eaten by each player, [B, N] float32.
        cleaned: dirty cells each player cleaned, [B, N] int64.
        zaps: players each player removed, [B, N] int64.
        others_cleaned: how many others cleaned in the step before, [B, N] int64, as players are told.
        place: where each player stood when beams were fired, cell * 4 + heading, [B, N] int64.
        zapped, washed: which of the nine cells before them the beams of players passed, [B, N, 9] bool; None where
            there is no such beam.
    """

    reward: torch.Tensor
    cleaned: torch.Tensor
    zaps: torch.Tensor
    others_cleaned: torch.Tensor
    place: torch.Tensor
    zapped: torch.Tensor | None
    washed: torch.Tensor | None
