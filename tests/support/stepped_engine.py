"""The state of a batch of games between two steps, and the events of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch


@dataclass
class State:
    """State of B games with N players, as tensors with the games first.

    Tensors that a substrate does not use have no columns.

    Attributes:
        t: number of steps taken, [B] int32.
        pos: cell of each player, [B, N] int64; 0 (no cell of the map) while the player is out of the game.
        heading: 0 north, 1 east, 2 south, 3 west, [B, N] int64.
        alive: whether the player is in the game, [B, N] bool.
        out_for: number of steps until the player is back, [B, N] int32.
        zap_wait, clean_wait: number of steps until the player can fire that beam again, [B, N] int32.
        apple: whether each of A sites has an apple, [B, A] bool.
        dirt: whether each of D river cells is dirty, [B, D] bool.
        phase: frame of the water of each of W river cells at the start, [B, W] uint8; cells of `dirt` first.
        group: number of apples near a site without one, at most 3, two steps before; -1 if none can grow yet,
            [B, A] int8.
        dry: whether the grass of a site has withered, [B, A] bool.
        cleaners: whether the player cleaned dirt in the last step, [B, N] bool.
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
        """Return a state with `change(name, tensor)` in place of every tensor."""
        return State(
            **{
                array_field.name: change(array_field.name, getattr(self, array_field.name))
                for array_field in fields(self)
            }
        )

    def where(self, games: torch.Tensor, other: State) -> State:
        """Return this state in the games where `games` [B] is true, and `other` in the others."""

        def select(name: str, x: torch.Tensor) -> torch.Tensor:
            return torch.where(games if x.dim() == 1 else games[:, None], x, getattr(other, name))

        return self.map(select)


@dataclass
class GameEvents:
    """Events of a step of B games with N players.

    Attributes:
        reward: apples that each player ate, [B, N] float32.
        cleaned: number of dirty cells that each player cleaned, [B, N] int64.
        zaps: number of players that each player removed, [B, N] int64.
        others_cleaned: number of other players who cleaned in the step before, as players observe it, [B, N] int64.
        place: position of each player when beams were fired, cell * 4 + heading, [B, N] int64.
        zapped, washed: whether the player's zap or cleaning beam passed each of the nine cells in front, [B, N, 9]
            bool; None if the game has no such beam.
    """

    reward: torch.Tensor
    cleaned: torch.Tensor
    zaps: torch.Tensor
    others_cleaned: torch.Tensor
    place: torch.Tensor
    zapped: torch.Tensor | None
    washed: torch.Tensor | None
